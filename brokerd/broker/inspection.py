"""Looking into large structured bodies beside the loop, so that nobody else waits (OBJ-18).

Reads:  bodies.      Calls: validation, on a thread.
Never:  changes anything: whoever asked asks again when the verdict is there, and forgets it then.
Fails:  as the check itself does, in the verdict; nobody who asks without waiting gets another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from brokerd.broker.blocked import Resume
from brokerd.broker.endpoints import Spawn
from brokerd.model import MessageType, Validation
from brokerd.validation import problem

Aside = Callable[[Callable[[], str]], Awaitable[str]]
"""Runs a function on a thread."""
_Key = tuple[int, Validation, str | None]


class _Verdict:
    __slots__ = ("body", "text")

    def __init__(self, body: bytes) -> None:
        self.body = body  # kept: no other body has its identity meanwhile
        self.text: str | None = None


class Inspection:
    """The bodies of one broker that are being looked into, and what was found."""

    __slots__ = ("_aside", "_limit", "_spawn", "_verdicts")

    def __init__(self, *, limit: int, aside: Aside, spawn: Spawn) -> None:
        """`limit`: bytes from which on a body is looked into on a thread."""
        self._limit = limit
        self._aside = aside
        self._spawn = spawn
        self._verdicts: dict[_Key, _Verdict] = {}

    def __len__(self) -> int:
        return len(self._verdicts)

    def concerns(self, kind: MessageType | None, size: int) -> bool:
        """Whether bodies of this type and size are to be looked into beside the loop."""
        return size >= self._limit and kind is not None and kind.validation.is_structured

    def knows(self, kind: MessageType, body: bytes) -> bool:
        """Whether the verdict on this very body is there."""
        found = self._verdicts.get(_key(kind, body))
        return found is not None and found.text is not None

    def judge(self, kind: MessageType, body: bytes | None) -> str:
        """Why a body is not what its type asks for; nothing if it is.

        It is looked into here and now where no verdict is known: nothing is ever let through."""
        if body is not None and len(body) >= self._limit:
            found = self._verdicts.get(_key(kind, body))
            if found is not None and found.text is not None:
                return found.text
        return problem(kind, body)

    def look(self, kind: MessageType, body: bytes, then: Resume) -> None:
        """Look into a body on a thread, and call `then` when the verdict is known.

        Whoever asked calls `forget` when it is not wanted any more."""
        verdict = self._verdicts[_key(kind, body)] = _Verdict(body)
        self._spawn(self._look(kind, verdict, then))

    def forget(self, body: bytes) -> None:
        """Nobody will ask about this very body again."""
        for key in [key for key in self._verdicts if key[0] == id(body)]:
            del self._verdicts[key]

    async def _look(self, kind: MessageType, verdict: _Verdict, then: Resume) -> None:
        try:
            verdict.text = await self._aside(partial(problem, kind, verdict.body))
        except Exception as error:  # noqa: BLE001  # per body: what cannot be looked into is unfit
            verdict.text = f"it cannot be looked into: {type(error).__name__}: {error}"
        then()


def _key(kind: MessageType, body: bytes) -> _Key:
    return id(body), kind.validation, kind.schema
