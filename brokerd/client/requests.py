"""Requests on their way: their kinds, and the consequence of a lost connection for each.

Reads:  nothing.     Calls: nothing.
Never:  writes: the link does, and decides by the kind if an answer never comes (CLP-54).
"""

import asyncio
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from brokerd.errors import BrokerError


class Kind(IntEnum):
    """The kind of a request, which decides what happens to it when the connection is lost."""

    TRANSACT = 0
    """A whole transaction; repeated with its token."""
    COMMIT = 1
    """The end of an interactive transaction; its outcome is asked for."""
    RECEIVE = 2
    """A receive with a token; its outcome is asked for, and it is asked again if there is none."""
    IN_TX = 3
    """Part of an interactive transaction, which is lost."""
    PLAIN = 4
    """Reads, and an apply, which makes the same of the same; repeated."""
    ASK = 5
    """The question for the outcome of another request; asked again."""


class Pending:
    """One request that has no answer yet. Its future gets the value, or the error."""

    __slots__ = (
        "args",
        "future",
        "kind",
        "losses",
        "number",
        "subject",
        "token",
        "token_at",
        "tx",
        "verb",
    )

    def __init__(
        self,
        kind: Kind,
        verb: str,
        args: Sequence[object],
        future: "asyncio.Future[Any]",
        tx: int | None = None,
    ) -> None:
        self.kind = kind
        self.verb = verb
        self.args = args
        self.future = future
        self.tx = tx
        self.token = -1
        self.token_at = 0
        """When the token was given, just before it was written first; nanoseconds of the clock that
        goes on while the machine is suspended. Meaningless without a token."""
        self.number = -1
        self.losses = 0
        """Connections that were lost while it was unanswered."""
        self.subject: Pending | None = None

    def succeed(self, value: object) -> None:
        """Set the value on the future, if somebody still waits.

        Raises: nothing.
        """
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: BrokerError, *, quiet: bool = False) -> None:
        """Set the error on the future, if somebody still waits.

        With `quiet` the loop does not complain if nobody looks at it.

        Raises: nothing.
        """
        if not self.future.done():
            self.future.set_exception(error)
            if quiet or self.kind is Kind.IN_TX:
                self.future.exception()
