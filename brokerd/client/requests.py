"""Requests without an answer yet, and their kinds, which differ when a connection is lost.

Reads:  nothing.     Calls: nothing.
Never:  writes. The link does; the kind decides what it does if an answer never comes (CLP-54).
"""

import asyncio
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from brokerd.errors import BrokerError, ProtocolError


class Kind(IntEnum):
    """The kind of a request, which decides what happens to it when the connection is lost."""

    TRANSACT = 0
    """A whole transaction; repeated with its token."""
    COMMIT = 1
    """The commit of an interactive transaction; the client asks for its outcome."""
    RECEIVE = 2
    """A receive with a token; the client asks for its outcome, and repeats it if not committed."""
    IN_TX = 3
    """A request in an interactive transaction, which is lost as a whole."""
    PLAIN = 4
    """Any other request, such as a read or an idempotent apply; repeated."""
    ASK = 5
    """A request for the outcome of another request; repeated."""


class Pending:
    """A request without an answer yet; its future gets the value or the error."""

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
        """Time at which the token was drawn, just before the first write, in nanoseconds of a clock
        that runs on while the machine is suspended. Meaningless without a token."""
        self.number = -1
        self.losses = 0
        """Number of connections lost while the request was unanswered."""
        self.subject: Pending | None = None

    def succeed(self, value: object) -> None:
        """Set the value on the future, unless the future is done.

        Raises: nothing.
        """
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: BrokerError, *, quiet: bool = False) -> None:
        """Set the error on the future, unless the future is done.

        `quiet`: the loop does not complain if no caller retrieves the error.

        Raises: nothing.
        """
        if not self.future.done():
            self.future.set_exception(error)
            if quiet or self.kind is Kind.IN_TX:
                self.future.exception()


def read_map(value: object) -> dict[str, object]:
    """Return the map in an ANSWER.

    Raises:
        ProtocolError: the answer has another form.
    """
    if not isinstance(value, dict):
        raise ProtocolError("a map is expected")
    return value


def read_list(value: object) -> list[object]:
    """Return the list in an ANSWER.

    Raises:
        ProtocolError: the answer has another form.
    """
    if not isinstance(value, list):
        raise ProtocolError("a list is expected")
    return value
