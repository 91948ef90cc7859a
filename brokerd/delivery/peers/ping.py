"""Pinging: follows the routing of a service name out and back, and reports each hop (NBT-7).

A TRACE may carry a question about a dialog to the other side of it, and the report back (MON-55).

Reads:  routing, the state of destinations.      Calls: the transport, by `send` and `send_to`.
Never:  touches a dialog, a queue or a store, or uses a turn of the balancer.
Wakes:  when a TRACE arrives, when a connection opens that a TRACE waits for.
Fails:  if a TRACE is lost, the requester's time-out ends the ping with the steps known until then.

A failure is reported hop by hop, back along the path the TRACE came by: each instance remembers for
a while which neighbour brought which TRACE. So a missing route back can be reported, too.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.delivery.peers.router import Router
from brokerd.ids import BrokerId, IdSource, InstanceId
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.inquiry import Inquiry, SideReport
from brokerd.protocol.trace import MOST_HOPS, MOST_STEPS, Leg, Step, Trace
from brokerd.routing.classify import ArrivalKey, DialogKey
from brokerd.routing.explain import Explanation
from brokerd.transport.destination import DestinationState, DestinationStatus

CONNECT_WAIT: Final = 5.0
"""Seconds that a TRACE waits for a connection before the address is reported as unreachable."""
MOST_DETAIL: Final = 500
MOST_REMEMBERED: Final = 1000
MOST_IN_A_SECOND: Final = 50
"""Limit of TRACEs processed in a second; each walks all routes, and peers may send any number. As
many reports are passed on, counted apart so that questions do not keep reports away."""
_TOLD: Final = {Leg.OUT: Leg.TOLD_OUT, Leg.BACK: Leg.TOLD_BACK}


class Pong(msgspec.Struct, frozen=True):
    """The outcome of a ping."""

    steps: tuple[Step, ...]
    is_complete: bool
    """Whether the TRACE has gone out and come back."""
    seconds: float


class Reported(msgspec.Struct, frozen=True):
    """The outcome of an inquiry about the other side of a dialog."""

    steps: tuple[Step, ...]
    """The way of the question, and that of its answer."""
    report: SideReport | None
    """The report of the other side; None = none came."""
    seconds: float


Reporter = Callable[[Broker, Trace, Callable[[SideReport], None]], None]
"""Function that makes the report that a TRACE asks a broker for, and passes it on later."""


def _answers_nothing(_broker: Broker, _trace: Trace, _done: Callable[[SideReport], None]) -> None:
    """Make no report."""


class Pinging:
    """Sender, forwarder and reporter of TRACEs; one per instance."""

    def __init__(
        self,
        *,
        name: str,
        brokers: Mapping[str, Broker],
        router: Router,
        clock: Clock,
        ids: IdSource,
        status: Callable[[str], DestinationStatus],
        send: Callable[[InstanceId, Trace], bool],
        send_to: Callable[[str, Trace], bool],
        answers: bool,
    ) -> None:
        """Create the sender of TRACEs.

        `send` uses the open connection of a neighbour. `send_to` sends to an address; False = a
        connection is being opened. `answers`: whether neighbours get any answer (NBT-4)."""
        self._name = name
        self._brokers = brokers
        self._router = router
        self._clock = clock
        self._ids = ids
        self._status = status
        self._send = send
        self._send_to = send_to
        self._answers = answers
        self._pending: dict[bytes, tuple[asyncio.Future[bool], list[Trace]]] = {}
        self._came: OrderedDict[tuple[bytes, Leg], InstanceId] = OrderedDict()
        self._waiting: dict[str, dict[bytes, Trace]] = {}
        self._asked, self._told = _Limit(clock), _Limit(clock)
        self.reporter: Reporter = _answers_nothing
        """Makes the reports that inquiries ask for; set by `instance.assembly`."""

    async def ping(
        self,
        broker: Broker,
        service: str,
        *,
        broker_id: BrokerId | None,
        from_service: str,
        wait: float,
    ) -> Pong:
        """Ping a service from a broker of this instance; wait at most `wait` seconds."""
        began = self._clock.monotonic()
        trace = Trace(
            self._ids.fresh(),
            Leg.OUT,
            service,
            broker_id or b"",
            from_service,
            broker.broker_id,
            MOST_HOPS,
        )
        last, done = await self._send_and_wait(broker, trace, wait)
        return Pong(last.steps, done, self._clock.monotonic() - began)

    async def inquire(self, broker: Broker, endpoint: DialogEndpoint, *, wait: float) -> Reported:
        """Ask the other side of a dialog of `broker` how it is; wait at most `wait` seconds.

        The question goes the way of the dialog's messages, its answer the way of the replies."""
        began = self._clock.monotonic()
        near = endpoint.service, broker.broker_id
        far = endpoint.far_service, endpoint.far_broker
        target, initiator = (far, near) if endpoint.is_initiator else (near, far)
        trace = Trace(
            self._ids.fresh(),
            Leg.OUT if endpoint.is_initiator else Leg.BACK,
            target[0],
            target[1] or b"",
            initiator[0],
            initiator[1] or b"",
            MOST_HOPS,
            (),
            Inquiry(endpoint.conversation_id, not endpoint.is_initiator),
        )
        last, _ = await self._send_and_wait(broker, trace, wait)
        report = None if last.inquiry is None else last.inquiry.report
        return Reported(last.steps, report, self._clock.monotonic() - began)

    async def _send_and_wait(self, broker: Broker, trace: Trace, wait: float) -> tuple[Trace, bool]:
        """Return the TRACE with the most steps that has come back, and whether it is complete."""
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        last = [trace]
        self._pending[trace.number] = over, last
        try:
            self._leave(broker, trace)
            await asyncio.wait({over}, timeout=wait)
        finally:
            del self._pending[trace.number]
        return last[0], over.done() and over.result()

    def process(self, neighbour: InstanceId, trace: Trace) -> None:
        """Process a TRACE of a neighbour."""
        if trace.leg in (Leg.TOLD_BACK, Leg.TOLD_OUT):
            if not self._told.is_reached():
                self._report(trace, is_complete=False)
            return
        if not self._answers or self._asked.is_reached() or len(trace.steps) >= MOST_STEPS:
            return
        self._came.setdefault((trace.number, trace.leg), neighbour)  # first: routes may circle
        if len(self._came) > MOST_REMEMBERED:
            self._came.popitem(last=False)
        out = trace.leg is Leg.OUT
        service, named = (
            (trace.service, trace.broker_id) if out else (trace.from_service, trace.from_broker)
        )
        key = ArrivalKey(service, BrokerId(named) if named else None, out, trace.hops)
        any_broker = next(iter(self._brokers.values()))
        self._follow(trace, self._router.explain(any_broker, key), "")

    def came_online(self, address: str) -> None:
        """Send the TRACEs that waited for a connection to an address."""
        for trace in self._waiting.pop(address, {}).values():
            self._pass_on(address, trace)

    def _leave(self, broker: Broker, trace: Trace) -> None:
        """Start the way out or back of a TRACE at a broker of this instance."""
        out = trace.leg is Leg.OUT
        service, named = (
            (trace.service, trace.broker_id) if out else (trace.from_service, trace.from_broker)
        )
        key = DialogKey(service, BrokerId(named) if named else None, broker.broker_id, out)
        self._follow(trace, self._router.explain(broker, key), broker.name)

    def _follow(self, trace: Trace, found: Explanation, broker: str) -> None:
        """Add this instance's routing decision to a TRACE, and act on it."""
        step = Step(
            str(trace.leg),
            self._name,
            broker,
            found.outcome,
            next((one.step for one in found.steps if one.routes and one.step.isdigit()), ""),
            found.route,
            found.where,
            found.reason,
            "",
        )
        hops = trace.hops - found.hops_used
        trace = msgspec.structs.replace(trace, steps=(*trace.steps, step), hops=max(0, hops))
        self._note(trace)
        if found.outcome == "local":
            self._arrive(trace, self._brokers[found.where])
        elif found.outcome == "remote":
            self._pass_on(found.where, trace)
        else:
            self._report(trace, is_complete=False)

    def _arrive(self, trace: Trace, broker: Broker) -> None:
        asks = trace.inquiry is not None and trace.inquiry.report is None
        if asks:
            self.reporter(broker, trace, lambda report: self._answer(broker, trace, report))
        elif trace.leg is Leg.OUT and trace.inquiry is None:
            # the reply goes by the routes of this broker (RTE-2)
            back = msgspec.structs.replace(
                trace, leg=Leg.BACK, broker_id=broker.broker_id, hops=MOST_HOPS
            )
            self._leave(broker, back)
        elif trace.number in self._pending:
            self._report(trace, is_complete=True)
        else:
            text = "replies come to this instance, and not to the one that asks"
            self._report(_amended(trace, "", text), is_complete=False)

    def _answer(self, broker: Broker, trace: Trace, report: SideReport) -> None:
        """Send the report that a TRACE asks for back to the requester, as a message would go."""
        assert trace.inquiry is not None, "it asks"
        answered = msgspec.structs.replace(
            trace,
            leg=Leg.BACK if trace.leg is Leg.OUT else Leg.OUT,
            hops=MOST_HOPS,
            inquiry=msgspec.structs.replace(trace.inquiry, report=report),
        )
        self._leave(broker, answered)

    def _pass_on(self, address: str, trace: Trace) -> None:
        if self._send_to(address, trace):
            return
        if self._status(address).state is DestinationState.SUPPRESSED:
            self._unreachable(address, trace)
            return
        self._waiting.setdefault(address, {})[trace.number] = trace
        asyncio.get_running_loop().call_later(CONNECT_WAIT, self._give_up, address, trace)

    def _give_up(self, address: str, trace: Trace) -> None:
        waiting = self._waiting.get(address, {})
        if waiting.get(trace.number) is trace:
            del waiting[trace.number]
            if not waiting:
                del self._waiting[address]
            self._unreachable(address, trace)

    def _unreachable(self, address: str, trace: Trace) -> None:
        status = self._status(address)
        text = status.detail[:MOST_DETAIL] or "no connection yet"
        self._report(_amended(trace, status.reason or "connect_failed", text), is_complete=False)

    def _report(self, trace: Trace, *, is_complete: bool) -> None:
        """Report the outcome to the requester, back along the path the TRACE came by."""
        pending = self._pending.get(trace.number)
        if pending is not None:
            self._note(trace)
            if not pending[0].done():
                pending[0].set_result(is_complete)
            return
        # A failure on the way of the answer is reported in two legs: first to the instance where
        # the TRACE turned round, then from there to the requester. A report never goes from the
        # second leg to the first, and never gets its hops back, so it ends whoever has forgotten
        # the requester.
        asked, answered = Leg.OUT, Leg.BACK
        if trace.inquiry is not None and trace.inquiry.about_initiator:  # the target asks
            asked, answered = answered, asked
        leg, neighbour = _TOLD[answered], None
        if trace.leg in (answered, leg):
            neighbour = self._came.get((trace.number, answered))
        if neighbour is None:
            leg, neighbour = _TOLD[asked], self._came.get((trace.number, asked))
        hops = trace.hops - 1 if trace.leg in _TOLD.values() else MOST_HOPS
        if neighbour is not None and hops >= 0:
            # An answer that cannot go the way of the dialog's messages must not go another way.
            inquiry = trace.inquiry
            if inquiry is not None and inquiry.report is not None:
                inquiry = msgspec.structs.replace(inquiry, report=None)
            told = msgspec.structs.replace(trace, leg=leg, hops=hops, inquiry=inquiry)
            self._send(neighbour, told)

    def _note(self, trace: Trace) -> None:
        """Keep the steps known so far, in case the ping times out."""
        pending = self._pending.get(trace.number)
        if pending is not None and len(trace.steps) >= len(pending[1][0].steps):
            pending[1][0] = trace


class _Limit:
    """Limit of the TRACEs of one kind in a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second, self._dealt = 0.0, 0

    def is_reached(self) -> bool:
        """Count one more TRACE; return whether it is too many."""
        now = self._clock.monotonic()
        if now - self._second >= 1.0:
            self._second, self._dealt = now, 0
        self._dealt += 1
        return self._dealt > MOST_IN_A_SECOND


def _amended(trace: Trace, reason: str, detail: str) -> Trace:
    """Return the TRACE with the reason for the failure of its last step."""
    last = msgspec.structs.replace(trace.steps[-1], reason=reason, detail=detail)
    return msgspec.structs.replace(trace, steps=(*trace.steps[:-1], last))
