"""`brokerd doctor`: looks through an instance, or at one pair of services, and says what is wrong.

Calls:  views and the status of the daemon, the settings, `admin.examining` with what they say.
Never:  changes anything, or stops at what could not be looked at: that is a finding as well.
"""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from brokerd.admin.examining import LINGERING, BrokerSeen, Seen, examine
from brokerd.admin.examining_pairs import PairSeen, examine_pair
from brokerd.admin.findings import (
    Finding,
    Level,
    Row,
    Sort,
    chosen,
    error,
    problem,
    status_of,
    warning,
)
from brokerd.cli.options import SECONDS, daemon_address, daemon_options, json_option
from brokerd.cli.output import print_json, say
from brokerd.client.session import Session, connect
from brokerd.clock import SECOND, SystemClock
from brokerd.config import Settings, load
from brokerd.errors import (
    BrokerError,
    BrokerUnavailable,
    ConfigError,
    DaemonUnreachable,
    ObjectNotFound,
    UsageError,
)
from brokerd.model import DEFAULT, MSDB
from brokerd.preflight import look_ahead
from brokerd.status import STUCK_AFTER, InstanceStatus

_LINGERS: Final = 3600
"""Seconds (PBT-5)."""
_MOST: Final = 100
"""Rows that are looked at of what may be many."""
_MARKS: Final = {Level.ERROR: "ERROR", Level.WARNING: "warning", Level.INFO: "info"}


@click.command(name="doctor")
@click.argument("from_service", metavar="[FROM", required=False)
@click.argument("to_service", metavar="TO]", required=False)
@click.option("--contract", default=DEFAULT, show_default=True, help="Of dialogs of the pair.")
@click.option("--far", metavar="ADDRESS", help="Where the daemon of TO listens for clients.")
@click.option("--far-broker", help="The broker there that has TO.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Leave this finding out; repeatable.")
@click.option(
    "--level",
    type=click.Choice([one.value for one in Level]),
    default=Level.WARNING.value,
    show_default=True,
    help="Show what is at least so bad.",
)
@click.option("--wait", type=SECONDS, default=10.0, show_default=True, help="For the ping.")
@daemon_options
@json_option
def command(
    *,
    from_service: str | None,
    to_service: str | None,
    ignore: tuple[str, ...],
    level: str,
    as_json: bool,
    address: str | None,
    config: Path | None,
    broker: str,
    **pair: Any,  # noqa: ANN401  # as click gives them
) -> int:
    """Look through the whole instance, or at what is between the services FROM and TO.

    Each finding says what is wrong, with which object, and what mends it; its code never changes.
    Exit status 0: nothing, 1: warnings, 2: errors, 3: something could not be looked at. With -c
    the settings are looked at as well, and a daemon that is stopped as far as its files tell.
    """
    if (from_service is None) != (to_service is None):
        raise UsageError("give two services, FROM and TO, or none")
    found: list[Finding] = []
    settings = _settings(config, found)
    where = _where(address, config, found)
    if where is not None:
        try:
            names = (from_service, to_service) if from_service and to_service else None
            found += asyncio.run(_look(where, broker, settings, names, pair))
        except DaemonUnreachable as unreachable:
            found.append(
                problem("D48", f"daemon at {where}", unreachable.message, "brokerd serve -c FILE")
            )
            found += _stopped(settings) if config is not None else ()
        except (ObjectNotFound, BrokerUnavailable) as refused:
            found.append(error("D01", f"broker {broker}", refused.message, "brokerd broker ls"))
        except BrokerError as refused:
            found.append(problem("D48", f"daemon at {where}", refused.message, refused.hint))
    shown = chosen(found, least=Level(level), ignored={code.upper() for code in ignore})
    if as_json:
        print_json({"findings": shown})
    else:
        _show(shown)
    return status_of(shown)


def _settings(config: Path | None, found: list[Finding]) -> Settings:
    try:
        return load(config).settings
    except ConfigError as wrong:
        text, mend = wrong.message, "brokerd config check -c FILE"
        found.append(error("D41", f"settings {config or ''}".strip(), text, mend))
        return Settings()


def _where(address: str | None, config: Path | None, found: list[Finding]) -> str | None:
    try:
        return daemon_address(address, config)
    except ConfigError:
        if not found:
            raise
        return None


def _stopped(settings: Settings) -> Iterator[Finding]:
    """What would keep a daemon that is not running from starting, as far as its files tell."""
    try:
        look_ahead(settings, None)
    except BrokerError as refused:
        yield error("D42", f"start of {settings.instance.name}", refused.message, refused.hint)
    there = settings.instance.data_dir
    while not there.exists() and there != there.parent:
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < 2 * settings.store.min_free:
        text = f"{free >> 20} MiB of the disk are free"
        yield warning("D43", f"directory {there}", text, "make room on that disk")


