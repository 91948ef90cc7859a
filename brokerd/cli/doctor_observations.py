"""The observations of `brokerd doctor`: views and the status of daemons.

Calls:  views and the status.
Never:  changes anything, or stops at a failed check: that is a finding as well.
"""

from typing import Any

import msgspec

from brokerd.admin.doctor import gathering
from brokerd.admin.doctor.findings import Finding, Row, error, problem
from brokerd.admin.doctor.free_space import with_free_space
from brokerd.admin.doctor.gathering import (
    broker_seen,
    endpoint_of,
    first_rows,
    instance_seen,
    stuck_messages,
)
from brokerd.admin.doctor.pair_checks import FarSeen, PairSeen, ServiceSeen
from brokerd.admin.doctor.seen import BrokerSeen, Seen
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
                brokers.append(await broker_seen(SessionSource(own), status))
        except BrokerError as refused:
            found.append(problem("D01", f"broker {name}", refused.message, refused.hint))
    return await instance_seen(
        SessionSource(session),
        status=with_free_space(status) if where.startswith("unix:") else status,
        now=SystemClock().utc(),
        known=known,
        brokers=brokers,
    )


async def declared(session: Session, status: InstanceStatus | None = None) -> BrokerSeen:
    """Return the declarations in the session's broker, its queues included."""
    status = await status_of(session) if status is None else status
    source = SessionSource(session)
    return msgspec.structs.replace(
        await gathering.declared(source, status), queues=await source.rows("service_queues")
    )


class SessionSource:
    """The views of a session's broker."""

    most_pages = 10

    def __init__(self, session: Session) -> None:
        self.broker = session.welcome.broker
        self._session = session

    async def rows(
        self,
        view: str,
        limit: int | None = None,
        **options: Any,  # noqa: ANN401
    ) -> list[Row]:
        """Return the rows of a view, at most `limit`; None = all rows."""
        return await self._session.view(view, limit, **options)

    async def page(
        self,
        view: str,
        **options: Any,  # noqa: ANN401
    ) -> tuple[list[Row], str | None]:
        """Return a page of a view, and where the next one begins."""
        page = await self._session.view_page(view, **options)
        return page.rows, page.next


# One service, and a pair.


async def service(session: Session, name: str, contract: str | None) -> ServiceSeen:
    """Return the observations of a service in the session's broker."""
    status = await status_of(session)
    seen = await declared(session, status)
    queues = {str(row["service_queue_id"]) for row in seen.services if row["name"] == name}
    source = SessionSource(session)
    stuck, more = await stuck_messages(
        source, where={"from_service_name": name}, older_than=STUCK_AFTER // SECOND
    )
    of_queues = {"state": "parked", "queue": sorted(queues)}
    return ServiceSeen(
        service=name,
        contract=contract,
        broker=msgspec.structs.replace(
            seen,
            parked=await first_rows(source, "parked_groups", where=of_queues),
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
        endpoint=await endpoint_of(SessionSource(session)),
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
            endpoint = await endpoint_of(SessionSource(session))
            there_too = FarSeen(instance=status.instance, endpoint=endpoint)
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
