"""Checks of bodies beside the loop, so that no body can hold up others (OBJ-18, OBJ-61).

Reads:  bodies.      Calls: the checker of the instance.
Never:  changes anything: whoever asked asks again when the verdict is there, and forgets it then.
"""

from __future__ import annotations

from brokerd.broker.blocked import Resume
from brokerd.checking.checker import Checker, Outcome, Pending, Verdict
from brokerd.model import MessageType, Validation
from brokerd.objects.validation import problem

NOT_CHECKED = "it has not been checked"
"""Why a body has no verdict that nobody has asked for."""


class _Asked:
    """One body that is being checked as one kind of message, or was."""

    __slots__ = ("body", "pending", "schema", "validation", "verdict", "waiting")

    def __init__(self, kind: MessageType, body: bytes) -> None:
        self.body = body  # kept: no other body has its identity meanwhile
        self.validation: Validation = kind.validation
        self.schema = kind.schema
        self.verdict: Verdict | None = None
        self.pending: Pending | None = None
        self.waiting: list[Resume] = []

    def answer(self, verdict: Verdict) -> None:
        """Keep the verdict, and resume all that wait for it."""
        self.verdict = verdict
        waiting, self.waiting = self.waiting, []
        for resume in waiting:
            resume()


class Inspection:
    """The bodies of one broker that are being checked, and the verdicts still needed."""

    __slots__ = ("_asked", "_checker", "_limit")

    def __init__(self, *, limit: int, checker: Checker) -> None:
        """`limit`: bytes from which on well-formedness is checked beside the loop."""
        self._limit = limit
        self._checker = checker
        self._asked: dict[int, list[_Asked]] = {}
        """By identity of the body; nearly always one, as types are rarely altered meanwhile."""

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
        return self._find(kind, body) is not None

    def verdict(self, kind: MessageType, body: bytes) -> Verdict | None:
        """The verdict on this very body, if it is there."""
        found = self._find(kind, body)
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

    def look(self, kind: MessageType, body: bytes, then: Resume | None = None) -> None:
        """Check a body, unless it is being checked already, and call `then` when the verdict is
        known.

        Whoever asked calls `forget` when it is not wanted any more."""
        asked = self._find(kind, body)
        is_new = asked is None
        if asked is None:
            asked = _Asked(kind, body)
            self._asked.setdefault(id(body), []).append(asked)
        if then is not None and asked.verdict is not None:
            then()
        elif then is not None:
            asked.waiting.append(then)
        if is_new:
            asked.pending = self._checker.check(kind, body, asked.answer)

    def forget(self, body: bytes) -> None:
        """Nobody will ask about this very body again. If it has no verdict yet, `then` is called
        all the same, as soon as its turn comes."""
        for asked in self._asked.pop(id(body), ()):
            if asked.pending is not None:
                asked.pending.cancelled = True

    def _find(self, kind: MessageType, body: bytes) -> _Asked | None:
        for asked in self._asked.get(id(body), ()):
            if asked.validation is kind.validation and asked.schema == kind.schema:
                return asked
        return None
