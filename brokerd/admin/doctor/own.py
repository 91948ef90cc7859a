"""Own doctor: the checks of the whole instance, made inside the daemon at a bounded cost (MON-45).

Reads:  the views and the status of this instance.      Calls: `checks.examine`.
Never:  reads more than `MOST_ROWS` rows of a view, or spends more than one part in `SHARE` of a
        processor; what was left out is said.
Wakes:  when somebody looks; a diagnosis that is still fresh is used again by all who look.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from brokerd.admin.doctor.checks import LINGERING, examine
from brokerd.admin.doctor.findings import Finding, Level, Row, chosen
from brokerd.admin.doctor.free_space import with_free_space
from brokerd.admin.doctor.seen import MOST, BrokerSeen, Seen
from brokerd.admin.kept_answer import KeptAnswer
from brokerd.admin.views.state import StateReport
from brokerd.admin.views.survey import Survey
from brokerd.admin.views.views import Views
from brokerd.broker.broker import Broker
from brokerd.clock import SECOND, Clock, Instant
from brokerd.model import MSDB
from brokerd.protocol.admin_verbs import ViewOptions
from brokerd.telemetry.status import STUCK_AFTER, InstanceStatus

MOST_ROWS: Final = 2_000
"""Most rows of one view that are checked."""
FRESH: Final = 5.0
"""Seconds for which a diagnosis is used again."""
SHARE: Final = 100
"""A diagnosis is fresh for at least this many times the processor time that it took."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one moment, and the status that they come from."""

    at: Instant
    found: tuple[Finding, ...]
    status: InstanceStatus
    """The status; of the queues it has only those that need somebody."""
    left_out: tuple[str, ...] = ()
    """The things that were not checked because there are too many."""


class OwnDoctor:
    """The doctor of this instance."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        views: Views,
        state: StateReport,
        survey: Callable[[], Any],
        clock: Clock,
        elapsed: Callable[[], float],
    ) -> None:
        """Create the doctor.

        `survey`: returns the awaitable survey of the queues. `elapsed`: returns the processor time
        of this thread, in seconds."""
        self._brokers = brokers
        self._views = views
        self._state = state
        self._survey = survey
        self._clock = clock
        self._elapsed = elapsed
        self._kept = KeptAnswer(self._make, clock=clock)

    async def diagnosis(self) -> Diagnosis:
        """Return a diagnosis: the last one while it is fresh, else a new one."""
        return await self._kept.get()

    def expire(self) -> None:
        """Make a new diagnosis for the next who looks, because somebody has changed something."""
        self._kept.expire()

    async def _make(self) -> tuple[Diagnosis, float]:
        """Return a diagnosis, and the seconds for which it is fresh."""
        # Other tasks run meanwhile, and their time is counted too: the doctor then comes less
        # often on a busy daemon, which is what is wanted.
        began = self._elapsed()
        found = await self._examine()
        fresh = max(FRESH, (self._elapsed() - began) * SHARE)
        return found, min(fresh, 20 * FRESH)

    async def _examine(self) -> Diagnosis:
        survey: Survey = await self._survey()
        main = next(one for name, one in self._brokers.items() if name == MSDB)
        ill = {(row.broker, row.name) for row in survey.worst if row.pain}
        status = with_free_space(await self._state.status(main, only=ill))
        left_out: list[str] = []
        if len(ill) < survey.ill:
            left_out.append(f"{survey.ill - len(ill)} queues with something wrong")
        known = await self._rows(main, "brokers", left_out)
        seen = Seen(
            status=status,
            now=status.now,
            brokers=[
                await self._broker(one, status, left_out)
                for one in list(self._brokers.values())
                if one.name != MSDB
            ],
            known=known,
            endpoint=next(iter(await self._rows(main, "endpoint", left_out)), None),
            destinations=await self._rows(main, "destinations", left_out),
            instance_routes=await self._rows(main, "instance_routes", left_out),
            forwarder=(await self._rows(main, "forwarder_counters", left_out))[0],
            dispatching=(await self._rows(main, "broker_statistics", left_out))[0],
        )
        found = chosen(examine(seen), least=Level.INFO, ignored=())
        return Diagnosis(at=status.now, found=tuple(found), status=status, left_out=tuple(left_out))

    async def _broker(
        self, broker: Broker, status: InstanceStatus, left_out: list[str]
    ) -> BrokerSeen:
        name = broker.name
        lingering: dict[str, int] = {}
        for state in LINGERING if status.lingering_after else ():
            rows = await self._some(
                broker,
                "conversation_endpoints",
                where={"state": state},
                older_than=status.lingering_after,
                limit=MOST + 1,
            )
            if rows:
                lingering[state] = len(rows)
        stuck = await self._some(
            broker, "transmission_queue", older_than=STUCK_AFTER // SECOND, limit=MOST + 1
        )
        is_delayed = any(
            to.state == "delayed" and to.messages and to.broker == name
            for to in status.destinations
        )
        delayed = await self._some(broker, "transmission_queue", limit=MOST) if is_delayed else []
        return BrokerSeen(
            name=name,
            default_encryption=broker.store.identity.default_encryption,
            services=await self._rows(broker, "services", left_out),
            routes=await self._rows(broker, "routes", left_out),
            bindings=await self._rows(broker, "remote_service_bindings", left_out),
            parked=await self._some(
                broker, "parked_groups", where={"state": "parked"}, limit=MOST + 1
            ),
            usages=await self._rows(broker, "service_contract_usages", left_out),
            contracts=await self._rows(broker, "service_contracts", left_out),
            message_usages=await self._rows(broker, "service_contract_message_usages", left_out),
            message_types=await self._rows(broker, "service_message_types", left_out),
            queue_status=[one for one in status.queues if one.broker == name],
            lingering=lingering,
            stuck=_first_of_each(stuck),
            more_stuck=len(stuck) > MOST,
            delayed=_first_of_each(delayed),
        )

    async def _some(self, broker: Broker, view: str, **options: Any) -> list[Row]:  # noqa: ANN401
        """Return the first rows of a view, of one page."""
        return (await self._views.page(broker, view, ViewOptions(**options))).rows

    async def _rows(self, broker: Broker, view: str, left_out: list[str]) -> list[Row]:
        """Return the rows of a view, at most `MOST_ROWS`."""
        await self._clock.sleep_until(0)  # let other tasks run
        page = await self._views.page(broker, view, ViewOptions(limit=MOST_ROWS))
        if page.next is not None:
            many = len(page.rows)
            left_out.append(f"rows of {view} of broker {broker.name} after the first {many}")
        return page.rows


def _first_of_each(rows: list[Row]) -> list[Row]:
    """Return each dialog's oldest message."""
    first: dict[object, Row] = {}
    for row in rows:
        first.setdefault(row["conversation_handle"], row)
    return list(first.values())
