"""The simulated clock: monotonic time from the loop, UTC that may be wrong and may jump."""

from datetime import timedelta

import pytest

from brokerd.clock import SECOND, Clock, Instant
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import VirtualLoop, run
from brokerd.testing.rng import Streams

START = Instant(1_800_000_000 * SECOND)


@pytest.mark.rule("HK-1", "REL-24")
def test_utc_follows_skew_and_jumps_and_monotonic_does_not() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> list[tuple[float, int]]:
        clock = SimClock(loop, utc_start=START, skew=timedelta(seconds=-2))
        as_protocol: Clock = clock
        seen = [(as_protocol.monotonic(), clock.utc() - START)]
        await clock.sleep_until(10.5)
        seen.append((clock.monotonic(), clock.utc() - START))
        clock.jump(timedelta(hours=-1))
        seen.append((clock.monotonic(), clock.utc() - START))
        assert clock.skew == timedelta(hours=-1, seconds=-2)
        return seen

    hour = 3600 * SECOND
    assert run(main, seed=1) == [
        (0.0, -2 * SECOND),
        (10.5, 8_500_000),
        (10.5, 8_500_000 - hour),
    ]


@pytest.mark.rule("HK-1")
def test_a_clock_made_later_agrees_with_an_older_one() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> bool:
        first = SimClock(loop, utc_start=START)
        await first.sleep_until(100)
        return SimClock(loop, utc_start=START).utc() == first.utc() == START + 100 * SECOND

    assert run(main, seed=1)


@pytest.mark.rule("HK-1")
def test_a_deadline_in_the_past_gives_way_once() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> list[str]:
        clock = SimClock(loop, utc_start=START)
        await clock.sleep_until(5)
        seen: list[str] = []
        loop.call_soon(seen.append, "other")
        await clock.sleep_until(1)
        seen.append("self")
        assert clock.monotonic() == 5
        return seen

    assert run(main, seed=1) == ["other", "self"]
