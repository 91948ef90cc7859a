"""Options that several commands share: the configuration, the daemon, JSON."""

import os
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from brokerd.cli.permissions import VERBS
from brokerd.client.tls import CERTIFICATE_VARIABLE, KEY_VARIABLE, SERVER_VARIABLE
from brokerd.clock import SECOND, Instant, SystemClock
from brokerd.config.loading import load
from brokerd.errors import UsageError
from brokerd.protocol.client_verbs import MAX_TIMER_MS, MAX_WAIT_MS
from brokerd.units import parse_duration, printable

CONFIG_VARIABLE: Final = "BROKERD_CONFIG"
ADDRESS_VARIABLE: Final = "BROKERD_ADDRESS"

_TLS: Final = (
    ("--tls-server", SERVER_VARIABLE, "The daemon's certificate, for a TCP connection with TLS"),
    ("--tls-key", KEY_VARIABLE, "The private key of --tls-certificate"),
    ("--tls-certificate", CERTIFICATE_VARIABLE, "The certificate that the daemon knows this by"),
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def is_url(text: str) -> bool:
    """Return whether a place is named by a URL rather than by a path."""
    return "://" in text


class LocalDirectory(click.ParamType[Path]):
    """The type of an option for a directory of this machine; a URL is refused.

    Without the refusal, a path would be made of the URL: a local directory named `s3:`.
    """

    name = "path"

    def convert(
        self, value: object, _parameter: click.Parameter | None, _context: click.Context | None
    ) -> Path:
        """Return the path; raise `UsageError` for a URL."""
        if is_url(str(value)):
            raise UsageError(
                f"{value} is a URL, and this is a directory of this machine",
                hint="name a directory; a file system of another machine can be mounted there",
            )
        return Path(str(value))


class _Seconds(click.ParamType[float]):
    """The type of an option for a duration: a number of seconds, or a number with a unit."""

    name = "duration"

    def __init__(self, longest: float) -> None:
        self._longest = longest

    def convert(
        self, value: object, _parameter: click.Parameter | None, _context: click.Context | None
    ) -> float:
        """Return seconds; raise `UsageError` for a text that is not a duration, or one too long."""
        if isinstance(value, float | int):
            return float(value)
        text = str(value)
        try:
            seconds = float(text)
        except ValueError:
            seconds = _with_unit(text)
        if not 0 <= seconds <= self._longest:  # also refuses nan
            raise UsageError(
                f"{text!r} is no time that can be waited",
                hint=f"give 0 to {self._longest:.0f} seconds: 10, 0.5, 2min",
            )
        return seconds


def _with_unit(text: str) -> float:
    try:
        return parse_duration(text).total_seconds()
    except ValueError:
        return float("nan")


SECONDS: Final = _Seconds(MAX_WAIT_MS / 1000)
"""Type for a waiting time, up to the longest that a verb may have (CLP-35)."""
AFTER: Final = _Seconds(MAX_TIMER_MS / 1000)
"""Type for the time until a timer fires, up to the longest allowed (CLP-100)."""

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    envvar=CONFIG_VARIABLE,
    is_eager=True,
    help=f"The daemon's settings file (TOML); or set {CONFIG_VARIABLE}.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
broker_option = click.option(
    "--broker",
    default="main",
    show_default=True,
    is_eager=True,
    help="The broker of the instance.",
)


def instance_options(command: _Command) -> _Command:
    """Add the options that name the daemon: `address`, `config`, and the files of a connection.

    They are eager: a shortened id (`short_ids`) is looked up at the daemon that they name."""
    address = click.option(
        "--address",
        metavar="unix:PATH|TCP://HOST:PORT",
        is_eager=True,
        help=f"The daemon's address for clients; or set {ADDRESS_VARIABLE}, or give -c.",
    )
    return address(_tls_options(config_option(command)))


def daemon_options(command: _Command) -> _Command:
    """Add the options that name the daemon and one of its brokers: `broker` beside the above."""
    return instance_options(broker_option(command))


def _tls_options(command: _Command) -> _Command:
    """Add the options for encrypted connections, which stand for variables of the environment."""
    for option, variable, text in _TLS:
        command = click.option(
            option,
            metavar="FILE",
            expose_value=False,
            is_eager=True,
            callback=partial(_set_variable, variable),
            help=f"{text}; or set {variable}.",
        )(command)
    return command


def _set_variable(
    variable: str, _context: click.Context, _parameter: click.Parameter, value: str | None
) -> None:
    if value is not None:
        os.environ[variable] = value


def past_instant(text: str) -> Instant:
    """Return the instant that `--since` means: a time, or a duration before now.

    Raises:
        UsageError: the text is neither.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            age = parse_duration(text)
        except ValueError:
            raise UsageError(
                f"--since {text!r} is neither a time nor a duration",
                hint="2026-01-31T09:00, in UTC, or how long ago: 10min, 2h, 1d",
            ) from None
        return Instant(SystemClock().utc() - round(age.total_seconds() * SECOND))
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return Instant(round(at.timestamp() * SECOND))


def given_place() -> str:
    """Return the options of this command line that name the daemon, to follow another command.

    Empty if none was given: then the other command finds the daemon in the same way."""
    context = click.get_current_context(silent=True)
    if context is None:
        return ""
    words: list[str] = []
    for name, option in (("config", "-c"), ("address", "--address")):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            words += [option, shlex.quote(printable(str(context.params[name])))]
    return " ".join(words)


def at_daemon(command: str, place: str) -> str:
    """Return a command with the options that name the daemon, if it asks one and names none."""
    program, *words = shlex.split(command)
    names = (" ".join(words[:count]) for count in (2, 1))
    asks = program == "brokerd" and any(VERBS.get(name) for name in names)
    return f"{command} {place}".strip() if asks and "--address" not in words else command


def daemon_address(address: str | None, config: Path | None) -> str:
    """Return the daemon's address: from the option, else the settings, else the environment.

    Without any of these, return the address of the default settings.

    Raises:
        ConfigError: the settings file is wrong.
    """
    if address:
        return address
    if config:
        return load(config).settings.client_address
    if named := os.environ.get(ADDRESS_VARIABLE):
        return named
    return load(None).settings.client_address
