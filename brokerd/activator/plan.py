"""Plan: how many instances of a program are started, and when (ACT-41, ACT-42). PURE.

Reads:  what happened, the time.
Never:  starts a program: the activator does, and tells what became of it. `now` is monotonic.
"""

from enum import StrEnum
from typing import Final

import msgspec

from brokerd.activator.config import Instances

FIRST: Final = 1.0
MOST: Final = 60.0
"""Seconds: an instance that is to run always is started again after 1, 2, 4 ... at most 60 s."""
STEADY: Final = 30.0
"""Seconds after which an instance that ended is not a failure any more."""


class Answer(StrEnum):
    """What a notification leads to."""

    START = "start"
    AT_MAX = "at_max"
    """As many run as may: it is consumed without effect."""


class Plan(msgspec.Struct, frozen=True):
    """One application: how many instances run, and since when it fails."""

    instances: Instances
    running: int = 0
    """Those that an activator before this one has left behind count as well (ACT-45)."""
    failures: int = 0
    """Instances in a row that ended soon, or badly."""
    restart_at: float = 0.0
    """Not before then is one started so that `min` of them run."""


def notified(plan: Plan) -> Answer:
    """One more reader would be useful."""
    return Answer.START if plan.running < plan.instances.max else Answer.AT_MAX


def started(plan: Plan, count: int = 1) -> Plan:
    """So many more run."""
    return msgspec.structs.replace(plan, running=plan.running + count)


def ended(plan: Plan, *, failed: bool, lived: float, now: float) -> Plan:
    """One of them is gone; `lived`: seconds from its start."""
    failures = plan.failures + 1 if failed or lived < STEADY else 0
    wait = min(MOST, FIRST * 2.0 ** min(failures - 1, 16)) if failures else 0.0
    return msgspec.structs.replace(
        plan, running=plan.running - 1, failures=failures, restart_at=now + wait
    )


def missing(plan: Plan, now: float) -> int:
    """How many are to be started now so that `min` of them run."""
    if now < plan.restart_at:
        return 0
    return max(0, plan.instances.min - plan.running)


def next_restart(plan: Plan) -> float | None:
    """When `missing` is to be asked again; None = when one has ended."""
    return plan.restart_at if plan.running < plan.instances.min else None
