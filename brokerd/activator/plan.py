"""Plan: how many instances of a program are started, and when (ACT-41, ACT-42). PURE.

Reads:  what happened, the time.
Never:  starts a program: the activator does, and reports its end. `now` is monotonic.
"""

from enum import StrEnum
from typing import Final

import msgspec

from brokerd.activator.config import Instances

FIRST: Final = 1.0
MOST: Final = 60.0
"""Seconds: an instance wanted by `min` is restarted after 1, 2, 4 ... at most 60 s."""
STEADY: Final = 30.0
"""Seconds of life after which an instance that ends without an error is no failure."""


class Answer(StrEnum):
    """Effect of a notification."""

    START = "start"
    AT_MAX = "at_max"
    """The maximum runs: the notification is consumed without effect."""


class Plan(msgspec.Struct, frozen=True):
    """One application: number of running instances, and its recent failures."""

    instances: Instances
    running: int = 0
    """Running instances, including those that an earlier activator has left (ACT-45)."""
    failures: int = 0
    """Instances in a row that ended soon, or with an error."""
    restart_at: float = 0.0
    """Time before which no instance is started to reach `min`."""


def notified(plan: Plan) -> Answer:
    """Return the effect of a notification."""
    return Answer.START if plan.running < plan.instances.max else Answer.AT_MAX


def started(plan: Plan, count: int = 1) -> Plan:
    """Return the plan with further running instances."""
    return msgspec.structs.replace(plan, running=plan.running + count)


def ended(plan: Plan, *, failed: bool, lived: float, now: float) -> Plan:
    """Return the plan after the end of an instance; `lived`: seconds from its start."""
    failures = plan.failures + 1 if failed or lived < STEADY else 0
    wait = min(MOST, FIRST * 2.0 ** min(failures - 1, 16)) if failures else 0.0
    return msgspec.structs.replace(
        plan, running=plan.running - 1, failures=failures, restart_at=now + wait
    )


def missing(plan: Plan, now: float) -> int:
    """Return the number of instances to start now to reach `min`."""
    if now < plan.restart_at:
        return 0
    return max(0, plan.instances.min - plan.running)


def next_restart(plan: Plan) -> float | None:
    """Return when to call `missing` again; None = when an instance has ended."""
    return plan.restart_at if plan.running < plan.instances.min else None
