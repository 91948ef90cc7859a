"""The observations of `brokerd doctor`: views and the status of daemons.

Calls:  views and the status.
Never:  changes anything, or stops at a failed check: that is a finding as well.
"""

from typing import Any, Final

import msgspec

from brokerd.admin.doctor.checks import LINGERING
from brokerd.admin.doctor.findings import Finding, Row, error, problem
from brokerd.admin.doctor.free_space import with_free_space
from brokerd.admin.doctor.pair_checks import FarSeen, PairSeen, ServiceSeen
from brokerd.admin.doctor.seen import MOST, BrokerSeen, Seen
from brokerd.cli.output import quoted
from brokerd.client.admin_answers import PingAnswer
from brokerd.client.session import Session, connect
from brokerd.clock import SECOND, SystemClock
from brokerd.errors import (
    BrokerError,
    BrokerUnavailable,
    DaemonUnreachable,
    InvalidArgument,
    ObjectNotFound,
)
from brokerd.model import DEFAULT, MSDB
from brokerd.routing.address import normalise
from brokerd.telemetry.status import STUCK_AFTER, InstanceStatus, unsent

_PAGES: Final = 10
"""Largest number of pages of messages that are searched for messages of different dialogs."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The services to check; without FROM the whole instance."""

    from_service: str | None = None
    to_service: str | None = None
    contract: str | None = None
    broker_id: bytes | None = None
    """Identifier of the broker that dialogs should reach."""
    mirror: str | None = None
    """The address of the far side's mirror."""
    far: str | None = None
    far_broker: str | None = None
    wait: float = 10.0


async def status_of(session: Session) -> InstanceStatus:
    """Return the status of the instance."""
    return msgspec.convert(await session.status(), InstanceStatus, strict=False)


async def whole(where: str, session: Session, found: list[Finding]) -> Seen:
    """Return the observations of an instance; append failed reads to `found`."""
    status = await status_of(session)
    known = await session.view("brokers")
    brokers: list[BrokerSeen] = []
    for name in [str(row["name"]) for row in known if not row["start_failure"]]:
        if name == MSDB:
            continue
        try:
            async with await connect(where, broker=name, retry=0.0) as own:
                brokers.append(await _broker(own, status))
        except BrokerError as refused:
            found.append(problem("D01", f"broker {name}", refused.message, refused.hint))
    return Seen(
        status=with_free_space(status) if where.startswith("unix:") else status,
        now=SystemClock().utc(),
        brokers=brokers,
        known=known,
        endpoint=await _endpoint(session),
        destinations=await session.view("destinations"),
        instance_routes=await session.view("instance_routes"),
        forwarder=(await session.view("forwarder_counters"))[0],
        dispatching=(await session.view("broker_statistics"))[0],
    )


