"""Delays of repeated attempts, as functions of the attempt number.

Reads, calls: nothing.    Never: reads a clock; the shell adds the delay to the current time.
"""

from datetime import timedelta
from enum import Enum
from typing import Final

RETRY_FIRST: Final = timedelta(seconds=4)
RETRY_MAX: Final = timedelta(seconds=64)
SUPPRESS_LOST: Final = timedelta(seconds=15)
SUPPRESS_FAILED: Final = timedelta(seconds=60)

_MOST_DOUBLINGS: Final = 32  # keeps the power small for an attempt number of any size


REOPEN_FIRST: Final = timedelta(seconds=5)
REOPEN_MAX: Final = timedelta(minutes=5)


class SuppressMode(Enum):
    """Growth of a destination's suppression after failed attempts (NBT-9)."""

    FLAT = "flat"
    """Always the configured time, as in Service Broker (TRN-16)."""
    BACKOFF = "backoff"
    """1, 2, 4 ... s up to the configured time."""


def retransmit_delay(
    attempts: int, *, first: timedelta = RETRY_FIRST, most: timedelta = RETRY_MAX
) -> timedelta:
    """Return the wait for an acknowledgement after `attempts` retransmissions (DLP-26).

    By default 4 s after the first transmission (`attempts` 0), then 8, 16, 32, and always 64 s.
    """
    return _doubled(first, attempts, most)


def suppression_after_failure(
    failures: int,
    *,
    mode: SuppressMode = SuppressMode.FLAT,
    flat: timedelta = SUPPRESS_FAILED,
) -> timedelta:
    """Return how long the `failures`-th failure in a row suppresses a destination (TRN-16, NBT-9).

    `failures` counts from 1.
    """
    if mode is SuppressMode.FLAT:
        return flat
    return _doubled(timedelta(seconds=1), failures - 1, flat)


def reopen_delay(
    failures: int, *, first: timedelta = REOPEN_FIRST, most: timedelta = REOPEN_MAX
) -> timedelta:
    """Return how long an event notification waits before it opens a new dialog (PBT-15).

    `failures`: number of its dialogs that failed in a row, from 1. By default the wait is 5, 10,
    20 ... 300 s."""
    return _doubled(first, failures - 1, most)


def _doubled(first: timedelta, times: int, most: timedelta) -> timedelta:
    doubled: timedelta = first * 2 ** min(max(times, 0), _MOST_DOUBLINGS)
    return min(most, doubled)
