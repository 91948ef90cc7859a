"""Listener: accepts HTTP connections for metrics, health and the page, within limits (MON-23).

Reads:  the settings.      Calls: aiohttp's server, `guard`, the routes.
Never:  waits for a slow client: it is cut off if it sends no request, or takes no answer, in time.
Wakes:  by connections; by a timer for each that owes a request.
Fails:  `PortTaken`, which names the key to change; a connection fails alone.

aiohttp parses requests and writes answers. `HttpConnection` stands between the stream and its
protocol object, and does what aiohttp does not: limits in number, by address and in time.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from aiohttp import web

from brokerd.clock import Clock
from brokerd.config.exposure import is_local_address
from brokerd.config.settings import HttpSettings
from brokerd.errors import ObjectNotFound, PortTaken
from brokerd.http import health, metrics, page
from brokerd.http.guard import LARGEST_BODY, Guard
from brokerd.http.identity import TOKEN_LIFETIME, Browsers
from brokerd.http.reads import Reads
from brokerd.sessions.principals import Who
from brokerd.telemetry.log import Log
from brokerd.transport.door import Door, DoorOptions, Seat
from brokerd.transport.network import Listening, Network, host_and_port, let_others_in, unix_path

IDLE: Final = 75.0
"""Seconds for which a connection may stay open between two requests."""
HEAD: Final = 16 * 1024
"""Most bytes of the head of a request (SX-11)."""
LINE: Final = 8 * 1024
"""Most bytes of the request line, and of one header."""
_GRACE: Final = 2.0
"""Seconds that answers under way get when the listener stops."""
_QUIET: Final = logging.getLogger("brokerd.http")
_QUIET.disabled = True  # aiohttp logs what strangers send; what matters is in the event log


class HttpListener:
    """The HTTP listener of one instance."""

    def __init__(
        self,
        *,
        settings: HttpSettings,
        address: str,
        reads: Reads,
        network: Network,
        clock: Clock,
        random: Callable[[int], bytes],
        boot_id: bytes,
        log: Log,
        secured: "Callable[[HttpConnection], asyncio.Protocol] | None" = None,
    ) -> None:
        """Create the listener.

        `secured`: puts TLS around a connection; None = connections are not encrypted."""
        self._settings = settings
        self._address = address
        self.reads = reads
        """The instance, as the routes see it."""
        self._network = network
        self._secured = secured
        self.browsers = Browsers(
            clock=clock, random=random, lifetime=settings.page_lifetime.total_seconds()
        )
        self.door = Door(
            "http",
            options=DoorOptions(
                most=settings.max_connections,
                per_address=settings.max_per_address,
                logins=max(2, settings.max_connections // 2),
                logins_per_address=max(1, settings.max_per_address // 2),
            ),
            refusal=lambda text: refusal(503, "Service Unavailable", text),
            clock=clock,
            log=log,
        )
        """Limits on connections (END-18); those of which no caller is known are strangers."""
        self._guard = Guard(
            reads=reads,
            browsers=self.browsers,
            # a browser sends a cookie to all ports of a host, so each run has a name of its own
            cookie=f"brokerd_{boot_id.hex()[:16]}",
            hosts=settings.hosts,
            is_local=is_local_address(address),
            is_tls=settings.tls,
            request_timeout=self.request_timeout,
            connection_of=self._connection_of,
            stranger_page=page.stranger_page(),
            log=log,
        )
        self._runner: web.AppRunner | None = None
        self._listening: Listening | None = None
        self._connections: dict[object, HttpConnection] = {}
        """Open connections, by aiohttp's protocol object."""
        self._failure: PortTaken | None = None

    @property
    def address(self) -> str:
        """Listening address with the real port; empty = it does not listen."""
        return "" if self._listening is None else self._listening.address

    @property
    def request_timeout(self) -> float:
        """Seconds that a client may take for a request, or for taking an answer."""
        return self._settings.request_timeout.total_seconds()

    async def start(self) -> None:
        """Listen; `raise_failure` reports later that it was impossible.

        It listens before the stores are open, so that `/livez` answers, and a store in use is a
        better reason for a failed start than a socket in use."""
        app = web.Application(
            middlewares=self._guard.middlewares, client_max_size=LARGEST_BODY, logger=_QUIET
        )
        app.on_response_prepare.append(self._guard.add_headers)
        for part in (health, metrics, page):
            app.add_routes(part.routes(self.reads))
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            logger=_QUIET,
            keepalive_timeout=IDLE,
            max_line_size=LINE,
            max_field_size=LINE,
            shutdown_timeout=_GRACE,
        )
        await self._runner.setup()
        try:
            self._listening = await self._network.listen(self._factory, self._address, self.door)
        except OSError as error:
            self._failure = PortTaken(
                f"cannot listen for HTTP at {self._address}: {error.strerror or error}",
                hint="stop the program that uses it, or change http.listen; "
                "http.enabled = false does without",
            )
            await self.stop()

    def raise_failure(self) -> None:
        """Raise `PortTaken` if `start` could not listen."""
        if self._failure is not None:
            raise self._failure

    def let_users_in(self) -> None:
        """Let all users of the machine connect to a Unix socket, as clients may (CLP-130)."""
        if self._listening is not None:
            let_others_in(self._listening.address)

    async def stop(self) -> None:
        """Close the listener and its connections."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        for one in list(self._connections.values()):
            one.cut()

    def open_page(self, who: Who) -> dict[str, object]:
        """Return an address at which a browser is let in as a principal (MON-28).

        Raises:
            ObjectNotFound: browsers cannot reach the listener.
        """
        address = self.address
        if not address:
            raise ObjectNotFound("the daemon has no HTTP listener")
        if (path := unix_path(address)) is not None:
            there = Path(path).absolute()
            raise ObjectNotFound(
                f"browsers cannot open the daemon's HTTP listener, the Unix socket {there}",
                hint='set http.listen = "TCP://127.0.0.1:8022" and restart it; or from another '
                f"machine: ssh -L 8022:{there} THIS_MACHINE, then open http://127.0.0.1:8022/",
            )
        host, port = host_and_port(address)
        if self._settings.tls:
            name = next(iter(self._settings.hosts), host)
            url = f"https://{_in_url(name)}:{port}/"  # its certificate says who the browser is
        else:
            url = f"http://{_in_url(host)}:{port}/?token={self.browsers.issue(who)}"
        return {"url": url, "user": who.user, "seconds": TOKEN_LIFETIME}

    def who(self, transport: asyncio.BaseTransport) -> Who | None:
        """Return the principal at the far end of a connection; None = it proves nothing."""
        if self.reads.sources is None:
            return None
        principals = self.reads.sources.principals
        names = principals.names(transport)
        return None if names == () else Who(names, principals.user(transport))

    def _connection_of(self, request: web.Request) -> "HttpConnection | None":
        return self._connections.get(request.protocol)

    def _factory(self) -> asyncio.Protocol:
        """Return the protocol object of an accepted connection."""
        runner = self._runner
        assert runner is not None, "it listens only while there is a runner"
        assert runner.server is not None, "set up"
        connection = HttpConnection(self, runner.server())
        return connection if self._secured is None else self._secured(connection)

    def opened(self, connection: "HttpConnection") -> None:
        """Register a connection."""
        self._connections[connection.inner] = connection

    def closed(self, connection: "HttpConnection") -> None:
        """Unregister a connection."""
        self._connections.pop(connection.inner, None)


class HttpConnection(asyncio.Protocol):
    """One connection: aiohttp's protocol object inside, with a seat and a time limit."""

    seat: Seat | None = None

    def __init__(self, listener: HttpListener, inner: asyncio.Protocol) -> None:
        self.inner = inner
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._who: Who | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._head: bytes | None = b""
        """Beginning of a request whose head is not complete; None = the head is complete."""
        self._is_idle = False
        """Whether no byte of the next request has arrived."""
        self._is_answering = False

    def who(self) -> Who | None:
        """Return the principal at the far end, which stays the same; None = nothing is proven."""
        if self._who is None and self._transport is not None:
            self._who = self._listener.who(self._transport)
        return self._who

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request, but not for long."""
        self._transport = cast("asyncio.Transport", transport)
        if self.seat is not None:
            self.seat.occupied(self.cut)
        self._listener.opened(self)
        self._limit(self._listener.request_timeout)
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on; from the first byte of a request on, time runs."""
        if self._is_idle and not self._is_answering:
            self._is_idle = False
            self._limit(self._listener.request_timeout)
            if self.seat is not None:
                self.seat.wake()
        if self._head is not None and not self._has_small_head(self._head + data[: HEAD + 1]):
            transport = self._transport
            if transport is not None:
                transport.write(refusal(431, "Request Header Fields Too Large", "too many headers"))
                transport.close()
            return
        self.inner.data_received(data)

    def _has_small_head(self, head: bytes) -> bool:
        """Note the beginning of a request; return False if its head is too large (SX-11)."""
        end = head.find(b"\r\n\r\n")
        self._head = None if end >= 0 else head
        return (len(head) if end < 0 else end) <= HEAD

    def eof_received(self) -> bool | None:
        """Pass the end of the requests on."""
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        """Give the client time to take what it was sent."""
        if self._stalled is None:
            self._stalled = self._loop.call_later(self._listener.request_timeout, self.cut)
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """Note that the client takes what it is sent."""
        self._stop_stalled()
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the seat."""
        self._limit(None)
        self._stop_stalled()
        self._transport = None
        self._listener.closed(self)
        if self.seat is not None:
            self.seat.leave()
        self.inner.connection_lost(exc)

    # Called by the guard.

    def request_began(self) -> None:
        """Note that a request is complete, so that the client owes nothing."""
        self._is_answering = True
        self._head = None
        self._limit(None)
        if self.seat is not None:
            self.seat.wake()

    def caller_known(self) -> None:
        """Note that a principal sends the requests, so that strangers do not displace it."""
        if self.seat is not None:
            self.seat.log_in()

    def request_ended(self) -> None:
        """Note that the request is answered: the next one may take its time to begin."""
        self._is_answering = False
        self._is_idle = True
        self._head = b""
        if self._transport is not None:
            self._limit(IDLE)
            if self.seat is not None:
                self.seat.rest()

    def cut(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _limit(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self.cut)

    def _stop_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def refusal(status: int, reason: str, text: str) -> bytes:
    """Return a whole answer for a connection that is refused before it has sent a request."""
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
