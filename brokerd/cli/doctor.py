"""`brokerd doctor`: checks an instance, a service or a pair of services, and reports findings.

Calls:  views and the status of the daemon, the settings, `admin.doctor.checks` with the results.
Never:  changes anything, or stops at a failed check: that is a finding as well.
"""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from brokerd.admin.doctor.checks import examine
from brokerd.admin.doctor.findings import (
    Finding,
    Level,
    Sort,
    chosen,
    error,
    problem,
    status_of,
    warning,
)
from brokerd.admin.doctor.pair_checks import examine_pair, examine_service
from brokerd.cli import doctor_watch
from brokerd.cli.doctor_observations import Asked, pair, service, whole
from brokerd.cli.doctor_watch import Watch
from brokerd.cli.options import (
    SECONDS,
    at_daemon,
    daemon_address,
    daemon_options,
    given_place,
    json_option,
)
from brokerd.cli.output import (
    in_one_line,
    print_line,
    print_rows,
    print_verdict,
    quoted,
    warn,
)
from brokerd.cli.session import Absence, cause, explain, session_with
from brokerd.cli.short_ids import ANY_OF_DIALOG, BROKER_ID
from brokerd.client.address import connector_for
from brokerd.client.session import Session
from brokerd.config.loading import Settings, load
from brokerd.errors import (
    BrokerError,
    BrokerUnavailable,
    ConfigError,
    DaemonUnreachable,
    InvalidArgument,
    ObjectNotFound,
    UsageError,
)
from brokerd.instance.preflight import check_start
from brokerd.model import DEFAULT
from brokerd.routing.address import normalise
from brokerd.storage.files.private_files import other_user_of, owner_of

_PAIRS: Final = 10
"""Largest number of pairs of services that are checked after dialogs were watched."""
_SORTS: Final = {Sort.PROBLEM: "PROBLEM", Sort.EVENT: "event"}
_COLOURS: Final = {Level.ERROR: "red", Level.WARNING: "yellow", Level.INFO: ""}
_INDENT: Final = 12
_MARKS: Final = {Level.ERROR: "ERROR", Level.WARNING: "warning", Level.INFO: "info"}


@click.command(name="doctor")
@click.argument("from_service", metavar="[FROM", required=False)
@click.argument("to_service", metavar="[TO]]", required=False)
@click.option("--contract", help=f"Contract of the pair's dialogs.  [default: {DEFAULT}]")
@click.option("--to-broker", "broker_id", type=BROKER_ID, help="Id of the broker that has TO.")
@click.option("--mirror", metavar="ADDRESS", help="Address of the mirror of TO's broker.")
@click.option("--far", metavar="ADDRESS", help="Client address of TO's daemon.")
@click.option("--far-broker", help="The far daemon's broker that has TO.")
@click.option("--watch", "seconds", type=SECONDS, help="Watch for failing dialogs for this time.")
@click.option("--of", "watched", type=ANY_OF_DIALOG, multiple=True, metavar="ID",
              help="Watch only this dialog or group: a handle or an id; repeatable.")  # fmt: skip
@click.option("--new", is_flag=True, help="Watch only dialogs that begin during --watch.")
@click.option("--show-events", is_flag=True, help="Also show each error event of these dialogs.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Omit this finding; repeatable.")
@click.option(
    "--level",
    type=click.Choice([one.value for one in Level]),
    default=Level.WARNING.value,
    show_default=True,
    help="Show findings of this severity and above.",
)
@click.option("--wait", type=SECONDS, default="10s", show_default=True, help="Timeout of the ping.")
@daemon_options
@json_option
def command(
    *,
    from_service: str | None,
    to_service: str | None,
    seconds: float | None,
    watched: tuple[bytes, ...],
    new: bool,
    show_events: bool,
    ignore: tuple[str, ...],
    level: str,
    as_json: bool,
    address: str | None,
    config: Path | None,
    broker: str,
    **said: Any,  # noqa: ANN401  # as click gives them
) -> int:
    """Check the whole instance, one service, or everything between FROM and TO.

    With --watch: watch a broker for dialogs in which something goes wrong from now on, then
    check everything between their services.

    Each finding names the object, says what is wrong and how to fix it; its code never changes.
    Exit status 0: nothing found, 1: warnings, 2: errors, 3: something could not be checked.
    With -c the settings are checked as well, and so is a stopped daemon, as far as its files
    allow.
    """
    asked = Asked(from_service=from_service, to_service=to_service, **said)
    _check(asked)
    watch = _watch(seconds, watched, asked, new=new, show_events=show_events)
    found: list[Finding] = []
    settings = _settings(config, found)
    where = _where(address, config, found)
    if where is not None:
        found += asyncio.run(
            _inspect(where, broker, None if config is None else settings, asked, watch)
        )
    shown = chosen(found, least=Level(level), ignored={code.upper() for code in ignore})
    place = given_place()
    shown = [
        msgspec.structs.replace(one, commands=tuple(at_daemon(c, place) for c in one.commands))
        for one in shown
    ]
    if as_json:
        print_rows(shown)
    else:
        _show(shown)
    return status_of(shown)


def _check(asked: Asked) -> None:
    """Refuse options that would have no effect, and texts that cannot be addresses."""
    given = {"--to-broker": asked.broker_id, "--mirror": asked.mirror, "--far": asked.far}
    for option, value in given.items():
        if value is not None and asked.to_service is None:
            raise UsageError(f"{option} is about a pair of services", hint="name FROM and TO")
    if asked.contract is not None and asked.from_service is None:
        raise UsageError("--contract is about services", hint="name FROM, or FROM and TO")
    if asked.far_broker is not None and asked.far is None:
        raise UsageError("--far-broker is a broker of another daemon", hint="say where: --far")
    for option, text, check in (
        ("--far", asked.far, connector_for),
        ("--mirror", asked.mirror, normalise),
    ):
        try:
            if text is not None:
                check(text)
        except InvalidArgument as wrong:
            raise UsageError(f"{option}: {wrong.message}", hint=wrong.hint) from None


