"""Gathering: the observations of the doctor, read in one way wherever it runs (MON-22, MON-45).

Reads:  views of brokers, through `Source`.      Calls: nothing else.
Never:  knows whether a source is in the same process or at the other end of a session.
"""

from typing import Any, Protocol

import msgspec

from brokerd.admin.doctor.checks import LINGERING
from brokerd.admin.doctor.findings import Row
from brokerd.admin.doctor.seen import MOST, BrokerSeen, Seen
from brokerd.clock import SECOND, Instant
from brokerd.telemetry.status import STUCK_AFTER, InstanceStatus


class Source(Protocol):
    """The views of one broker, and those of its instance."""

    broker: str
    """Name of the broker."""
    most_pages: int
    """Largest number of pages of messages that are searched for different dialogs."""

    async def rows(
        self,
        view: str,
        limit: int | None = None,
        **options: Any,  # noqa: ANN401
    ) -> list[Row]:
        """Return the rows of a view, at most `limit`; None = as many as the source reads of one."""
        ...

    async def page(
        self,
        view: str,
        **options: Any,  # noqa: ANN401
    ) -> tuple[list[Row], str | None]:
        """Return a page of a view, and where the next one begins; None = there is none."""
        ...


async def instance_seen(
    main: Source,
    *,
    status: InstanceStatus,
    now: Instant,
    known: list[Row],
    brokers: list[BrokerSeen],
) -> Seen:
    """Return the observations of an instance, of which `known` and `brokers` are at hand.

    `main`: a source in any broker. `now`: the time by the clock of the doctor's machine."""
    return Seen(
        status=status,
        now=now,
        brokers=brokers,
        known=known,
        endpoint=await endpoint_of(main),
        destinations=await main.rows("destinations"),
        instance_routes=await main.rows("instance_routes"),
        forwarder=(await main.rows("forwarder_counters"))[0],
        dispatching=(await main.rows("broker_statistics"))[0],
    )


async def endpoint_of(source: Source) -> Row | None:
    """Return the row of the broker endpoint; None = the instance has none."""
    return next(iter(await source.rows("endpoint")), None)


async def broker_seen(source: Source, status: InstanceStatus) -> BrokerSeen:
    """Return the declarations of a broker, and its lingering, stuck and parked dialogs."""
    lingering: dict[str, int] = {}
    for state in LINGERING if status.lingering_after else ():
        rows = await first_rows(
            source,
            "conversation_endpoints",
            where={"state": state},
            older_than=status.lingering_after,
        )
        if rows:
            lingering[state] = len(rows)
    stuck, more = await stuck_messages(source, older_than=STUCK_AFTER // SECOND)
    return msgspec.structs.replace(
        await declared(source, status),
        parked=await first_rows(source, "parked_groups", where={"state": "parked"}),
        lingering=lingering,
        stuck=stuck,
        more_stuck=more,
        delayed=await _delayed(source, status),
    )


async def declared(source: Source, status: InstanceStatus) -> BrokerSeen:
    """Return the declarations in a broker, and the state of its queues, without their rows."""
    name = source.broker
    own = await source.rows("brokers", where={"name": name})
    return BrokerSeen(
        name=name,
        default_encryption=any(row.get("is_default_encryption_on") for row in own),
        services=await source.rows("services"),
        routes=await source.rows("routes"),
        bindings=await source.rows("remote_service_bindings"),
        usages=await source.rows("service_contract_usages"),
        contracts=await source.rows("service_contracts"),
        message_usages=await source.rows("service_contract_message_usages"),
        message_types=await source.rows("service_message_types"),
        queue_status=[one for one in status.queues if one.broker == name],
    )


async def stuck_messages(source: Source, **options: Any) -> tuple[list[Row], bool]:  # noqa: ANN401
    """Return each dialog's oldest waiting message, and whether others may wait as well."""
    first: dict[object, Row] = {}
    after: str | None = None
    for _ in range(source.most_pages):
        rows, after = await source.page("transmission_queue", after=after, **options)
        for row in rows:
            first.setdefault(row["conversation_handle"], row)
        if after is None or len(first) > MOST:
            break
    return list(first.values()), after is not None


async def first_rows(source: Source, view: str, **options: Any) -> list[Row]:  # noqa: ANN401
    """Return the first rows of a view: one more than are reported one by one."""
    return await source.rows(view, MOST + 1, **options)


async def _delayed(source: Source, status: InstanceStatus) -> list[Row]:
    """Return examples of waiting messages, if some messages of the broker have no destination."""
    name = source.broker
    if not any(
        to.state == "delayed" and to.messages and to.broker == name for to in status.destinations
    ):
        return []
    found, _more = await stuck_messages(source)
    return found
