"""Status of a day, and the points behind it: a finding with advice and a command. Pure.

Reads:  nothing.      Never: lets a name in a command act as more than one word of a shell.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import wraps

from spark_jobs.report.data import Data


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
    about: str = ""
    """The section of the page with the figures and the dialogs behind the finding; "" = none."""


Finder = Callable[[Data], Iterator[Point]]
"""Yields what it finds in the values of a day."""


def about(section: str) -> Callable[[Finder], Finder]:
    """Return a decorator that gives the points of a finder this section, unless they have one."""

    def decorate(find: Finder) -> Finder:
        @wraps(find)
        def found(data: Data) -> Iterator[Point]:
            return (replace(one, about=one.about or section) for one in find(data))

        return found

    return decorate


def pasted(*words: str) -> str:
    """Return a command of these words that can be pasted, whatever names it has (BI-L4)."""
    return shlex.join(words)
