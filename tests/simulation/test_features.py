"""Features: each is in enough seeds of the suite, and only in a part of them (HK-9)."""

from collections import Counter

import pytest

from brokerd.testing.rng import Streams
from tests.engine.simulation.features import MIDDLE, PARTNER, WORK
from tests.engine.simulation.plan import draw
from tests.simulation.test_seeds import BATCH, BATCHES, FIRST

PLANS = [draw(Streams(seed)) for seed in range(FIRST, FIRST + BATCH * BATCHES)]


@pytest.mark.rule("HK-9")
def test_each_feature_is_in_a_part_of_the_seeds() -> None:
    found = Counter(
        name
        for plan in PLANS
        for name in (
            *(("mirrored",) if plan.features.mirrored else ()),
            *(("routes",) if plan.features.routes else ()),
            *(("doubled",) if plan.features.doubled else ()),
            *(("asking",) if plan.features.asking else ()),
            *(("wire",) if plan.features.wire else ()),
            *plan.features.work,
        )
    )
    assert found.keys() == {"mirrored", "routes", "doubled", "asking", "wire", *WORK}
    assert all(5 <= count <= len(PLANS) // 3 for count in found.values()), found


@pytest.mark.rule("HK-9")
def test_what_excludes_each_other_is_never_drawn_together() -> None:
    for plan in PLANS:
        chosen = plan.features
        assert chosen.mirrored == (PARTNER in plan.instances)
        assert not (chosen.mirrored and MIDDLE in plan.instances)
        assert not (chosen.doubled and (chosen.asking or chosen.mirrored))
        assert chosen.asking not in (MIDDLE, PARTNER)
        if chosen.mirrored:
            assert chosen.asking != "west"
