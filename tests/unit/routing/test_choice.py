"""The turns of the balancer."""

from random import Random

import pytest

from brokerd.routing.choice import BALANCER_LIMIT, Balancer


@pytest.mark.rule("RTE-25")
def test_a_preview_takes_no_turn() -> None:
    balancer = Balancer(rng=Random(1))
    ahead = balancer.preview()
    seen = [ahead.pick((b"", "S", "route"), 3) for _ in range(4)]
    taken = [balancer.pick((b"", "S", "route"), 3) for _ in range(4)]

    assert seen == taken
    assert sorted(taken[:3]) == [0, 1, 2]
    assert taken[3] == taken[0]


@pytest.mark.rule("XMT-10")
def test_the_balancer_forgets_the_names_unused_longest() -> None:
    balancer = Balancer(rng=Random(1))
    first = balancer.pick((b"", "used", "id"), 1000)
    for number in range(BALANCER_LIMIT - 1):
        balancer.pick((b"", f"s{number}", "id"), 1000)
    assert balancer.pick((b"", "used", "id"), 1000) == (first + 1) % 1000
    for number in range(5):
        balancer.pick((b"", f"more{number}", "id"), 1000)
    assert len(balancer._turns) == BALANCER_LIMIT
    assert balancer.pick((b"", "used", "id"), 1000) == (first + 2) % 1000
