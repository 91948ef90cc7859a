"""`brokerd config`: checks files without starting anything; shows every effective setting."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from brokerd.cli.options import config_option, json_option
from brokerd.cli.output import print_line, print_rows, table
from brokerd.config.exposure import describe, in_clear
from brokerd.config.loading import effective, load, meanings
from brokerd.config.settings import Settings
from brokerd.errors import BrokerError, ConfigError, PortTaken, StoreLocked
from brokerd.objects.declarations import read
from brokerd.objects.declared import Declared
from brokerd.rule_ids import without_rules
from brokerd.security.grants import PUBLIC, parse_grant


@click.group(name="config")
def command() -> None:
    """Check a configuration, or show effective settings."""


@command.command()
@config_option
@click.option("--explain", is_flag=True, help="Also show the meaning of each setting.")
@json_option
def show(config: Path | None, explain: bool, as_json: bool) -> None:
    """Show every setting, its value, and the origin of the value."""
    rows: list[tuple[str, ...]] = list(effective(load(config)))
    columns: tuple[str, ...] = ("key", "value", "origin")
    if explain:
        meaning = meanings()
        rows = [(*row, without_rules(meaning[row[0]])) for row in rows]
        columns = (*columns, "meaning")
    if as_json:
        print_rows([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        table("effective settings", columns, rows)


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--objects",
    type=click.Path(path_type=Path),
    help="Also check this file of declared objects, and that its handlers can be imported.",
)
@click.option(
    "--file-only",
    is_flag=True,
    help="Check only the files, not this machine; for files that another machine will use.",
)
def check(file: Path, objects: Path | None, file_only: bool) -> None:
    """Check settings (and objects) for everything that would prevent a start; change nothing.

    The exit status is the one that the start would have. For files and addresses that a running
    daemon with these settings uses itself, only a warning is printed.

    FILE may be the settings of a daemon or, with a name that ends in .objects.toml, its objects.
    """
    if file.name.endswith("objects.toml") and objects is None:
        _check_objects(file)
        return
    errors: list[BrokerError] = []
    settings, declared = None, None
    try:
        settings = load(file).settings
    except ConfigError as error:
        errors.append(error)
    is_looked_into = (
        settings is not None and not file_only and not _is_of_another_user(file, settings)
    )
    if objects is not None:
        try:
            declared = _check_objects(objects, handlers=not is_looked_into)
        except ConfigError as error:
            errors.append(error)
    if settings is not None:
        _warn_of_openings(file, settings)
        _warn_of_users(file, settings)
        if is_looked_into:
            _warn_of_files(file, settings)
            errors += _start_problems(file, settings, declared)
    if errors:
        text = "\n".join(error.message for error in errors)
        raise type(errors[0])(text, hint=errors[0].hint)
    print_line(f"{file}: the settings are usable")


def _is_of_another_user(file: Path, settings: Settings) -> bool:
    """Return whether the daemon's files belong to another user; if so, print a warning.

    Files that this user cannot read would seem to be wrong, so they are not checked (BI-C5).
    """
    from brokerd.storage.files.private_files import other_user_of  # noqa: PLC0415  # `show` needs no store

    directory = settings.instance.data_dir
    user = other_user_of(directory)
    if user is None:
        return False
    print_line(
        f"{file}: warning: {directory} belongs to user {user}, the daemon's, and this runs as user "
        f"{os.geteuid()}: its files, its stores and the addresses were not looked at; for that: "
        f"sudo -u '#{user}' brokerd config check {file}"
    )
    return True


def _start_problems(
    file: Path, settings: Settings, declared: Declared | None
) -> Iterator[BrokerError]:
    """Yield why a start would be refused, except for files and ports of the running daemon."""
    from brokerd.instance import preflight  # noqa: PLC0415  # `show` needs no store
    from brokerd.storage.files.private_files import owner_of  # noqa: PLC0415

    declared = declared or preflight.first_broker(settings)
    # The checking user may be root, or another than the daemon's.
    user = owner_of(settings.instance.data_dir)
    problems = list(preflight.all_problems(preflight.Start(settings, declared, user)))
    # A server lets a second daemon wait, so there no problem says that one runs.
    runs = settings.is_on_server or any(isinstance(one, StoreLocked) for one in problems)
    for problem in problems:
        own: bool | None = runs and isinstance(problem, StoreLocked)
        if runs and isinstance(problem, PortTaken) and problem.in_use_at:
            own = preflight.is_own_listener(settings, problem.in_use_at)
        if own is None:
            print_line(
                f"{file}: warning: {problem.message}, now; it could not be told whether the "
                "running daemon or another program listens there"
            )
        elif own:
            print_line(f"{file}: warning: {problem.message}, now")
        else:
            yield problem
    reported = {problem.message for problem in problems}
    with suppress(BrokerError):
        for gone in preflight.missing_stores(settings).values():
            if gone.message not in reported:
                print_line(f"{file}: warning: {gone.with_cure}")


def _check_objects(path: Path, *, handlers: bool = True) -> Declared:
    """Return the declaration in a file; `handlers`: whether to import its handlers."""
    _, declared = read(path)
    from brokerd.instance.preflight import check_handlers  # noqa: PLC0415  # `show` needs no store

    try:
        if handlers:
            check_handlers(declared)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
    for warning in declared.warnings:
        print_line(f"{path}: warning: {warning}")
    for one in declared.brokers:
        if not one.default_encryption:
            print_line(f"{path}: warning: open: {in_clear(one.broker)}")
    print_line(f"{path}: the objects are usable")
    return declared


def _warn_of_openings(file: Path, settings: Settings) -> None:
    """Warn of everything that is open, at every check, although the settings permit it (SEC-88)."""
    for listener in settings.open_listeners(settings.peer_addresses):
        print_line(f"{file}: warning: open to other machines: {describe(listener)}")
    for opening in settings.openings(settings.peer_addresses):
        print_line(f"{file}: warning: open: {opening}")
    for grant in map(parse_grant, settings.clients.grants):
        if grant.to == PUBLIC:
            print_line(f"{file}: warning: open to everybody: {grant.permission} on {grant.on}")
    if settings.client_socket is None:
        at = settings.client_address
        socket = settings.instance.data_dir / "brokerd.sock"
        print_line(
            f"{file}: warning: clients.listen has no Unix socket, so commands and started readers "
            f"on this machine connect to {at}, too; to keep both: "
            f'listen = ["unix:{socket}", "{at}"]'
        )


def _warn_of_users(file: Path, settings: Settings) -> None:
    """Warn of unknown users; no error, since they may exist on another machine, or later."""
    from brokerd.sessions.principals import unknown_users  # noqa: PLC0415

    for problem in unknown_users(map(parse_grant, settings.clients.grants)):
        print_line(f"{file}: warning: clients.grants: {problem}")


def _warn_of_files(file: Path, settings: Settings) -> None:
    """Warn of unsafe file permissions that do not keep the daemon's user from a start (SX-24)."""
    from brokerd.storage.files.private_files import owner_of, survey  # noqa: PLC0415

    user = owner_of(settings.instance.data_dir)
    for one in survey(settings.store_dirs, socket=settings.client_socket, user=user):
        if not one.is_refused:
            print_line(f"{file}: warning: {one.path} {one.problem}; {one.mend}")
