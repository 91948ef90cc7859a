"""What counts, and until when."""

import pytest

from brokerd.bench.tally import Counters, Tally, Times
from tests.unit.client.scripted import MovedClock


async def test_what_is_under_way_at_the_end_counts_with_the_time_it_took() -> None:
    clock = MovedClock()
    began = clock.monotonic()
    tally = Tally(Times(began, began, began + 1.0), clock, Counters("", 0))
    await clock.advance(2.0)
    tally.add(5, began)  # sends are counted while they are many
    tally.add_each(3, [began, began + 1.0])
    tally.late(0.25)
    found = tally.outcome(0.5)
    assert (found.counted, found.total) == (3, 8)
    assert found.last - found.began == pytest.approx(2.0)
    assert sum(found.latency.values()) == 2
    assert (found.most_latency_us, found.most_lag_us) == (2_000_000, 250_000)
    assert (sum(found.lag.values()), found.cpu) == (1, 0.5)
