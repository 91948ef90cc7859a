"""A relay in front of a server: it cuts connections, stalls one direction, or keeps an answer back.

    async with ServerRelay(server) as relay:
        store = await open_store(relay.url("orders"))
        held = relay.hold()                 # the answer to the next COMMIT
        commit = asyncio.ensure_future(store.commit())
        await held.answered()               # it is committed, and nobody but the server knows
        held.reset()                        # and the client never learns it from this connection

Reads:  the messages of the protocol, so it knows a COMMIT however a driver sends it.
Never:  passes an encrypted connection: it answers that the server has no TLS.
"""

import asyncio
import re
from collections import deque
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import quote

from tests.postgresql.servers import USER, Server
from tests.postgresql.wire import Message, Messages, until_zero
from tests.relay import LOOPBACK, Connection, Relay

COMMIT: Final = re.compile(r"(?:^|;)\s*COMMIT\b(?!\s+PREPARED)", re.IGNORECASE)
"""A statement, alone or among others, that commits."""
ENCRYPTION: Final = (80877103, 80877104)
"""What a client asks first: whether the server has TLS, or GSSAPI."""

Way = Literal["requests", "answers"]
"""Which direction: from the client to the server, or back."""


class Held:
    """One statement of which the answer is kept back, or the statement, and all that follows."""

    def __init__(self, *, before: bool) -> None:
        self._way: Way = "requests" if before else "answers"
        self._connection: Connection | None = None
        self._kept: list[bytes] = []
        self._reached = asyncio.Event()
        self._over = asyncio.Event()
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def reached(self) -> None:
        """Return once the statement has been seen: passed to the server, or kept from it."""
        await self._reached.wait()

    async def answered(self) -> str:
        """Return what the server has answered and the client does not know yet.

        That is the tag of the last statement, such as `COMMIT` or `ROLLBACK`, or the SQLSTATE of
        an error.

        Raises:
            ConnectionResetError: The server has ended the connection instead.
        """
        return await asyncio.shield(self._answer)

    def release(self) -> None:
        """Pass on what has been kept back, and all that follows."""
        if not self._over.is_set():
            self._over.set()
            if self._connection is not None:
                self._connection[self._way == "requests"].write(b"".join(self._kept))

    def reset(self) -> None:
        """Drop what has been kept back, and end the connection at both ends."""
        self._over.set()
        for writer in self._connection or ():
            writer.transport.abort()

    def _begin(self, connection: Connection) -> None:
        self._connection = connection

    def _keeps(self, way: Way) -> bool:
        return self._way == way and not self._over.is_set()

    def _end(self, answer: str | None) -> None:
        if not self._answer.done():
            if answer is None:
                self._answer.set_exception(ConnectionResetError("the server has ended"))
                self._answer.exception()  # nobody has to ask
            else:
                self._answer.set_result(answer)


