"""How many instances of a program are started, and when (ACT-41, ACT-42)."""

import pytest

from brokerd.activator.config import Instances
from brokerd.activator.plan import (
    MOST,
    STEADY,
    Answer,
    Plan,
    ended,
    missing,
    next_restart,
    notified,
    started,
)


@pytest.mark.rule("ACT-41")
def test_a_notification_starts_one_while_fewer_than_max_run() -> None:
    plan = Plan(Instances(max=2))
    for _ in range(2):
        assert notified(plan) is Answer.START
        plan = started(plan)
    assert notified(plan) is Answer.AT_MAX
    assert notified(ended(plan, failed=False, lived=1, now=0)) is Answer.START


@pytest.mark.rule("ACT-42")
def test_min_instances_run_whatever_is_told() -> None:
    plan = Plan(Instances(min=2, max=3))
    assert missing(plan, 0) == 2
    plan = started(plan, 2)
    assert (missing(plan, 0), next_restart(plan)) == (0, None)
    plan = ended(started(plan), failed=False, lived=STEADY, now=5)
    assert missing(plan, 5) == 0


@pytest.mark.rule("ACT-42")
def test_one_that_ends_is_started_again_later_and_later() -> None:
    plan, now, waits = Plan(Instances(min=1)), 0.0, []
    for _ in range(8):
        plan = ended(started(plan), failed=True, lived=0.1, now=now)
        assert missing(plan, now) == 0
        again = next_restart(plan)
        assert again is not None
        waits.append(again - now)
        now = again
        assert missing(plan, now) == 1
    assert waits == [1, 2, 4, 8, 16, 32, MOST, MOST]
    plan = ended(started(plan), failed=False, lived=STEADY, now=now)
    assert missing(plan, now) == 1


@pytest.mark.rule("ACT-42")
@pytest.mark.parametrize(
    ("failed", "lived", "wait"),
    [
        (True, 0.1, 1),
        (True, STEADY, 1),
        (True, 3600, 1),
        (False, 0.1, 1),
        (False, STEADY - 0.1, 1),
        (False, STEADY, 0),
    ],
)
def test_one_that_fails_or_ends_soon_is_not_started_again_at_once(
    failed: bool, lived: float, wait: float
) -> None:
    plan = ended(started(Plan(Instances(min=1))), failed=failed, lived=lived, now=100)
    assert missing(plan, 100) == (0 if wait else 1)
    assert next_restart(plan) == 100 + wait


@pytest.mark.rule("ACT-45")
def test_survivors_count_until_they_are_gone() -> None:
    plan = started(Plan(Instances(min=2, max=2)), 2)
    assert notified(plan) is Answer.AT_MAX
    assert missing(plan, 0) == 0
    plan = ended(plan, failed=False, lived=STEADY, now=1)
    assert missing(plan, 1) == 1