def _watch(
    seconds: float | None, of: tuple[bytes, ...], asked: Asked, *, new: bool, show_events: bool
) -> Watch | None:
    if seconds is None:
        if of or new or show_events:
            raise UsageError("--of, --new and --show-events say what to watch", hint="--watch 30")
        return None
    if asked.from_service is not None:
        raise UsageError(
            "--watch looks at dialogs, whatever their services are",
            hint="name the dialogs with --of, or leave the services out",
        )
    return Watch(seconds=seconds, of=of, new=new, show_events=show_events)


async def _inspect(
    where: str, broker: str, settings: Settings | None, asked: Asked, watch: Watch | None
) -> list[Finding]:
    """Return the findings about a daemon; `settings`: the daemon's settings, None = unknown."""
    try:
        of_instance = asked.from_service is None and watch is None
        session = await session_with(where, broker, retry=0.0, of_instance=of_instance)
    except InvalidArgument:
        raise
    except DaemonUnreachable as unreachable:
        about = f"daemon at {where}"
        why = cause(where)
        if why is not Absence.STOPPED:
            return [problem("D48", about, *explain(where, why, unreachable.message))]
        stopped = () if settings is None else _stopped(settings)
        return [problem("D48", about, unreachable.message, "start it:", _serve()), *stopped]
    except (ObjectNotFound, BrokerUnavailable) as refused:
        return [error("D01", f"broker {broker}", refused.message, "", "brokerd broker ls")]
    except BrokerError as refused:
        return [problem("D48", f"daemon at {where}", refused.message, refused.hint)]
    found: list[Finding] = []
    try:
        async with session:
            if watch is not None:
                await _runtime(where, session, asked, watch, found)
            elif asked.from_service is None:
                found += examine(await whole(where, session, found))
            elif asked.to_service is None:
                found += examine_service(await service(session, asked.from_service, asked.contract))
            else:
                found += examine_pair(await pair(where, session, asked, found))
    except BrokerError as refused:
        found.append(problem("D48", f"daemon at {where}", refused.message, refused.hint))
    return found


async def _runtime(
    where: str, session: Session, asked: Asked, watch: Watch, found: list[Finding]
) -> None:
    """Watch dialogs, and then check the services of those that failed (MON-20)."""
    broker = session.welcome.broker
    warn(f"watching the dialogs of broker {broker} for {watch.seconds:g} s")
    failed = await doctor_watch.watch(session, watch, found)
    begun = {(one.service, one.far_service, one.contract) for one in failed if one.is_initiator}
    for from_service, to_service, contract in sorted(begun)[:_PAIRS]:
        between = msgspec.structs.replace(
            asked, from_service=from_service, to_service=to_service, contract=contract
        )
        found += examine_pair(await pair(where, session, between, found))
    alone = [
        one
        for one in failed
        if not one.is_initiator and (one.far_service, one.service, one.contract) not in begun
    ]
    for one in alone[:_PAIRS]:
        found += examine_service(await service(session, one.service, one.contract))
    if len(begun) > _PAIRS or len(alone) > _PAIRS:
        text = f"dialogs of more than {_PAIRS} pairs of services failed; the others are not told"
        found.append(problem("D54", f"broker {broker}", text, "examine those that matter to you"))


def _settings(config: Path | None, found: list[Finding]) -> Settings:
    try:
        return load(config).settings
    except ConfigError as wrong:
        check = f"brokerd config check {quoted(str(config))}" if config else ""
        commands = [check] if check else []
        text, about = in_one_line(wrong.message), f"settings {config or ''}".strip()
        found.append(error("D41", about, text, wrong.hint, *commands))
        return Settings()


def _where(address: str | None, config: Path | None, found: list[Finding]) -> str | None:
    try:
        return daemon_address(address, config)
    except ConfigError:
        if not found:
            raise
        return None


def _stopped(settings: Settings) -> Iterator[Finding]:
    """Yield the faults that would keep a stopped daemon from starting, as far as files show."""
    user = other_user_of(settings.instance.data_dir)
    if user is not None:
        text = (
            f"{settings.instance.data_dir} belongs to user {user}: what is in it was not looked at"
        )
        doctor = f"sudo -u '#{user}' brokerd doctor {given_place()}".strip()
        yield problem("D42", f"start of {settings.instance.name}", text, "", doctor)
        return
    try:
        check_start(settings, None, user=owner_of(settings.instance.data_dir))
    except BrokerError as refused:
        yield error(
            "D42", f"start of {settings.instance.name}", in_one_line(refused.message), refused.hint
        )
    there = settings.instance.data_dir
    while not there.exists() and there != there.parent:
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < 2 * settings.store.min_free:
        text = f"{free >> 20} MiB of the disk are free"
        space = f"df -h {quoted(str(there))}"
        yield warning("D43", f"directory {there}", text, "make room on that disk:", space)


def _serve() -> str:
    return f"brokerd serve {given_place()}".strip()


def _show(found: list[Finding]) -> None:
    for one in found:
        mark = _SORTS.get(one.sort) or _MARKS[one.level]
        lead = f"{one.code} {mark:7} "
        print_verdict(lead, _COLOURS[one.level], f"{one.about}: {one.text}", indent=_INDENT)
        if one.mend:
            print_verdict(" " * _INDENT, "", one.mend, indent=_INDENT)
        for command in one.commands:  # never wrapped: it can be copied as it is
            print_line(f"{' ' * _INDENT}{command}")
    if not found:
        print_line("nothing is wrong", colour="green")
