"""Checks of arriving bodies, for which their dialogs wait (OBJ-18, OBJ-62).

Reads:  message types, stored parts of a message.      Calls: broker.inspection.
Never:  refuses an invalid body: `broker.checks` does, once the verdict is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from brokerd.broker.broker import Broker
from brokerd.broker.parking import CHECK_OVERRUN
from brokerd.broker.state import Live
from brokerd.checking.checker import Outcome, Verdict
from brokerd.delivery.incoming.dialogs import ArrivingDialog
from brokerd.model import MessageType
from brokerd.protocol.frames import ENDS, Fragment
from brokerd.protocol.headers import body_of, content_of

CHECK_UNAVAILABLE = "check_unavailable"
"""Reason for refusing arrivals while checks cannot run; their sender keeps them (OBJ-61)."""


def joined(live: Live | None, run: list[Fragment]) -> bytes:
    """Return the body of the message that a run ends with, including its stored parts."""
    last = run[-1]
    here = [item.body for item in run if item.sequence == last.sequence]
    stored = live.parts if live is not None and len(here) < last.fragments else ()
    return b"".join((*stored, *here))


def is_complete(live: Live | None, run: list[Fragment]) -> bool:
    """Return whether all fragments of the message that a run ends with are at hand.

    A side that has ended keeps none of what it discards."""
    last = run[-1]
    here = sum(item.sequence == last.sequence for item in run)
    return here + (0 if live is None else len(live.parts)) >= last.fragments


def _completes(item: Fragment) -> bool:
    return not item.flags & ENDS and item.fragment + 1 == item.fragments


def is_damaged(broker: Broker, live: Live | None, item: Fragment) -> bool:
    """Return whether stored fragments of an item's message are damaged (REL-6).

    Its group will be parked; the body is not reported as invalid."""
    if live is None or not broker.damaged_parts:
        return False
    endpoint = live.endpoint
    return item.sequence == endpoint.receive_sequence and endpoint.key in broker.damaged_parts


class ArrivalInspection:
    """Gate for runs of arrivals: releases fragments whose bodies have a verdict, or need none.

    Fragments before a body that is being checked are stored first; then the dialog waits for the
    verdict, and other dialogs do not. All bodies of a run are checked together."""

    __slots__ = ("_is_here", "_resume")

    def __init__(
        self, *, is_here: Callable[[ArrivingDialog], bool], resume: Callable[[ArrivingDialog], None]
    ) -> None:
        self._is_here = is_here
        self._resume = resume

    def ready(self, one: ArrivingDialog, limit: int) -> int:
        """Return the number of fragments of the run that may be stored now; start missing checks.

        0: `resume` is called later, unless `refuses` returns why the first fragment is refused."""
        arrivals, broker = one.arrivals, one.broker
        assert arrivals is not None
        ready = min(limit, len(arrivals.run))
        for at, item in enumerate(arrivals.run[:limit]):
            if not _completes(item) or is_damaged(broker, one.live, item):
                continue
            kind = broker.message_types.get(item.message_type)
            if kind is None or not kind.validation.is_structured:
                continue
            if item.fragments > 1 and at:
                return min(ready, at)  # join the parts before it once they are stored
            body = self._body(one, item)
            if not broker.inspection.concerns(kind, len(body)):
                continue
            verdict = self._verdict(one, item.sequence, kind, body)
            if verdict is None or verdict.outcome is Outcome.UNAVAILABLE:
                ready = min(ready, at)  # no return: the bodies behind it are checked meanwhile
            elif verdict.outcome is Outcome.OVERRUN:  # the last message stored: it parks its group
                return min(ready, at + (not _has_unchecked(one.live)))
        return ready

    def _verdict(
        self, one: ArrivingDialog, sequence: int, kind: MessageType, body: bytes
    ) -> Verdict | None:
        """Return the verdict on a body; None = its check is running, or has to wait."""
        inspection = one.broker.inspection
        verdict = inspection.verdict(kind, body)
        if verdict is not None or inspection.is_asked(kind, body) or _has_unchecked(one.live):
            return verdict
        before = one.inspected.get(sequence)
        if before is not None and before is not body:
            inspection.forget(before)
        one.inspected[sequence] = body
        one.inspecting_now += 1
        inspection.check(kind, body, partial(self._count_verdict, one))
        return None

    @staticmethod
    def _body(one: ArrivingDialog, item: Fragment) -> bytes:
        """Return the body alone of a message that an item completes: each time the same object."""
        if item.fragments == 1 and not item.flags:
            return item.body
        kept = one.inspected.get(item.sequence)
        if kept is not None:
            return kept
        content = item.body if item.fragments == 1 else joined(one.live, [item])
        return body_of(content_of(content, item.flags)) or b""

    def refuses(self, one: ArrivingDialog) -> str:
        """Return why the first message of the run is refused for now; empty = it is not refused.

        A group has one unchecked message at a time, which its row names. Until that message is
        settled, no other one is checked, so that a sender cannot make the daemon try one after
        another."""
        arrivals, inspection = one.arrivals, one.broker.inspection
        assert arrivals is not None
        first = arrivals.run[0]
        kind = one.broker.message_types.get(first.message_type)
        if kind is None or not _completes(first):
            return ""
        body = self._body(one, first)
        if not inspection.concerns(kind, len(body)):
            return ""
        verdict = inspection.verdict(kind, body)
        if verdict is not None and verdict.outcome is Outcome.UNAVAILABLE:
            return CHECK_UNAVAILABLE
        return CHECK_OVERRUN if _has_unchecked(one.live) else ""

    def overruns(self, one: ArrivingDialog, run: Iterable[Fragment]) -> dict[int, str]:
        """Return the messages of a run whose checks came to no verdict, with the reason."""
        inspection, types = one.broker.inspection, one.broker.message_types
        found: dict[int, str] = {}
        for item in run:
            body = one.inspected.get(item.sequence)
            if body is not None and _completes(item):
                why = inspection.overrun(types.get(item.message_type), body)
                if why:
                    found[item.sequence] = why
        return found

    def stored(self, one: ArrivingDialog, run: Iterable[Fragment]) -> None:
        """Drop the verdicts of fragments that are stored."""
        if one.inspected:
            for item in run:
                body = one.inspected.pop(item.sequence, None)
                if body is not None:
                    one.broker.inspection.forget(body)

    def drop(self, one: ArrivingDialog) -> None:
        """Drop all checks and verdicts of a dialog."""
        for body in one.inspected.values():
            one.broker.inspection.forget(body)
        one.inspected.clear()

    def _count_verdict(self, one: ArrivingDialog) -> None:
        one.inspecting_now -= 1
        if self._is_here(one) and one.arrivals is not None and one.arrivals.run:
            self._resume(one)
        elif not one.inspecting_now:
            self.drop(one)


def _has_unchecked(live: Live | None) -> bool:
    """Return whether the group is parked because a check came to no verdict (OBJ-62)."""
    held = live.group.held if live is not None else None
    return held is not None and held.row.reason == CHECK_OVERRUN
