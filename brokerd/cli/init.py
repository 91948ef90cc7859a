"""`brokerd init`: writes a first configuration, commented, that `serve` runs as it is (MAN-22).

Reads:  whether the files exist.      Calls: nothing of a daemon.
Never:  overwrites a file, or opens anything to another machine that has no certificate here.
"""

import os
import re
import socket
from pathlib import Path
from typing import Final

import click

from brokerd.cli.output import print_line, quoted
from brokerd.errors import UsageError

SETTINGS: Final = "brokerd.toml"
OBJECTS: Final = "objects.toml"
_PRIVATE: Final = 0o600
_DIRECTORY: Final = 0o700

_SETTINGS_TEXT: Final = """\
# The settings of the daemon. What lives in its broker is declared in objects.toml.
#
#   check them:  brokerd config check {settings} --objects {objects}
#   run it:      brokerd serve -c {settings} --objects {objects}
#   all keys:    brokerd config show --explain -c {settings}
#
# Relative paths are relative to this file. Unknown keys are errors.

[instance]
name = "{name}"
data_dir = "data"                 # the stores, one SQLite file for each broker, and the socket

# Programs connect to data/brokerd.sock. The directory is private to your user, so only your own
# programs can. Programs of other users need a right: docs/how-to/permissions.md. Programs on other
# machines need a certificate: brokerd client new
{endpoint}
[log]
file = "data/brokerd.log"         # read it with: brokerd log tail -f -c {settings}
"""
_ENDPOINT_TEXT: Final = """
# Where other instances connect. Connections are encrypted, and nobody gets in before the two
# machines know each other's certificates: brokerd peer pair
[endpoint]
listen = ["all"]                  # or the addresses of this machine that peers use
port = 4022
"""
_NO_ENDPOINT_TEXT: Final = """
# For messages to and from other machines take these two lines in, and run: brokerd peer pair
#[endpoint]
#listen = ["all"]
"""
_OBJECTS_TEXT: Final = """\
# What lives in the broker "main": message types, contracts, queues and services.
#
#   see what would change:  brokerd apply {objects} --dry-run -c {settings}
#   make it so:             brokerd apply {objects} -c {settings}
#
# The file is the whole truth about its broker: `apply` drops what is not declared here, unless a
# dialog still needs it. `serve --objects` only adds and alters.

[broker]
name = "main"

# A message type names a kind of body. Validation may also be "none", "empty", "well_formed_xml", or
# "valid_json" with a schema.
[[message_type]]
name = "Question"
validation = "well_formed_json"

[[message_type]]
name = "Answer"
validation = "well_formed_json"

# A contract says who may send what in a dialog.
[[contract]]
name = "questions/v1"
types = {{ "Question" = "initiator", "Answer" = "target" }}

# A queue holds the messages that wait for a service. A message that no handler can process sets its
# conversation group aside (brokerd group ls --parked); the others go on.
[[queue]]
name = "asker_q"
poison_mode = "park"

[[queue]]
name = "answerer_q"
poison_mode = "park"

# A service is a party in dialogs. This one only begins them, so it accepts no contract.
[[service]]
name = "asker"
queue = "asker_q"
contracts = []

[[service]]
name = "answerer"
queue = "answerer_q"
contracts = ["questions/v1"]
"""


@click.command(name="init")
@click.argument(
    "directory", type=click.Path(path_type=Path, file_okay=False), default=Path(), required=False
)
@click.option(
    "--pair", is_flag=True, help="Also listen for other machines, for `brokerd peer pair`."
)
@click.option("--name", help="Name of the instance.  [default: that of this machine]")
def command(directory: Path, pair: bool, name: str | None) -> None:
    """Write a first configuration into DIRECTORY: brokerd.toml and objects.toml.

    Both are short and commented, and `brokerd serve` runs them as they are. Files that exist are
    never overwritten.
    """
    settings, objects = directory / SETTINGS, directory / OBJECTS
    instance = _name(name)
    for path in (settings, objects):
        if path.exists() or path.is_symlink():
            raise UsageError(
                f"{path} is there already, and nothing was written",
                hint="name another directory: brokerd init DIRECTORY",
            )
    directory.mkdir(mode=_DIRECTORY, parents=True, exist_ok=True)
    words = {
        "name": instance,
        "settings": SETTINGS,
        "objects": OBJECTS,
        "endpoint": _ENDPOINT_TEXT if pair else _NO_ENDPOINT_TEXT,
    }
    _write(settings, _SETTINGS_TEXT.format(**words))
    _write(objects, _OBJECTS_TEXT.format(**words))
    print_line(f"wrote {settings} and {objects}; next:")
    named = quoted(str(settings))
    print_line(f"  brokerd serve -c {named} --objects {quoted(str(objects))} &")
    print_line(f"  brokerd status -c {named}")
    question = "answerer --from asker --contract questions/v1 --type Question"
    print_line(f"  brokerd send --to {question} --body '{{}}' -c {named}")
    print_line(f"  brokerd receive answerer_q --ack -c {named}")
    if pair:
        print_line(f"  brokerd peer pair --share answerer -c {named}")


def _name(given: str | None) -> str:
    """Return the name of the instance.

    Raises:
        UsageError: the name would not fit into a file of settings.
    """
    if given is None:
        host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])
        return host.lstrip("-_")[:64] or "main"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", given):
        raise UsageError(
            f"{given!r} cannot name an instance",
            hint="use 1 to 64 letters, digits, dots, - and _, a letter or digit first",
        )
    return given


def _write(path: Path, text: str) -> None:
    with open(path, "x", encoding="utf-8", opener=_private) as file:
        file.write(text)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE)
