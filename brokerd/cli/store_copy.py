"""`brokerd store copy`: moves stores between files and PostgreSQL (REL-61, REL-62)."""

from pathlib import Path
from typing import Final

import click

from brokerd.cli.options import config_option, json_option
from brokerd.cli.output import print_json, print_line, quoted, warn
from brokerd.clock import SystemClock
from brokerd.config.loading import load
from brokerd.config.settings import Settings
from brokerd.errors import ObjectNotFound, UsageError
from brokerd.ids import RandomIds
from brokerd.instance.store_engine import server_options
from brokerd.model import MSDB
from brokerd.storage.copying.ends import Facts
from brokerd.storage.copying.moving import Copied, Mover, Pair, brokers_on_server
from brokerd.storage.copying.places import (
    FilePlace,
    Place,
    SchemaPlace,
    database_of,
    place_of,
)
from brokerd.units import counted

_STEP: Final = 2.0
"""Seconds between two lines of progress, and before the first one."""
_monotonic: Final = SystemClock.monotonic


class ShownProgress:
    """Progress of a copy, on standard error; it says nothing of short work."""

    def __init__(self) -> None:
        self._next = _monotonic() + _STEP

    def __call__(self, what: str, done: int, whole: int) -> None:
        """Print a line if enough time has passed."""
        if _monotonic() >= self._next:
            self._next = _monotonic() + _STEP
            warn(f"{what}: {done * 100 // max(1, whole)} % of {counted(whole, 'row')}")


@click.command(name="copy")
@click.argument("source", metavar="[FROM]", required=False)
@click.argument("target", metavar="[TO]", required=False)
@click.option(
    "--to",
    metavar="URL",
    help="Move all stores of the instance of -c to this database.",
)
@click.option(
    "--from",
    "from_",
    metavar="URL",
    help="Move all stores of the instance of -c from this database to files.",
)
@click.option(
    "--schema-prefix",
    default="",
    help="With --to and --from: the beginning of the name of each schema.  [default: "
    "store.schema_prefix of the settings]",
)
@click.option(
    "--keep-source",
    is_flag=True,
    help="Leave FROM as it is; the copy begins another history, with delivery off.",
)
@config_option
@json_option
def command(
    *,
    source: str | None,
    target: str | None,
    to: str | None,
    from_: str | None,
    schema_prefix: str,
    keep_source: bool,
    config: Path | None,
    as_json: bool,
) -> None:
    """Move the store FROM to the place TO, without a daemon.

    A place is a file, or a schema of a PostgreSQL database:
    'postgresql://USER@HOST/DATABASE?schema=NAME'. TO may leave out the schema, or be a directory:
    the broker then gives the name. A password belongs into the file that PGPASSFILE names.

    The store is checked first, and the copy is compared with it, table by table. The copy continues
    exactly where FROM stopped: dialogs go on, and peers notice nothing. FROM is then marked as
    moved, and no daemon opens it any more.

    With -c and --to, or --from, all stores of an instance are moved, msdb included, or none.

    A command that was killed can be given again, and finishes. Run this as the user of the daemon.
    """
    server, noted = None, None
    left_out: tuple[str, ...] = ()
    if to is None and from_ is None:
        pairs = _one(source, target, schema_prefix)
    elif source is not None or (to is not None and from_ is not None):
        raise UsageError("give FROM and TO, or --to, or --from, and -c with the last two")
    else:
        settings = load(config).settings
        server, left_out = server_options(settings), settings.mirroring.brokers
        noted = server.history_file
        schema_prefix = schema_prefix or settings.store.schema_prefix
        pairs = _all(str(to or from_), schema_prefix, settings, is_to=to is not None)
    mover = Mover(
        ids=RandomIds(),
        clock=SystemClock(),
        server=server,
        keep_source=keep_source,
        left_out=left_out,
        progress=ShownProgress(),
    )
    done = mover.move(pairs)
    if noted is not None:  # the server that had them before
        noted.unlink(missing_ok=True)
    if as_json:
        print_json(done)
        return
    for one in done:
        print_line(_line(one))
    for note in _notes(done, to, schema_prefix):
        warn(f"note: {note}")


def _one(source: str | None, target: str | None, schema_prefix: str) -> list[Pair]:
    if source is None or target is None:
        raise UsageError(
            "name the store and the place where it is to go",
            hint="brokerd store copy FROM TO, or brokerd store copy -c FILE --to URL for all "
            "stores of an instance",
        )
    if schema_prefix:
        raise UsageError("--schema-prefix goes with --to and --from")
    wanted = target
    return [Pair(place_of(source), lambda facts: place_of(wanted, broker=facts.broker))]


def _all(text: str, schema_prefix: str, settings: Settings, *, is_to: bool) -> list[Pair]:
    url, schema = database_of(text)
    if schema is not None:
        raise UsageError(
            "an instance has a schema for each broker: name the database only",
            hint="'postgresql://USER@HOST/DATABASE', and --schema-prefix if they need one",
        )

    def on_server(broker: str) -> SchemaPlace:
        return SchemaPlace(url, schema_prefix + broker)

    if is_to:
        files = _files(settings)
        return [Pair(FilePlace(path), lambda facts: on_server(facts.broker)) for path in files]

    def in_file(facts: Facts) -> Place:
        return FilePlace(settings.store_path(facts.broker))

    # An `msdb` that an earlier version moved there knows the mirrored brokers too.
    names = [
        name
        for name in brokers_on_server(on_server(MSDB))
        if name not in settings.mirroring.brokers
    ]
    _note_left_out(settings)
    return [Pair(on_server(name), in_file) for name in names]


def _files(settings: Settings) -> list[Path]:
    """Return the stores of the instance, `msdb` first; those of mirrored brokers are shared."""
    data_dir, mirrored = settings.instance.data_dir, settings.mirroring.brokers
    found = sorted(data_dir.glob("*.db"), key=lambda path: (path.stem != MSDB, path.stem))
    stores = [path for path in found if path.stem not in mirrored]
    if not stores:
        raise ObjectNotFound(f"there is no store in {data_dir}", hint="see -c")
    _note_left_out(settings)
    return stores


def _note_left_out(settings: Settings) -> None:
    if mirrored := settings.mirroring.brokers:
        warn(f"note: left out, as a partner shares them: {', '.join(sorted(mirrored))}")


def _line(one: Copied) -> str:
    if one.was_done:
        return f"{one.broker}: an earlier run has moved it to {one.target}"
    verb = "moved" if one.is_moved else "copied"
    amount = f"{counted(one.rows, 'row')} of {counted(len(one.tables), 'table')}"
    return f"{one.broker}: {amount} {verb} to {one.target}, and compared"


def _notes(done: list[Copied], to: str | None, schema_prefix: str) -> list[str]:
    notes = []
    if to is not None:
        url = SchemaPlace(database_of(to)[0], "").database
        prefix = f' and schema_prefix = "{schema_prefix}"' if schema_prefix else ""
        notes.append(f'now set url = "{url}"{prefix} in [store] of the settings')
    if any(one.is_moved for one in done):
        notes.append("what was moved stays where it is, marked; remove it when all is well")
    else:
        names = " ".join(quoted(one.broker) for one in done if one.broker != MSDB)
        notes.append(f"delivery is off in the copy: see brokerd broker enable --help ({names})")
    return notes