async def _broker(session: Session, status: InstanceStatus) -> BrokerSeen:
    """Return the declarations of a broker, and its lingering, stuck and parked dialogs."""
    lingering: dict[str, int] = {}
    for state in LINGERING if status.lingering_after else ():
        rows = await _most(
            session,
            "conversation_endpoints",
            where={"state": state},
            older_than=status.lingering_after,
        )
        if rows:
            lingering[state] = len(rows)
    stuck, more = await stuck_messages(session, older_than=STUCK_AFTER // SECOND)
    return msgspec.structs.replace(
        await declared(session, status),
        parked=await _most(session, "parked_groups", where={"state": "parked"}),
        lingering=lingering,
        stuck=stuck,
        more_stuck=more,
        delayed=await _delayed(session, status),
    )


async def _delayed(session: Session, status: InstanceStatus) -> list[Row]:
    """Return examples of waiting messages, if some messages of the broker have no destination."""
    name = session.welcome.broker
    if not any(
        to.state == "delayed" and to.messages and to.broker == name for to in status.destinations
    ):
        return []
    found, _more = await stuck_messages(session)
    return found


async def declared(session: Session, status: InstanceStatus | None = None) -> BrokerSeen:
    """Return the declarations in the session's broker, and the state of its queues."""
    status = await status_of(session) if status is None else status
    name = session.welcome.broker
    own = await session.view("brokers", where={"name": name})
    return BrokerSeen(
        name=name,
        default_encryption=any(row.get("is_default_encryption_on") for row in own),
        services=await session.view("services"),
        routes=await session.view("routes"),
        bindings=await session.view("remote_service_bindings"),
        queues=await session.view("service_queues"),
        usages=await session.view("service_contract_usages"),
        contracts=await session.view("service_contracts"),
        message_usages=await session.view("service_contract_message_usages"),
        message_types=await session.view("service_message_types"),
        queue_status=[one for one in status.queues if one.broker == name],
    )


async def stuck_messages(session: Session, **options: Any) -> tuple[list[Row], bool]:  # noqa: ANN401  # as `view_page` has them
    """Return each dialog's oldest waiting message, and whether others may wait as well."""
    first: dict[object, Row] = {}
    after: str | None = None
    for _ in range(_PAGES):
        page = await session.view_page("transmission_queue", after=after, **options)
        for row in page.rows:
            first.setdefault(row["conversation_handle"], row)
        after = page.next
        if after is None or len(first) > MOST:
            break
    return list(first.values()), after is not None


async def _most(session: Session, view: str, **options: Any) -> list[Row]:  # noqa: ANN401
    return await session.view(view, limit=MOST + 1, **options)


# One service, and a pair.


async def service(session: Session, name: str, contract: str | None) -> ServiceSeen:
    """Return the observations of a service in the session's broker."""
    status = await status_of(session)
    seen = await declared(session, status)
    queues = {str(row["service_queue_id"]) for row in seen.services if row["name"] == name}
    stuck, more = await stuck_messages(
        session, where={"from_service_name": name}, older_than=STUCK_AFTER // SECOND
    )
    of_queues = {"state": "parked", "queue": sorted(queues)}
    return ServiceSeen(
        service=name,
        contract=contract,
        broker=msgspec.structs.replace(
            seen,
            parked=await _most(session, "parked_groups", where=of_queues),
            stuck=stuck,
            more_stuck=more,
        ),
        known=await session.view("brokers", where={"name": seen.name}),
        parked=sum(
            one.parked for one in status.queues if one.broker == seen.name and one.name in queues
        ),
        now=status.now,
        failed=tuple(
            one for one in status.failed_dialogs if (one.broker, one.service) == (seen.name, name)
        ),
    )


async def pair(where: str, session: Session, asked: Asked, found: list[Finding]) -> PairSeen:
    """Return both sides, and the result of a ping; append failed reads to `found`."""
    assert asked.from_service is not None, "a pair is asked for"
    assert asked.to_service is not None, "a pair is asked for"
    from_service, to_service = asked.from_service, asked.to_service
    status = await status_of(session)
    source = await declared(session, status)
    ping, why = None, ""
    if any(row["name"] == from_service for row in source.services):
        try:
            ping = await session.admin.ping(
                to_service, from_service=from_service, broker_id=asked.broker_id, wait=asked.wait
            )
        except BrokerError as refused:
            why = refused.message
    target, far = None, None
    if asked.far is None:
        target = await _target(where, session, source, to_service, ping)
    elif (there := await _far(asked.far, asked.far_broker or "main", found)) is not None:
        target, far = there
    return PairSeen(
        from_service=from_service,
        to_service=to_service,
        contract=asked.contract or DEFAULT,
        mirror=None if asked.mirror is None else normalise(asked.mirror),
        source=source,
        target=target,
        ping=ping,
        not_pinged=why,
        instance=status.instance,
        endpoint=await _endpoint(session),
        far=far,
        destinations=await session.view("destinations"),
        now=status.now,
        failed=tuple(
            one
            for one in status.failed_dialogs
            if one.broker == source.name
            and {one.service, one.far_service} == {from_service, to_service}
        ),
        waiting=tuple(
            to
            for to in status.destinations
            if to.service == to_service and to.held_up and unsent(to, status.now)
        ),
    )


async def _far(far: str, broker: str, found: list[Finding]) -> tuple[BrokerSeen, FarSeen] | None:
    """Return the broker at the far daemon; None, and a finding, if it cannot be queried."""
    try:
        async with await connect(far, broker=broker, retry=0.0) as session:
            status = await status_of(session)
            there_too = FarSeen(instance=status.instance, endpoint=await _endpoint(session))
            return await declared(session, status), there_too
    except InvalidArgument:
        raise
    except DaemonUnreachable as unreachable:
        mend = "start it there, or say with --far where it listens for clients"
        found.append(problem("D48", f"daemon at {far}", unreachable.message, mend))
    except (ObjectNotFound, BrokerUnavailable) as refused:
        about = f"broker {broker} at {far}"
        brokers = f"brokerd broker ls --address {quoted(far)}"
        found.append(error("D01", about, refused.message, "", brokers))
    except BrokerError as refused:
        found.append(problem("D48", f"daemon at {far}", refused.message, refused.hint))
    return None


async def _endpoint(session: Session) -> Row | None:
    rows = await session.view("endpoint")
    return rows[0] if rows else None


async def _target(
    where: str, session: Session, source: BrokerSeen, service: str, ping: PingAnswer | None
) -> BrokerSeen | None:
    """Return the broker of this instance to which the sender's routes lead.

    None if they lead to another instance. If no route leads anywhere, return a broker that has the
    service, because that broker may be meant; None if no broker has it.
    """
    first = ping.steps[0] if ping is not None and ping.steps else None
    if first is not None and first.outcome == "remote":
        return None
    if first is not None and first.outcome in ("local", "refused"):
        return source if first.where == source.name else await _other(where, first.where)
    if any(row["name"] == service for row in source.services):
        return source
    for row in await session.view("brokers"):
        if not row["start_failure"] and row["name"] not in (MSDB, source.name):
            seen = await _other(where, str(row["name"]))
            if any(one["name"] == service for one in seen.services):
                return seen
    return None


async def _other(where: str, broker: str) -> BrokerSeen:
    async with await connect(where, broker=broker, retry=0.0) as session:
        return await declared(session)
