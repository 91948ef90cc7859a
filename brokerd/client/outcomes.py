"""Outcomes: the results of a handler other than a reply (PSN-17). PURE.

Reads:  nothing.      Calls: nothing.
Never:  acts by itself. The caller of the handler, or the end of the block, does.

A handler may return an outcome, or any code below it may raise one.
"""

import asyncio
from datetime import timedelta
from typing import Any, Final

from brokerd.client.arguments import wire_text
from brokerd.errors import InvalidArgument
from brokerd.protocol.headers import Headers

MOST_TEXT: Final = 1000


class Outcome(Exception):
    """A decision about the transaction of a message, and about its dialog."""

    def __eq__(self, other: object) -> bool:
        """Compare by class and values."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        """Hash by class: the value of a reply need not be hashable."""
        return hash(type(self))

    def __repr__(self) -> str:
        """Return the call that makes an equal outcome."""
        said = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({said})"


class Retry(Outcome):
    """A rollback after which no message of the group is received for `after` seconds.

    `after`: seconds, or a timedelta; the wait survives a restart of the daemon. `counts`: whether
    this is one of the consecutive rollbacks that park the group or switch the queue off; give
    False if the cause has nothing to do with the message.

    Raises:
        InvalidArgument: `after` is not a duration from 0 to 2^31 seconds.
    """

    def __init__(self, after: float | timedelta = 0.0, *, counts: bool = True) -> None:
        if not isinstance(after, int | float | timedelta):
            raise InvalidArgument(f"after is {after!r}, neither seconds nor a timedelta")
        seconds = after.total_seconds() if isinstance(after, timedelta) else float(after)
        if not 0 <= seconds < 2**31:
            raise InvalidArgument("after: 0 to 2^31 seconds are expected")
        super().__init__(f"to be tried again after {seconds:g} s")
        self.after = seconds
        self.counts = counts


class Park(Outcome):
    """A rollback that sets the conversation group aside until an operator releases it (PBT-3).

    `reason`: a text for the operator, shortened to 1,000 characters.

    Raises:
        InvalidArgument: `reason` is empty, or not a text.
    """

    def __init__(self, reason: str) -> None:
        if not wire_text(reason, "reason"):
            raise InvalidArgument("a group is parked for a reason: Park('...')")
        super().__init__(reason)
        self.reason = reason[:MOST_TEXT]


class End(Outcome):
    """The end of the dialog, after a reply or with an error.

    `reply`: a value, or a `Reply`, to send first; None = no reply. `error`, a number above 0, and
    `description` are given together; the other side receives them as an Error message (DLG-20).
    """

    def __init__(
        self,
        reply: Any = None,  # noqa: ANN401  # whatever the contract allows
        error: int | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__(description or "")
        self.reply = reply
        self.error = error
        self.description = description


class Reply:
    """A handler's reply with headers: `return Reply(value, headers={...})`.

    It can also be the reply of an `End`. `value`: what the contract allows. `headers`: as for
    `send` (SND-26).
    """

    def __init__(
        self,
        value: Any,  # noqa: ANN401  # whatever the contract allows
        *,
        headers: Headers | None = None,
    ) -> None:
        self.value = value
        self.headers = headers

    def __repr__(self) -> str:
        """Return the call that makes such a reply."""
        return f"Reply({self.value!r}, headers={self.headers!r})"


def rollback_options(error: BaseException | None) -> dict[str, object]:
    """Return the options of the `rollback` for this exception; None = no exception (CLP-116).

    Raises: nothing.
    """
    if isinstance(error, Retry):
        return {"retry_ms": round(error.after * 1000), "counts": error.counts}
    if isinstance(error, Park):
        return {"park": error.reason}
    if error is None:
        return {}
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):  # the program is stopping
        return {"counts": False}
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return {"error": text[:MOST_TEXT]}
