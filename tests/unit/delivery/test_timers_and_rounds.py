"""The one timer of owed acks, that of retransmissions, and rounds of several brokers."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.broker.ack_state import AckState
from brokerd.broker.outgoing_route import OutgoingRoute
from brokerd.clock import Instant
from brokerd.delivery.boxcars import Boxcars
from brokerd.delivery.incoming.open_changesets import OpenChangesets
from brokerd.delivery.outgoing.timers import FEW, AckTimers, RetransmissionTimers
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import VirtualLoop, run
from brokerd.testing.rng import Streams

BROKER: Any = object()
SENDER: Any = SimpleNamespace(
    receive_sequence=0, receive_fragment=0, last_message=None, first_acked=False, is_initiator=True
)


def out(due: float | None = None) -> Any:
    live = SimpleNamespace(gone=False)
    return SimpleNamespace(
        acks=AckState(SENDER), route=OutgoingRoute(), held="", live=live,
        window=SimpleNamespace(due=due),
    )  # fmt: skip


@pytest.mark.rule("DLP-19")
def test_a_dialog_that_owes_anew_and_anew_holds_up_nobody() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> None:
        clock, told = SimClock(loop, utc_start=Instant(0)), []
        owed = AckTimers(clock=clock, delay=0.2, due=lambda _broker, one: told.append(one))
        busy, quiet = out(), out()
        owed.wait(BROKER, busy)
        owed.wait(BROKER, quiet)
        for _ in range(50):  # a fragment carries each, and the next one is owed
            await clock.sleep_until(clock.monotonic() + 0.01)
            busy.acks.ack_sent()
            owed.wait(BROKER, busy)
        assert told == [quiet]
        assert len(owed._line) <= 21  # what is owed within one wait

    run(main, seed=1)


@pytest.mark.rule("DLP-26", "DLP-27")
def test_a_timer_that_is_due_earlier_is_looked_at_earlier() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> None:
        clock, told = SimClock(loop, utc_start=Instant(0)), []
        now = clock.monotonic()
        timers = RetransmissionTimers(clock=clock, due=lambda one, _now: told.append(one))
        stuck, fresh = out(now + 64), out(now + 4)
        timers.arm(stuck)
        timers.arm(fresh)
        await clock.sleep_until(now + 5)
        assert told == [fresh]
        stuck.window.due = now + 9  # an acknowledgement has set its step back to 4 s
        timers.arm(stuck)
        await clock.sleep_until(now + 10)
        assert told == [fresh, stuck]
        stuck.window.due = None
        await clock.sleep_until(now + 70)
        assert told == [fresh, stuck]

    run(main, seed=1)


@pytest.mark.rule("DLP-27", "REL-25")
def test_dialogs_that_have_all_acknowledged_leave_the_timers_early() -> None:
    """Else a dialog of one message stays in memory until it would have been sent again."""

    async def main(loop: VirtualLoop, _streams: Streams) -> None:
        clock, told = SimClock(loop, utc_start=Instant(0)), []
        now = clock.monotonic()
        timers = RetransmissionTimers(clock=clock, due=lambda one, _now: told.append(one))
        stuck, later = out(now + 4), out(now + 4)
        timers.arm(stuck)
        timers.arm(later)
        later.window.due = None
        for at in range(10 * FEW):
            one = out(now + 4)
            timers.arm(one)
            one.window.due, one.live.gone = None if at % 2 else now + 4, not at % 2
        assert len(timers._heap) <= FEW
        later.window.due = now + 6
        timers.arm(later)
        await clock.sleep_until(now + 7)
        assert told == [stuck, later]

    run(main, seed=1)


@pytest.mark.rule("DLP-15", "REL-4")
def test_what_waits_for_one_broker_is_not_told_by_the_commit_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: dict[bytes, Any] = {}

    def join(self: Any, then: Any, *, urgent: bool) -> None:  # as a round has it
        joined[self.broker.broker_id] = then

    class Round:
        empty, touches_endpoints = False, True

        def __init__(self, broker: Any, _now: object) -> None:
            self.broker = broker

    Round.join = join  # type: ignore[attr-defined]
    monkeypatch.setattr("brokerd.delivery.incoming.open_changesets.Round", Round)
    rounds = OpenChangesets(SimpleNamespace(utc=lambda: 0))
    a, b = (SimpleNamespace(broker_id=name * 16) for name in (b"a", b"b"))
    rounds.of(a)  # type: ignore[arg-type]
    rounds.of(b)  # type: ignore[arg-type]
    told: list[str] = []
    rounds.finish(b.broker_id, urgent=True, then=lambda: told.append("b"))
    rounds.finish_all(urgent=True)
    joined[a.broker_id]()
    assert told == []
    joined[b.broker_id]()
    assert told == ["b"]


@pytest.mark.rule("TRN-43")
def test_acks_of_this_instance_do_not_wait_for_all_that_passes_through() -> None:
    def filled(name: bytes) -> Any:
        return lambda _address, _bytes, count, alone=True: [name] * count

    transmitter: Any = SimpleNamespace(level=lambda _address: None, fill=filled(b"ack"))
    forwarder: Any = SimpleNamespace(level=lambda _address: 5, fill=filled(b"other"))
    boxcars = Boxcars(transmitter=transmitter, forwarder=forwarder)
    firsts = {boxcars.fill("there", 1000, 2)[0] for _ in range(2)}
    assert firsts == {b"ack", b"other"}
