"""Plan: decides how many instances of a program are started, and when (ACT-41, ACT-42). PURE.

Reads:  starts and ends of instances, the time.
Never:  starts a program: the activator does, and reports its end. `now` is monotonic seconds.
"""

from enum import StrEnum
from typing import Final

import msgspec

from brokerd.activator.config import Instances

FIRST: Final = 1.0
MOST: Final = 60.0
"""First and longest wait in seconds before a restart up to `min`: 1, 2, 4 ... at most 60."""
STEADY: Final = 30.0
"""Running time in seconds after which an end without an error is not a failure."""


class Answer(StrEnum):
    """Effect of a notification."""

    START = "start"
    AT_MAX = "at_max"
    """The maximum number of instances runs, so the notification is consumed without effect."""


class Plan(msgspec.Struct, frozen=True):
    """The plan of one application: its running instances and its recent failures."""

    instances: Instances
    running: int = 0
    """Number of running instances, including those of an earlier activator (ACT-45)."""
    failures: int = 0
    """Number of instances in a row that ended soon, or with an error."""
    restart_at: float = 0.0
    """Monotonic time in seconds before which no instance is started to reach `min`."""


def notified(plan: Plan) -> Answer:
    """Return the effect of a notification."""
    return Answer.START if plan.running < plan.instances.max else Answer.AT_MAX


def started(plan: Plan, count: int = 1) -> Plan:
    """Return the plan with `count` more running instances."""
    return msgspec.structs.replace(plan, running=plan.running + count)


def ended(plan: Plan, *, failed: bool, lived: float, now: float) -> Plan:
    """Return the plan after the end of an instance; `lived`: seconds that the instance ran."""
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
    """Return when to call `missing` again; None = when the next instance ends."""
    return plan.restart_at if plan.running < plan.instances.min else None