class _Line:
    """What is known of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.start: bytes | None = b""
        """The first bytes of the client, until they are whole."""
        self.requests = Messages()
        self.answers = Messages()
        self.statements: dict[str, str] = {}
        self.portals: dict[str, str] = {}
        self.asked = 0
        """How many requests the client has sent that end with ReadyForQuery."""
        self.ready = 0
        """How many ReadyForQuery the server has sent; the first says that the session begins."""
        self.held: Held | None = None
        self.held_request = 0
        """Which request the held statement belongs to."""
        self.tag = ""

    def executed_by(self, message: Message) -> str | None:
        """Return the text of the statement that a request has carried out."""
        match message.kind:
            case b"Q":
                return until_zero(message.body)[0]
            case b"P":
                name, rest = until_zero(message.body)
                self.statements[name] = until_zero(rest)[0]
            case b"B":
                portal, rest = until_zero(message.body)
                self.portals[portal] = self.statements.get(until_zero(rest)[0], "")
            case b"E":
                return self.portals.get(until_zero(message.body)[0], "")
            case _:
                pass
        return None


class ServerRelay(Relay):
    """Accepts on a port on loopback, and passes on to the socket of a server."""

    def __init__(self, server: Server) -> None:
        super().__init__(0)
        self._to = server
        self._lines: dict[Connection, _Line] = {}
        self._flows: dict[Way, asyncio.Event] = {}
        self._stalled: dict[Way, asyncio.Event] = {}
        self._armed: deque[tuple[re.Pattern[str], Held]] = deque()
        self._held: list[Held] = []

    def lead_to(self, server: Server) -> None:
        """Pass new connections on to another server from now on."""
        self._to = server

    def url(self, database: str, *, user: str = USER) -> str:
        """Return where a client connects to."""
        return f"postgresql://{user}@{LOOPBACK}:{self.port}/{quote(database)}"

    def hold(self, statement: re.Pattern[str] = COMMIT, *, before: bool = False) -> Held:
        """Keep back the answer to the next statement of that text, and all that the server sends
        on that connection after it; each call is for one more statement.

        With `before` the statement itself is kept from the server, and all that follows it. A text
        is that of the whole request: several statements at once, or the source of a prepared one.
        """
        held = Held(before=before)
        self._armed.append((statement, held))
        self._held.append(held)
        return held

    def stall(self, way: Way) -> asyncio.Event:
        """Pass on nothing more of one direction; the event says that something is kept back."""
        if way not in self._flows:
            self._flows[way] = asyncio.Event()
            self._stalled[way] = asyncio.Event()
        return self._stalled[way]

    def resume(self, way: Way) -> None:
        """Pass on what a stall has kept back."""
        if way in self._flows:
            self._flows.pop(way).set()

    def refuse(self) -> None:
        """Cut all connections, as a server that has gone does, and accept no more of them."""
        self.refuses = True
        self.reset()

    def heal(self) -> None:
        """Pass everything on, hold nothing, and accept."""
        super().heal()
        self.resume("requests")
        self.resume("answers")
        self._armed.clear()
        while self._held:
            self._held.pop().release()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self._to.socket)

    async def _see(self, data: bytes, sink: asyncio.StreamWriter, connection: Connection) -> bytes:
        line = self._lines.setdefault(connection, _Line(connection))
        way: Way = "requests" if sink is connection[1] else "answers"
        if way in self._flows:
            self._stalled[way].set()
            await self._flows[way].wait()
        if not data:
            await self._see_end(line, way)
            return b""
        seen = self._see_requests if way == "requests" else self._see_answers
        passed, kept = seen(line, data)
        if kept:
            assert line.held is not None, "only a held statement keeps anything back"
            line.held._kept.append(kept)
        return passed

    async def _see_end(self, line: _Line, way: Way) -> None:
        """One side has ended: the other does not learn it while something is kept back."""
        await self._open.wait()
        if line.held is not None:
            if way == "answers":
                line.held._end(None)
            if line.held._keeps(way):
                await line.held._over.wait()

    def _see_requests(self, line: _Line, data: bytes) -> tuple[bytes, bytes]:
        """Return what is passed to the server, and what is kept back."""
        passed: list[bytes] = []
        kept: list[bytes] = []
        if line.start is not None:
            started, data = self._see_start(line, line.start + data)
            passed.append(started)
        for message in line.requests.feed(data):
            text = line.executed_by(message)
            if text is not None and (line.held is None or line.held._over.is_set()):
                self._catch(line, text)
            keeps = line.held is not None and line.held._keeps("requests")
            (kept if keeps else passed).append(message.encoded())
            if message.kind in (b"Q", b"S", b"F"):
                if line.held is not None and line.held_request == line.asked:
                    line.held._reached.set()
                line.asked += 1
        return b"".join(passed), b"".join(kept)

    def _see_start(self, line: _Line, data: bytes) -> tuple[bytes, bytes]:
        """Return the client's first message once it is whole, and what follows it."""
        while len(data) >= 8 and len(data) >= (size := int.from_bytes(data[:4], "big")):
            if int.from_bytes(data[4:8], "big") not in ENCRYPTION:
                line.start = None
                return data[:size], data[size:]
            line.connection[0].write(b"N")
            data = data[size:]
        line.start = data
        return b"", b""

    def _catch(self, line: _Line, text: str) -> None:
        """Hold a statement if it is the next of those that are waited for."""
        for statement, held in self._armed:
            if statement.search(text):
                self._armed.remove((statement, held))
                line.held, line.held_request = held, line.asked
                held._begin(line.connection)
                if held._keeps("requests"):
                    held._reached.set()
                return

    def _see_answers(self, line: _Line, data: bytes) -> tuple[bytes, bytes]:
        """Return what is passed to the client, and what is kept back."""
        passed: list[bytes] = []
        kept: list[bytes] = []
        for message in line.answers.feed(data):
            # The answer to the first request comes after the first ReadyForQuery, and so on.
            is_its_own = line.held is not None and line.ready == line.held_request + 1
            keeps = line.held is not None and line.held._keeps("answers")
            keeps = keeps and line.ready > line.held_request
            (kept if keeps else passed).append(message.encoded())
            if message.kind == b"Z":
                line.ready += 1
                if is_its_own and line.held is not None:
                    line.held._end(line.tag)
            elif message.kind in (b"C", b"E"):
                line.tag = _tag(message)
        return b"".join(passed), b"".join(kept)


def _tag(message: Message) -> str:
    """Return the tag of a statement that is complete, or the SQLSTATE of an error."""
    fields = message.body.split(b"\0")
    if message.kind == b"C":
        return fields[0].decode()
    return next(field[1:].decode() for field in fields if field[:1] == b"C")
