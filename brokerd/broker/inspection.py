"""Checks of bodies beside the loop, so that no body can hold up others (OBJ-18, OBJ-61).

Reads:  bodies.      Calls: the checker of the instance.
Never:  changes anything: whoever asked asks again when the verdict is there, and forgets it then.
"""

from __future__ import annotations

from functools import partial

from brokerd.broker.blocked import Resume
from brokerd.checking.checker import Checker, Outcome, Pending, Verdict
from brokerd.model import MessageType, Validation
from brokerd.objects.validation import problem

NOT_CHECKED = "it has not been checked"
"""Why a body has no verdict that nobody has asked for."""
_Key = tuple[int, Validation, str | None]


class _Asked:
    __slots__ = ("body", "pending", "verdict")

    def __init__(self, body: bytes) -> None:
        self.body = body  # kept: no other body has its identity meanwhile
        self.verdict: Verdict | None = None
        self.pending: Pending | None = None


class Inspection:
    """The bodies of one broker that are being checked, and the verdicts still needed."""

    __slots__ = ("_asked", "_checker", "_limit")

    def __init__(self, *, limit: int, checker: Checker) -> None:
        """`limit`: bytes from which on well-formedness is checked beside the loop."""
        self._limit = limit
        self._checker = checker
        self._asked: dict[_Key, _Asked] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def concerns(self, kind: MessageType | None, size: int) -> bool:
        """Whether bodies of this type and size are checked beside the loop: all with a schema,
        whose cost nobody knows beforehand, and large ones."""
        if kind is None or not size or not kind.validation.is_structured:
            return False
        return size >= self._limit or kind.validation.has_schema

    def knows(self, kind: MessageType, body: bytes) -> bool:
        """Whether the verdict on this very body is there."""
        return self.verdict(kind, body) is not None

    def is_asked(self, kind: MessageType, body: bytes) -> bool:
        """Whether this very body is being checked, or was."""
        return _key(kind, body) in self._asked

    def verdict(self, kind: MessageType, body: bytes) -> Verdict | None:
        """The verdict on this very body, if it is there."""
        found = self._asked.get(_key(kind, body))
        return None if found is None else found.verdict

    def judge(self, kind: MessageType, body: bytes | None) -> str:
        """Why a body is not what its type asks for; nothing if it is, or if the check came to no
        verdict: then `overrun` says so, and its group is parked (OBJ-62)."""
        if body is None or not self.concerns(kind, len(body)):
            return problem(kind, body)
        verdict = self.verdict(kind, body)
        return verdict.text if verdict is not None and verdict.outcome is Outcome.UNFIT else ""

    def overrun(self, kind: MessageType | None, body: bytes | None) -> str:
        """Why a body that may not go on unchecked has no verdict; empty if it has one, or needs
        none."""
        if kind is None or body is None or not self.concerns(kind, len(body)):
            return ""
        verdict = self.verdict(kind, body)
        if verdict is None:
            return NOT_CHECKED
        return "" if verdict.outcome in (Outcome.FIT, Outcome.UNFIT) else verdict.text

    def look(self, kind: MessageType, body: bytes, then: Resume) -> None:
        """Check a body, and call `then` when the verdict is known.

        Whoever asked calls `forget` when it is not wanted any more."""
        asked = self._asked[_key(kind, body)] = _Asked(body)
        asked.pending = self._checker.check(kind, body, partial(_answer, asked, then))

    def forget(self, body: bytes) -> None:
        """Nobody will ask about this very body again. If it has no verdict yet, `then` is called
        all the same, as soon as its turn comes."""
        for key in [key for key in self._asked if key[0] == id(body)]:
            pending = self._asked.pop(key).pending
            if pending is not None:
                pending.cancelled = True


def _answer(asked: _Asked, then: Resume, verdict: Verdict) -> None:
    asked.verdict = verdict
    then()


def _key(kind: MessageType, body: bytes) -> _Key:
    return id(body), kind.validation, kind.schema
