"""Series for the objects in most trouble, and a sum of the others that never falls (MON-33)."""

import asyncio
from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from brokerd.admin.metrics_totals import OTHER, STEP, Bounded, Kind, Totals
from brokerd.telemetry.metric_names import Scope
from brokerd.telemetry.metrics import Histogram


class Thing:
    """Something that counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.trouble = 0
        self.count = 0
        self.times = Histogram()

    def work(self, count: int) -> None:
        self.count += count
        for number in range(count):
            self.times.add(100 * number)


KIND = Kind[Thing](
    scope=Scope.QUEUE,
    labels=lambda one: {"broker": "main", "queue": one.name},
    trouble=lambda one: (float(one.trouble),),
    counters=lambda one: {"enqueued": one.count},
    gauges=lambda one: {"ready": float(one.trouble), "oldest_s": float(one.trouble)},
    histograms=lambda one: {"wait_us": one.times},
    greatest=frozenset({"oldest_s"}),
)


def collect(bounded: Bounded[Thing], things: Sequence[Thing]) -> list[Totals]:
    async def breathe() -> None:
        await asyncio.sleep(0)

    return asyncio.run(bounded.collect(things, breathe))


def named(found: list[Totals]) -> dict[str, Totals]:
    return {one.labels["queue"]: one for one in found}


@pytest.mark.rule("MON-33")
def test_as_many_as_the_limit_have_series_of_their_own() -> None:
    things = [Thing(str(number)) for number in range(5)]
    found = collect(Bounded(KIND, most=5), things)
    assert set(named(found)) == {"0", "1", "2", "3", "4"}


@pytest.mark.rule("MON-33")
def test_those_in_most_trouble_have_series_and_the_others_are_added_up() -> None:
    things = [Thing(str(number)) for number in range(5)]
    for number, one in enumerate(things):
        one.trouble = number
        one.work(10)
    found = named(collect(Bounded(KIND, most=2), things))
    assert set(found) == {"3", "4", OTHER}
    assert found[OTHER].labels == {"broker": "", "queue": OTHER}
    assert found[OTHER].counters == {"enqueued": 30}
    assert found[OTHER].gauges == {"ready": 0.0 + 1 + 2, "oldest_s": 2.0}
    assert sum(found[OTHER].histograms["wait_us"].counts) == 30


@pytest.mark.rule("MON-33")
def test_of_two_in_the_same_trouble_the_one_shown_before_stays() -> None:
    things = [Thing(str(number)) for number in range(50)]
    bounded = Bounded(KIND, most=3)
    things[7].trouble = 1
    before = set(named(collect(bounded, things)))
    things[7].trouble = 0
    assert set(named(collect(bounded, things))) == before


@pytest.mark.rule("MON-33")
@pytest.mark.parametrize("seed", range(20))
def test_no_counter_of_the_sum_falls_and_nothing_is_lost(seed: int) -> None:
    rng = Random(seed)
    things = [Thing(str(number)) for number in range(12)]
    bounded = Bounded(KIND, most=3)
    before, increase = named(collect(bounded, things))[OTHER], 0
    shown = {one.labels["queue"]: one for one in collect(bounded, things)}
    for _ in range(30):
        worked: dict[str, int] = {}
        for one in things:
            worked[one.name] = rng.randrange(4)
            one.work(worked[one.name])
            one.trouble = rng.randrange(5)
            if rng.random() < 0.3:
                one.times.drain()  # the metrics log does
        found = named(collect(bounded, things))
        other = found[OTHER]
        assert other.counters["enqueued"] >= before.counters.get("enqueued", 0)
        times, times_before = other.histograms.get("wait_us"), before.histograms.get("wait_us")
        if times is not None and times_before is not None:
            assert all(a >= b for a, b in zip(times.counts, times_before.counts, strict=True))
        increase += sum(count for name, count in worked.items() if name not in found)
        assert other.counters["enqueued"] == increase
        if times is not None:
            assert sum(times.counts) == increase
        before = other
    assert set(shown)


@pytest.mark.rule("MON-33")
def test_what_is_gone_is_forgotten_and_what_is_made_again_counts_anew() -> None:
    things = [Thing(str(number)) for number in range(4)]
    bounded = Bounded(KIND, most=1)
    for one in things:
        one.work(5)
    things[0].trouble = 1
    assert named(collect(bounded, things))[OTHER].counters == {"enqueued": 15}
    again = Thing("3")
    again.work(2)
    assert named(collect(bounded, [*things[:3], again]))[OTHER].counters == {"enqueued": 17}
    assert named(collect(bounded, things[:1]))[OTHER].counters == {"enqueued": 17}
    assert len(bounded._last) == 1


@pytest.mark.rule("MON-33")
def test_what_has_no_figures_is_not_added_up_and_is_shown_last() -> None:
    asked: list[str] = []

    def counters(one: Thing) -> dict[str, int]:
        asked.append(one.name)
        return {"enqueued": one.count}

    def trouble(one: Thing) -> tuple[float, ...]:
        return (float(one.trouble),) if one.count else ()

    kind = msgspec.structs.replace(KIND, counters=counters, trouble=trouble)
    things = [Thing(str(number)) for number in range(100)]
    things[70].work(1)
    bounded = Bounded(kind, most=2)
    found = named(collect(bounded, things))
    assert "70" in found
    assert len(found) == 3
    assert set(asked) == {"0", *found} - {OTHER}
    things[80].work(5)
    things[80].trouble = things[81].trouble = 1
    things[81].work(1)
    assert named(collect(bounded, things))[OTHER].counters == {"enqueued": 0}
    things[70].work(2)
    assert named(collect(bounded, things))[OTHER].counters == {"enqueued": 2}


@pytest.mark.rule("MON-34")
def test_other_work_runs_between_a_few_hundred_objects() -> None:
    breaths = 0

    async def breathe() -> None:
        nonlocal breaths
        breaths += 1

    things = [Thing(str(number)) for number in range(STEP * 5)]
    asyncio.run(Bounded(KIND, most=2).collect(things, breathe))
    assert breaths >= 10
