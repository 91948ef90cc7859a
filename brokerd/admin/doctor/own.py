"""Own doctor: the checks of the whole instance, made inside the daemon at a bounded cost (MON-45).

Reads:  the views and the status of this instance.      Calls: `gathering`, `checks.examine`.
Never:  reads more than `MOST_ROWS` rows of a view, or spends more than one part in `SHARE` of a
        processor; what was left out is said.
Wakes:  when somebody looks; a diagnosis that is still fresh is used again by all who look.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from brokerd.admin.doctor.checks import examine
from brokerd.admin.doctor.findings import Finding, Level, Row, chosen
from brokerd.admin.doctor.free_space import with_free_space
from brokerd.admin.doctor.gathering import broker_seen, instance_seen
from brokerd.admin.doctor.seen import MOST
from brokerd.admin.kept_answer import KeptAnswer
from brokerd.admin.views.state import StateReport
from brokerd.admin.views.survey import Survey
from brokerd.admin.views.views import Views
from brokerd.broker.broker import Broker
from brokerd.clock import Clock, Instant
from brokerd.model import MSDB
from brokerd.protocol.admin_verbs import ViewOptions
from brokerd.telemetry.status import InstanceStatus

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
        source = self._source(main, left_out)
        known = await source.rows("brokers")
        brokers = [
            await broker_seen(self._source(one, left_out), status)
            for one in list(self._brokers.values())
            if one.name != MSDB
        ]
        seen = await instance_seen(
            source, status=status, now=status.now, known=known, brokers=brokers
        )
        found = chosen(examine(seen), least=Level.INFO, ignored=())
        return Diagnosis(at=status.now, found=tuple(found), status=status, left_out=tuple(left_out))

    def _source(self, broker: Broker, left_out: list[str]) -> "_OwnSource":
        return _OwnSource(broker, views=self._views, clock=self._clock, left_out=left_out)


class _OwnSource:
    """The views of a broker of this instance, of each at most `MOST_ROWS` rows."""

    most_pages = 1

    def __init__(self, broker: Broker, *, views: Views, clock: Clock, left_out: list[str]) -> None:
        """Create the source. `left_out`: gets the things that are not read."""
        self.broker = broker.name
        self._broker = broker
        self._views = views
        self._clock = clock
        self._left_out = left_out

    async def rows(
        self,
        view: str,
        limit: int | None = None,
        **options: Any,  # noqa: ANN401
    ) -> list[Row]:
        """Return the rows of a view, at most `limit`; None = at most `MOST_ROWS`."""
        rows, after = await self.page(view, limit=limit or MOST_ROWS, **options)
        if limit is None and after is not None:
            many = len(rows)
            self._left_out.append(f"rows of {view} of broker {self.broker} after the first {many}")
        return rows

    async def page(
        self,
        view: str,
        **options: Any,  # noqa: ANN401
    ) -> tuple[list[Row], str | None]:
        """Return a page of a view: by default as many rows as are reported one by one."""
        await self._clock.sleep_until(0)  # let other tasks run
        chosen = ViewOptions(**{"limit": MOST, **options})
        page = await self._views.page(self._broker, view, chosen)
        return page.rows, page.next
