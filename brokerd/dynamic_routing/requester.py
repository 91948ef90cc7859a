"""Route requester: for each request, opens one dialog with the routing service (BCN).

A dialog is also opened to report to the service that one of its routes has failed (BCN-5).

Reads:  routes missing in classification, the state of request dialogs, failures of destinations.
Calls:  verbs.sends, in its own transactions: it begins, sends and ends as any program would.
Never:  creates a route: the service does (BCN-6). Receives no messages: the state of a request's
        dialog shows the outcome.
Wakes:  when a route is first missing, when a request dialog ends, at the pass.
Fails:  together with a failing store; a request that cannot be sent counts as failed, and is
        retried.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial

import msgspec

from brokerd.broker.blocked import settle
from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.clock import Clock
from brokerd.dynamic_routing.made_routes import Made, MadeRoutes
from brokerd.dynamic_routing.requests import (
    MOST_OPEN,
    Form,
    Key,
    Requests,
    body_of,
    failed_body_of,
)
from brokerd.errors import BrokerError, StoreFault
from brokerd.ids import BrokerId, Handle, show
from brokerd.model import (
    CONFIGURATION_NOTICE,
    CONFIGURATION_SERVICE,
    FAILED_ROUTE,
    MISSING_BINDING,
    MISSING_ROUTE,
    ROUTING_SERVICE,
    Route,
)
from brokerd.protocol.transitions import State
from brokerd.routing.classify import Delayed
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import DYNAMIC_ROUTING
from brokerd.verbs import ends, sends

_ACTOR = "dynamic routing"
_OPEN = frozenset({State.STARTED_OUTBOUND, State.CONVERSING})
_TO_END = frozenset({*_OPEN, State.DISCONNECTED_INBOUND, State.ERROR})
_PAGE = 1000
_MANY = "too many routes are asked for already, so this one waits for its turn"


class RequesterOptions(msgspec.Struct, frozen=True):
    """Settings of dynamic routing (BCN-10, BCN-15)."""

    lifetime: int = 300
    """Lifetime of a request's dialog in seconds: the time that a request may take."""
    form: Form = Form.XML
    most_open: int = MOST_OPEN
    """Largest number of requests open at a time (BCN-8)."""
    failures: int = 3
    """Number of failed attempts in a row at its address after which a route is reported (BCN-5)."""


