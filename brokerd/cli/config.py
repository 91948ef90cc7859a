"""`brokerd config`: check files without starting anything; show every effective setting."""

from contextlib import suppress
from pathlib import Path

import click

from brokerd.cli.options import config_option, json_option
from brokerd.cli.output import print_rows, say, table
from brokerd.config import effective, load
from brokerd.declarations import read
from brokerd.errors import BrokerError, ConfigError
from brokerd.exposure import describe
from brokerd.security.grants import parse_grant
from brokerd.settings import Settings


@click.group(name="config")
def command() -> None:
    """Check a configuration, or show what is in effect."""


@command.command()
@config_option
@json_option
def show(config: Path | None, as_json: bool) -> None:
    """Every setting, its value, and where it comes from."""
    rows = effective(load(config))
    if as_json:
        print_rows([{"key": key, "value": value, "origin": at} for key, value, at in rows])
    else:
        table("effective settings", ("key", "value", "origin"), rows)


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--objects",
    type=click.Path(path_type=Path),
    help="Check this file of declared objects as well, and that its handlers can be imported.",
)
def check(file: Path, objects: Path | None) -> None:
    """Check settings (and objects) without starting anything; nothing is changed.

    An address that is in use at the moment is told as a warning.

    FILE may be the settings of a daemon or, with a name that ends in .objects.toml, its objects.
    """
    if file.name.endswith("objects.toml") and objects is None:
        _check_objects(file)
        return
    errors = []
    try:
        settings = load(file).settings
    except ConfigError as error:
        errors.append(error)
    else:
        _warn_of_addresses(file, settings)
        _warn_of_open_listeners(file, settings)
        _warn_of_users(file, settings)
        _warn_of_files(file, settings)
        _warn_of_stores(file, settings)
        say(f"{file}: the settings are usable")
    if objects is not None:
        try:
            _check_objects(objects)
        except ConfigError as error:
            errors.append(error)
    if errors:
        text = "\n".join(error.message for error in errors)
        raise ConfigError(text, hint=errors[0].hint)


def _check_objects(path: Path) -> None:
    _, declared = read(path)
    from brokerd.preflight import look_at_handlers  # noqa: PLC0415  # `show` needs no store

    try:
        look_at_handlers(declared)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
    for warning in declared.warnings:
        say(f"{path}: warning: {warning}")
    say(f"{path}: the objects are usable")


def _warn_of_open_listeners(file: Path, settings: Settings) -> None:
    """What the settings permit is said all the same, each time (SX-21)."""
    for door in settings.open_listeners(settings.peer_addresses):
        say(f"{file}: warning: open to other machines: {describe(door)}")


def _warn_of_users(file: Path, settings: Settings) -> None:
    """The file may be for another machine, or the user may come later."""
    from brokerd.sessions.principals import unknown_users  # noqa: PLC0415

    for problem in unknown_users(map(parse_grant, settings.clients.grants)):
        say(f"{file}: warning: clients.grants: {problem}")


def _warn_of_files(file: Path, settings: Settings) -> None:
    """Whoever checks may be another user than the daemon's: the owner of its directory."""
    from brokerd.storage.private_files import survey  # noqa: PLC0415

    try:
        user = settings.instance.data_dir.stat().st_uid
    except OSError:
        return
    for one in survey(settings.store_dirs, socket=settings.client_socket, user=user):
        say(f"{file}: warning: {one.path} {one.problem}; {one.mend}")


def _warn_of_stores(file: Path, settings: Settings) -> None:
    """The file may be for another machine; while a daemon runs, its status says it (MAN-17)."""
    from brokerd.preflight import missing_stores  # noqa: PLC0415

    with suppress(BrokerError):
        for gone in missing_stores(settings).values():
            say(f"{file}: warning: {gone.with_cure}")


def _warn_of_addresses(file: Path, settings: Settings) -> None:
    """An address in use is no fault of the file: the daemon it is for may be running (BI-C5)."""
    from brokerd.preflight import listening_problems  # noqa: PLC0415

    for problem in listening_problems(settings):
        say(f"{file}: warning: {problem.message}, now")