async def _look(
    where: str,
    broker: str,
    settings: Settings,
    names: tuple[str, str] | None,
    pair: dict[str, Any],
) -> list[Finding]:
    async with await connect(where, broker=broker, retry=0.0) as session:
        if names is None:
            return list(examine(await _whole(where, session, settings)))
        return list(examine_pair(await _pair(where, session, *names, **pair)))


async def _whole(where: str, session: Session, settings: Settings) -> Seen:
    status = msgspec.convert(await session.status(), InstanceStatus, strict=False)
    free = _free(status) if where.startswith("unix:") else status
    known = await session.view("brokers")
    endpoint = await session.view("endpoint")
    brokers: list[BrokerSeen] = []
    waiting: list[Row] = []
    for name in [str(row["name"]) for row in known if row["is_broker_enabled"]]:
        if name == MSDB:
            continue
        async with await connect(where, broker=name, retry=0.0) as own:
            brokers.append(await _broker(own, name))
            waiting += await _stuck(own)
    return Seen(
        status=free,
        now=SystemClock().utc(),
        min_free=settings.store.min_free,
        brokers=brokers,
        known=known,
        endpoint=endpoint[0] if endpoint else None,
        destinations=await session.view("destinations"),
        instance_routes=await session.view("instance_routes"),
        waiting=waiting,
        forwarder=(await session.view("forwarder_counters"))[0],
        dispatching=(await session.view("broker_statistics"))[0],
    )


def _free(status: InstanceStatus) -> InstanceStatus:
    """The daemon is on this machine: so is the room for its stores."""
    stores = tuple(
        msgspec.structs.replace(one, free_bytes=shutil.disk_usage(Path(one.path).parent).free)
        if one.path and one.state != "full" and Path(one.path).parent.is_dir()
        else one
        for one in status.stores
    )
    return msgspec.structs.replace(status, stores=stores)


async def _broker(session: Session, name: str) -> BrokerSeen:
    lingering: dict[str, int] = {}
    for state in LINGERING:
        rows = await _most(
            session, "conversation_endpoints", where={"state": state}, older_than=_LINGERS
        )
        if rows:
            lingering[state] = len(rows)
    return BrokerSeen(
        name=name,
        services=await session.view("services"),
        routes=await session.view("routes"),
        parked=await _most(session, "parked_groups"),
        queues=await session.view("service_queues"),
        usages=await session.view("service_contract_usages"),
        contracts=await session.view("service_contracts"),
        message_usages=await session.view("service_contract_message_usages"),
        message_types=await session.view("service_message_types"),
        lingering=lingering,
    )


async def _stuck(session: Session) -> list[Row]:
    """The oldest of what has waited too long, of each dialog."""
    rows = await _most(session, "transmission_queue", older_than=STUCK_AFTER // SECOND)
    first: dict[object, Row] = {}
    for row in rows:
        first.setdefault(row["conversation_handle"], row)
    return list(first.values())


async def _most(session: Session, view: str, **options: Any) -> list[Row]:  # noqa: ANN401
    return await session.view(view, limit=_MOST, **options)


async def _pair(
    where: str,
    session: Session,
    from_service: str,
    to_service: str,
    *,
    contract: str,
    far: str | None,
    far_broker: str | None,
    wait: float,
) -> PairSeen:
    name = session.welcome.broker
    source = await _broker(session, name)
    if far is not None:
        target: BrokerSeen | None = await _other(far, far_broker or "main")
    else:
        target = await _target(where, session, source, to_service)
    ping, why = None, ""
    if any(row["name"] == from_service for row in source.services):
        try:
            ping = await session.admin.ping(to_service, from_service=from_service, wait=wait)
        except BrokerError as refused:
            why = refused.message
    return PairSeen(
        from_service=from_service,
        to_service=to_service,
        contract=contract,
        source=source,
        target=target,
        ping=ping,
        not_pinged=why,
        instance=str((await session.status())["instance"]),
        destinations=await session.view("destinations"),
    )


async def _target(
    where: str, session: Session, source: BrokerSeen, service: str
) -> BrokerSeen | None:
    """The broker of this instance that has the service, if one has."""
    if any(row["name"] == service for row in source.services):
        return source
    for row in await session.view("brokers"):
        if row["is_broker_enabled"] and row["name"] not in (MSDB, source.name):
            seen = await _other(where, str(row["name"]))
            if any(one["name"] == service for one in seen.services):
                return seen
    return None


async def _other(where: str, broker: str) -> BrokerSeen:
    async with await connect(where, broker=broker, retry=0.0) as session:
        return await _broker(session, broker)


def _show(found: list[Finding]) -> None:
    for one in found:
        mark = "PROBLEM" if one.sort is Sort.PROBLEM else _MARKS[one.level]
        say(f"{one.code} {mark:7} {one.about}: {one.text}")
        if one.mend:
            say(f"            {one.mend}")
    if not found:
        say("nothing is wrong")