class RouteRequester:
    """The requester of one instance. One task at a time works on its requests."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        clock: Clock,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
        log: Log,
        options: RequesterOptions,
        answered: Callable[[], None],
        failures: Callable[[str], int],
    ) -> None:
        """Create the requester.

        `answered`: called when requests have ended, to classify waiting dialogs again. `failures`:
        returns the number of failed attempts in a row at an address."""
        self._brokers = brokers
        self._clock = clock
        self._spawn = spawn
        self._log = log
        self._options = options
        self._answered = answered
        self._requests = Requests(most_open=options.most_open)
        self._failures = failures
        self._made = MadeRoutes(failures=options.failures)
        self._dialogs: dict[Key | Made, Handle] = {}
        self._before: dict[Key, frozenset[Route]] = {}
        """Routes to the requested service that existed before each request."""
        self._to_ask: list[Key] = []
        self._to_report: list[Made] = []
        self._to_tidy: set[str] = set()
        """Names of opened brokers in which requests of an earlier run are to be ended."""
        self._working: asyncio.Task[None] | None = None
        self._again = self._stopped = self._news = False
        self.outcomes: Counter[str] = Counter()
        """Numbers, since the start, of requests sent (`asked`), answered and failed, and of failed
        routes reported to the service (MON-9)."""

    # Events.

    def missing(self, broker: Broker, service: str, broker_id: BrokerId | None) -> Delayed:
        """Request a route when it is first missing; return why the dialog waits (RTE-11)."""
        return self._missing(Key(broker.name, service, broker_id))

    def missing_binding(self, broker: Broker, service: str) -> Delayed:
        """Request a remote service binding when it is first missing (BCN-4).

        Return why the dialog waits."""
        return self._missing(Key(broker.name, service, None, is_binding=True))

    def _missing(self, key: Key) -> Delayed:
        if self._requests.missing(key, self._clock.monotonic()):
            self._to_ask.append(key)
            self._wake()
        return Delayed(
            self._requests.reason(key),
            _MANY if self._requests.waits_for_others(key) else "",
        )

    def is_dynamic(self, broker: str, route: str) -> bool:
        """Return whether the route was created in answer to a request since the start (MON-3)."""
        return self._made.has(broker, route)

    def begin(self, broker: Broker) -> None:
        """End the requests that an earlier run of the daemon left open in a broker (BCN-10)."""
        if ROUTING_SERVICE in broker.catalog_index.services:
            self._to_tidy.add(broker.name)
            self._wake()

    def arrived(self) -> None:
        """Wake the task, because a request dialog was ended or has failed."""
        if self._dialogs:
            self._wake()

    def fire(self) -> int:
        """Run the pass, every fifth tick: repeat requests for missing routes, report failed ones.

        Return the number of requests and reports (BCN-5, BCN-9)."""
        due = self._requests.due(self._clock.monotonic())
        self._to_ask += due
        routes = {name: one.store.catalog.routes for name, one in self._brokers.items()}
        failed = self._made.failed(routes, self._failures, self._clock.utc())
        room = self._options.most_open - len(self._dialogs) - len(due)
        self._to_report = [one for one in failed if one not in self._dialogs][: max(0, room)]
        if due or self._to_report or self._dialogs:
            self._wake()
        return len(due) + len(self._to_report)

    async def stop(self, seconds: float) -> None:
        """Start no further request; abandon work after `seconds`, for instance on a full disk."""
        self._stopped = True
        while self._working is not None:
            done, _ = await asyncio.wait({self._working}, timeout=seconds)
            if not done:
                break

    # One task.

    def _wake(self) -> None:
        self._again = True
        if self._working is None and not self._stopped:
            self._working = self._spawn(self._work())

    async def _work(self) -> None:
        try:
            while self._again and not self._stopped:
                self._again = False
                while self._to_tidy:
                    await self._tidy(self._brokers.get(self._to_tidy.pop()))
                asked, self._to_ask = self._to_ask, []
                for key in asked:
                    await self._ask(key)
                failed, self._to_report = self._to_report, []
                for made in failed:
                    await self._report(made)
                for about, handle in list(self._dialogs.items()):
                    await self._check(about, handle)
                self._to_ask += (turn := self._requests.next() if self._news else [])
                self._again |= bool(turn)
                if self._news:  # one call for all: each call classifies every waiting dialog
                    self._news = False
                    self._answered()
        finally:
            self._working = None

    async def _ask(self, key: Key) -> None:
        broker = self._brokers.get(key.broker)
        if broker is None or not broker.enabled:
            self._requests.ended(key, failed=True)
            return
        self._before[key] = frozenset(_routes_to(broker, key.service))
        kind = MISSING_BINDING if key.is_binding else MISSING_ROUTE
        why = await self._begin(broker, key, kind, body_of(key, self._options.form))
        if why is not None:
            self._over(key, failed=True, why=why)
            return
        self.outcomes["asked"] += 1
        handle = show(self._dialogs[key])
        self._log.info(DYNAMIC_ROUTING, subclass="asked", **_fields(key), handle=handle)

    async def _report(self, made: Made) -> None:
        """Report a failed route to the service, which may know a better one (BCN-5)."""
        broker = self._brokers.get(made.broker)
        if broker is None or not broker.enabled or not _routes_to(broker, CONFIGURATION_SERVICE):
            return
        failures = self._failures(made.address)
        body = failed_body_of(
            made.service, made.broker_id, made.name, made.address, self._options.form
        )
        if await self._begin(broker, made, FAILED_ROUTE, body) is not None:
            return  # the next pass retries
        self._made.reported(made, failures)
        self.outcomes["route_failed"] += 1
        self._log.warning(
            DYNAMIC_ROUTING,
            subclass="route_failed",
            broker=made.broker,
            service=made.service,
            route=made.name,
            address=made.address,
            failures=failures,
        )

    async def _begin(
        self, broker: Broker, about: Key | Made, message_type: str, body: bytes
    ) -> str | None:
        """Open a dialog with the service and send the body; return why this failed, or None."""
        handle = Handle(broker.ids.fresh())
        options = sends.DialogOptions(
            contract=CONFIGURATION_NOTICE, lifetime=self._options.lifetime, by_broker=True
        )
        tx = Transaction(broker, _ACTOR)
        begin = partial(
            sends.begin_dialog, tx, handle, ROUTING_SERVICE, CONFIGURATION_SERVICE, options
        )
        try:
            await settle(begin)
            await settle(lambda: sends.send(tx, (handle,), message_type, body))
        except StoreFault:
            raise
        except BrokerError as error:
            tx.roll_back()
            return error.message
        except BaseException:
            tx.roll_back()
            raise
        self._dialogs[about] = handle
        await tx.committed()
        return None

    async def _check(self, about: Key | Made, handle: Handle) -> None:
        broker = self._brokers.get(about.broker)
        if broker is None:
            del self._dialogs[about]
            if isinstance(about, Key):
                self._requests.ended(about, failed=True)
            return
        # The state of the dialog shows the outcome: if it ended without an error, the service has
        # answered; in every other case the request has failed (BCN-7, BCN-10).
        live = await settle(lambda: broker.endpoints.look_up(handle))
        if live is not None and live.endpoint.state in _OPEN:
            return
        failed = live is None or live.endpoint.state is not State.DISCONNECTED_INBOUND
        why = "the dialog is gone" if live is None else live.endpoint.error_text or ""
        await _close(broker, live)
        del self._dialogs[about]
        if isinstance(about, Made):
            return  # only the routes show the service's answer
        if not failed and not about.is_binding:
            self._made.answered(
                about.broker, self._before[about], _routes_to(broker, about.service)
            )
        self._over(about, failed=failed, why=why)

    def _over(self, key: Key, *, failed: bool, why: str) -> None:
        self._before.pop(key, None)
        self._requests.ended(key, failed=failed)
        self.outcomes["failed" if failed else "answered"] += 1
        if failed:
            self._log.warning(DYNAMIC_ROUTING, subclass="failed", **_fields(key), reason=why)
        else:
            self._log.info(DYNAMIC_ROUTING, subclass="answered", **_fields(key))
        self._news = True

    async def _tidy(self, broker: Broker | None) -> None:
        """End the request dialogs of an earlier run of the daemon."""
        after = 0
        while broker is not None and broker.enabled:
            where = {"service_id": [ROUTING_SERVICE]}
            page = await broker.store.listings.endpoints(after, _PAGE, where, None)
            known = set(self._dialogs.values())
            for endpoint in page.rows:
                if endpoint.handle not in known and endpoint.state in _TO_END:
                    found = partial(broker.endpoints.look_up, endpoint.handle)
                    await _close(broker, await settle(found))
            if page.next is None:
                return
            after = page.next


async def _close(broker: Broker, live: Live | None) -> None:
    """End this side of a dialog, unless it has ended already."""
    if live is None or live.endpoint.state not in _TO_END:
        return
    tx = Transaction(broker, _ACTOR)
    try:
        await settle(lambda: ends.end(tx, (live.endpoint.handle,), None, None))
    except StoreFault:
        raise
    except BrokerError:  # the dialog has ended in the meantime
        tx.roll_back()
        return
    await tx.committed()


def _routes_to(broker: Broker, service: str) -> list[Route]:
    return [one for one in broker.store.catalog.routes.values() if one.service_name == service]


def _fields(key: Key) -> dict[str, object]:
    named = None if key.broker_id is None else show(key.broker_id)
    kind = "binding" if key.is_binding else "route"
    return {"broker": key.broker, "service": key.service, "broker_id": named, "kind": kind}
