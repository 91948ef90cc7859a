"""Timers of owed acknowledgements, and of retransmissions."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.broker.ack_state import AckState
from brokerd.broker.outgoing_route import OutgoingRoute
from brokerd.clock import Instant
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
