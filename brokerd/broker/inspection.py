"""Checks of bodies outside the event loop, so that none can hold up others (OBJ-18, OBJ-61).

Reads:  bodies.      Calls: the checker of the instance.
Never:  changes anything: once the verdict is known, the caller asks for it, acts on it, and
        drops it with `forget`.
"""

from __future__ import annotations

from brokerd.broker.blocked import Resume
from brokerd.checking.checker import Checker, Outcome, Pending, Verdict
from brokerd.model import MessageType, Validation
from brokerd.objects.validation import problem

NOT_CHECKED = "it has not been checked"
"""The reason for a body whose check was not requested, or has no result yet."""


class _Asked:
    """One body, and its check as one kind of message, running or finished."""

    __slots__ = ("body", "pending", "schema", "validation", "verdict", "waiting")

    def __init__(self, kind: MessageType, body: bytes) -> None:
        self.body = body  # kept: no other body has its identity meanwhile
        self.validation: Validation = kind.validation
        self.schema = kind.schema
        self.verdict: Verdict | None = None
        self.pending: Pending | None = None
        self.waiting: list[Resume] = []

    def answer(self, verdict: Verdict) -> None:
        """Store the verdict, and resume its waiters."""
        self.verdict = verdict
        waiting, self.waiting = self.waiting, []
        for resume in waiting:
            resume()


class Inspection:
    """The bodies of one broker that are being checked, and the verdicts still needed."""

    __slots__ = ("_asked", "_checker", "_limit")

    def __init__(self, *, limit: int, checker: Checker) -> None:
        """Create the inspection.

        `limit`: bytes from which well-formedness is checked outside the loop."""
        self._limit = limit
        self._checker = checker
        self._asked: dict[int, list[_Asked]] = {}
        """Checks by identity of the body; mostly one each, as types are rarely altered."""

    def __len__(self) -> int:
        return len(self._asked)

    def concerns(self, kind: MessageType | None, size: int) -> bool:
        """Return whether bodies of this type and size are checked outside the loop.

        These are all bodies with a schema, whose cost is not known beforehand, and large ones."""
        if kind is None or not size or not kind.validation.is_structured:
            return False
        return size >= self._limit or kind.validation.has_schema

    def is_asked(self, kind: MessageType, body: bytes) -> bool:
        """Return whether a check of this body object was requested."""
        return self._find(kind, body) is not None

    def verdict(self, kind: MessageType, body: bytes) -> Verdict | None:
        """Return the verdict on this body object; None = it is not known."""
        found = self._find(kind, body)
        return None if found is None else found.verdict

    def evaluate(self, kind: MessageType, body: bytes | None) -> str:
        """Return why a body does not fit its type; empty = it fits.

        Also empty if the check came to no verdict: then `overrun` returns the reason, and the group
        is parked (OBJ-62)."""
        if body is None or not self.concerns(kind, len(body)):
            return problem(kind, body)
        verdict = self.verdict(kind, body)
        return verdict.text if verdict is not None and verdict.outcome is Outcome.UNFIT else ""

    def overrun(self, kind: MessageType | None, body: bytes | None) -> str:
        """Return why a body that needs a check has no verdict; empty = it has one or needs none."""
        if kind is None or body is None or not self.concerns(kind, len(body)):
            return ""
        verdict = self.verdict(kind, body)
        if verdict is None:
            return NOT_CHECKED
        return "" if verdict.outcome in (Outcome.FIT, Outcome.UNFIT) else verdict.text

    def check(self, kind: MessageType, body: bytes, then: Resume | None = None) -> None:
        """Check a body, unless it is being checked already; call `then` when the verdict is known.

        The caller calls `forget` when it no longer needs the verdict."""
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
        """Drop the checks of this body object: no caller will ask about it again.

        If it has no verdict yet, `then` is still called when its turn comes."""
        for asked in self._asked.pop(id(body), ()):
            if asked.pending is not None:
                asked.pending.cancelled = True

    def _find(self, kind: MessageType, body: bytes) -> _Asked | None:
        for asked in self._asked.get(id(body), ()):
            if asked.validation is kind.validation and asked.schema == kind.schema:
                return asked
        return None
