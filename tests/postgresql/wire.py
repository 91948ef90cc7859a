"""PostgreSQL's protocol, version 3, as far as tests need it: messages, and a session that waits.

A session asks over a Unix socket, in text, and without a password. It needs no event loop and no
driver, so that a fixture can make a database within a millisecond's work of its own.
"""

import contextlib
import socket
import struct
from types import TracebackType
from typing import NamedTuple, Self

VERSION = 196608
PATIENCE = 60.0
"""Seconds that a session waits for an answer."""


class ServerError(Exception):
    """The server refused a statement: its SQLSTATE and its message."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(f"{state}: {message}")
        self.state = state


class Message(NamedTuple):
    """One message after the start of a connection."""

    kind: bytes
    """The letter it begins with."""
    body: bytes

    def encoded(self) -> bytes:
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body


class Messages:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are whole now."""
        self._rest += data
        found = []
        at = 0
        while len(self._rest) >= at + 5:
            end = at + 1 + int.from_bytes(self._rest[at + 1 : at + 5], "big")
            if len(self._rest) < end:
                break
            found.append(Message(self._rest[at : at + 1], self._rest[at + 5 : end]))
            at = end
        self._rest = self._rest[at:]
        return found


def until_zero(data: bytes) -> tuple[str, bytes]:
    """Return the text that a byte of zero ends, and what follows."""
    text, _, rest = data.partition(b"\0")
    return text.decode(), rest


class Session:
    """A connection of its own, for as long as the `with` block lasts."""

    def __init__(self, path: str, *, user: str, database: str) -> None:
        self._messages = Messages()
        self._waiting: list[Message] = []
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(PATIENCE)
            self._socket.connect(path)
            body = struct.pack("!i", VERSION)
            body += b"".join(
                word.encode() + b"\0" for word in ("user", user, "database", database, "")
            )
            self._socket.sendall(struct.pack("!i", len(body) + 4) + body)
            self._answer()
        except BaseException:
            self._socket.close()
            raise

    def query(self, sql: str) -> list[tuple[str | None, ...]]:
        """Carry out statements; return the rows of all of them as text.

        Raises:
            ServerError: The server refused one.
            OSError: The server is gone.
        """
        self._socket.sendall(Message(b"Q", sql.encode() + b"\0").encoded())
        return self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it; what has not been committed is rolled back."""
        with contextlib.suppress(OSError):
            self._socket.sendall(Message(b"X", b"").encoded())
        self._socket.close()

    def _answer(self) -> list[tuple[str | None, ...]]:
        """Return the rows up to the next ReadyForQuery."""
        rows: list[tuple[str | None, ...]] = []
        refused: ServerError | None = None
        while (message := self._next()).kind != b"Z":
            if message.kind == b"D":
                rows.append(_row(message.body))
            elif message.kind == b"E":
                refused = _error(message.body)
                if b"SFATAL\0" in message.body:
                    raise refused
        if refused is not None:
            raise refused
        return rows

    def _next(self) -> Message:
        while not self._waiting:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the server has closed the connection")
            self._waiting.extend(self._messages.feed(data))
        return self._waiting.pop(0)


def _row(body: bytes) -> tuple[str | None, ...]:
    values: list[str | None] = []
    at = 2
    for _ in range(int.from_bytes(body[:2], "big")):
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4
        values.append(None if size < 0 else body[at : at + size].decode())
        at += max(size, 0)
    return tuple(values)


def _error(body: bytes) -> ServerError:
    fields = {field[:1]: field[1:].decode() for field in body.split(b"\0") if field}
    return ServerError(fields.get(b"C", ""), fields.get(b"M", ""))
