"""Bugs planted on purpose, each of which the machines must find (reliability section 8, PLANT).

    python -m tests.model.planted                       # all of them
    python -m tests.model.planted --machines 2000 NAME…    # look longer for some

A planted bug replaces one function of the engine while machines are played. They are the same
machines each time, so a bug is found by the same one until the machines are changed. A line says
which one found it, the last of its program, and what the engine and the model differed in.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from sqlalchemy import func, select

from brokerd.broker.changeset import Changeset
from brokerd.broker.ready_groups import ReadyGroups
from brokerd.broker.receive_waiters import WaitingLine
from brokerd.broker.state import Group
from brokerd.broker.transaction import Transaction
from brokerd.broker.window import Window
from brokerd.storage import flush
from brokerd.storage.rows import retention
from brokerd.storage.rows.ended_dialogs import RetainedSweep
from brokerd.storage.tables import retained_messages
from tests.model.dice import PROGRAM
from tests.model.machine import Machine
from tests.model.soak import play, say

Planted = Callable[[], Any]
PLANTED: dict[str, Planted] = {}
MACHINES = 300
"""So many are played at most, which is what the suite plays."""
SEED = 1


def planted(function: Planted) -> Planted:
    """Take a bug into the list."""
    PLANTED[function.__name__] = function
    return function


# Group locks.


@planted
def lock_not_asked() -> Any:
    """Who names a conversation goes on although another transaction has its group (GRP-9)."""
    real = Group.lock
    return patch.object(Group, "lock", lambda self, holder: real(self, holder) or True)


@planted
def group_given_to_two() -> Any:
    """A locked group keeps its place, so that another transaction receives from it too (GRP-14)."""
    real = Group.lock

    def lock(self: Group, holder: Any) -> bool:
        place = self.entry
        got = real(self, holder)
        self.entry = place
        return got

    return patch.object(Group, "lock", lock)


@planted
def locks_end_before_the_commit_is_durable() -> Any:
    """Who received frees its groups as it joins the commit pipeline (GRP-4)."""
    real = Transaction.commit

    def commit(self: Transaction, *args: Any, **given: Any) -> None:
        real(self, *args, **given)
        if self.keeps_locks:
            self._release()

    return patch.object(Transaction, "commit", commit)


@planted
def nobody_woken() -> Any:
    """Who waits for a message is not told that one has come (RCV-20)."""
    return patch.object(WaitingLine, "wake_for", lambda *_args, **_given: None)


# The order of receiving.


@planted
def newest_group_first() -> Any:
    """Of groups of one level, the one whose oldest message is the youngest comes first (GRP-15)."""
    real = ReadyGroups.place

    def place(self: ReadyGroups, *args: Any) -> tuple[int, int]:
        level, order = real(self, *args)
        return level, -order

    return patch.object(ReadyGroups, "place", place)


@planted
def put_back_behind() -> Any:
    """What a rollback gives back stands behind what has come since (RCV-15)."""
    real = Window.put_back

    def put_back(self: Window, live: Any, messages: Sequence[Any]) -> None:
        there = list(live.ready)
        live.ready.clear()
        real(self, live, messages)
        live.ready.extendleft(reversed(there))

    return patch.object(Window, "put_back", put_back)


# Retention.


@planted
def received_not_retained() -> Any:
    """What is received from a queue with retention is gone (RCV-14, RCV-31)."""
    return patch.object(Changeset, "retain", lambda *_args: None)


@planted
def sent_not_retained() -> Any:
    """What is sent from a queue with retention is not copied (RCV-35)."""
    return patch.object(Changeset, "_retain_sent", lambda *_args: None)


@planted
@contextmanager
def retained_too_long() -> Iterator[None]:
    """What is retained stays, and counts, when its conversation has ended (RCV-32)."""
    kept = retained_messages.c.queue_key
    with (
        patch.object(flush, "remove_retained", lambda *_args, **_options: None),
        patch.object(RetainedSweep, "_next", lambda *_args: ([], 0)),
        patch.object(retention, "COUNTS", select(kept, func.count()).group_by(kept)),
    ):
        yield


class Found(NamedTuple):
    """What found a bug."""

    machine: int
    """Which it was: 1 is the first."""
    step: str
    """The last line of its program."""
    difference: str
    """What the engine and the model differed in."""
    shown: str
    """All that the error shows, with its steps (`replay.py`)."""


@contextmanager
def with_bug(name: str) -> Iterator[None]:
    """Play with one of them."""
    with PLANTED[name]():
        yield


def finds(name: str, machines: int = MACHINES) -> Found | None:
    """Play until the bug is found; None = so many machines do not find it."""
    begun = 0

    class Counted(Machine):
        """Knows how many there have been."""

        def __init__(self) -> None:
            super().__init__()
            nonlocal begun
            begun += 1

    with with_bug(name):
        try:
            play(SEED, machines, shrinks=False, of=Counted)
        except AssertionError as error:  # the one that fails is played again, to tell of it
            shown = "\n".join(error.__notes__)
            return Found(begun - 1, _last_step(error), str(error).splitlines()[0], shown)
    return None


def _last_step(error: BaseException) -> str:
    notes: list[str] = error.__notes__
    program = next(one for one in notes if one.startswith(PROGRAM))
    return program.splitlines()[-1].split(maxsplit=1)[1]


def main(argv: Sequence[str]) -> int:
    """Find them all."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.planted", description=__doc__)
    parser.add_argument("--machines", type=int, default=MACHINES, help="play so many at most")
    parser.add_argument("names", nargs="*", default=list(PLANTED), metavar="NAME")
    given = parser.parse_args(argv)
    missed = 0
    for name in given.names:
        found = finds(name, given.machines)
        missed += found is None
        told = f"NOT FOUND by {given.machines} machines"
        if found is not None:
            told = f"machine {found.machine}, at '{found.step}': {found.difference[:200]}"
        say(f"{name}: {told}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
