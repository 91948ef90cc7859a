"""Status of a day, and the points behind it: a finding with advice and a command. Pure.

Reads:  nothing.      Never: lets a name in a command act as more than one word of a shell.
"""

import shlex
from dataclasses import dataclass
from enum import IntEnum


class Status(IntEnum):
    """How much attention the day needs; the value is the exit status of the job."""

    FINE = 0
    LOOK = 1
    ACT = 2


@dataclass(frozen=True, slots=True)
class Point:
    """A finding about the day with advice; of status FINE if nothing is to be done."""

    status: Status
    text: str
    advice: str
    command: str = ""


def pasted(*words: str) -> str:
    """Return a command of these words that can be pasted, whatever names it has (BI-L4)."""
    return shlex.join(words)
