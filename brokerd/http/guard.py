"""Guard: what every request passes before a route answers it, and every answer on its way out.

Reads:  headers of requests.      Calls: `identity`, the connection of a request, the event log.
Never:  answers a name that is not the listener's own (DNS rebinding), lets a page of another site
        change something, or sends an answer without the headers that keep strangers' texts inert.
Fails:  an unforeseen error is logged once and answered with 500; the connection stays.

| who | is known by | may see |
| --- | --- | --- |
| a Unix socket | the user, from the kernel | what the user may see as a client |
| TLS | the owner of the certificate | what `client:NAME` may see as a client |
| plain TCP, with a cookie | the principal who made the address by `brokerd page` | the same |
| plain TCP | nothing | `/livez`, `/readyz`, `/metrics`, the style of the page |
"""

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from aiohttp import web
from aiohttp.typedefs import Middleware

from brokerd.config.exposure import is_loopback_host
from brokerd.errors import (
    AccessDenied,
    BadRequest,
    BrokerError,
    BrokerUnavailable,
    Busy,
    ConnectionLost,
    ConversationNotFound,
    GroupNotFound,
    InUse,
    InvalidArgument,
    InvalidState,
    LockTimeout,
    ObjectNotFound,
    ObjectsRefused,
    QueueNotFound,
    ValidationFailed,
)
from brokerd.http.identity import Browsers
from brokerd.http.reads import CALLER, Caller, Reads
from brokerd.sessions.principals import Who
from brokerd.telemetry.audit import Action, Outcome
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import DAEMON

CSRF_HEADER: Final = "X-Brokerd-CSRF"
CSRF_FIELD: Final = "csrf"
TOKEN: Final = "token"  # noqa: S105  # the name of a parameter
LARGEST_BODY: Final = 64 * 1024
"""Bytes of the body of a POST (SX-11)."""
LONGEST: Final = 60.0
"""Seconds that a route may take for an answer."""
METHODS: Final = frozenset({"GET", "HEAD", "POST"})
FOR_ALL: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths that need no principal where strangers can connect, which is loopback."""
STATIC: Final = "/static/"
"""Beginning of the paths of the page's style, script and icon, which say nothing of the daemon."""
ALWAYS: Final = frozenset({"/livez", "/readyz"})
"""Paths that are answered before the stores are open."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer; a route may set another `Cache-Control`."""
_STATUS: Final[tuple[tuple[type[BrokerError], int], ...]] = (
    (AccessDenied, 403),
    (ObjectNotFound, 404),
    (ConversationNotFound, 404),
    (GroupNotFound, 404),
    (QueueNotFound, 404),
    (InvalidArgument, 400),
    (BadRequest, 400),
    (ObjectsRefused, 400),
    (ValidationFailed, 400),
    (InvalidState, 409),
    (LockTimeout, 503),
    (InUse, 409),
    (Busy, 503),
    (BrokerUnavailable, 503),
    (ConnectionLost, 503),
)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connection(Protocol):
    """The connection that a request came over."""

    def who(self) -> Who | None:
        """Return the principal at the far end; None = the connection proves nothing."""
        ...

    def request_began(self) -> None:
        """Note that a request is complete, so that the client owes nothing."""
        ...

    def caller_known(self) -> None:
        """Note that a principal sends the requests of the connection."""
        ...

    def request_ended(self) -> None:
        """Note that the request is answered, so that the client owes the next one."""
        ...


class Guard:
    """The middlewares of the listener."""

    def __init__(
        self,
        *,
        reads: Reads,
        browsers: Browsers,
        cookie: str,
        hosts: Iterable[str],
        is_local: bool,
        is_tls: bool,
        request_timeout: float,
        connection_of: Callable[[web.Request], Connection | None],
        stranger_page: Callable[[str], bytes],
        log: Log,
    ) -> None:
        """Create the guard.

        `cookie`: its name. `hosts`: names of the listener, beside addresses and names of this
        machine. `is_local`: whether only this machine reaches the listener. `request_timeout`:
        seconds for the body of a POST. `stranger_page`: makes the page for a browser of which no
        caller is known, with the reason."""
        self._reads = reads
        self._browsers = browsers
        self._cookie = cookie
        self._hosts = frozenset(one.lower() for one in hosts)
        self._is_local = is_local
        self._is_tls = is_tls
        self._request_timeout = request_timeout
        self._connection_of = connection_of
        self._stranger_page = stranger_page
        self._log = log

    @property
    def middlewares(self) -> list[Middleware]:
        """The middlewares, the outermost first."""
        return [self._keep_time, self._explain, self._inspect, self._identify]

    async def add_headers(self, _request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers of every answer."""
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers["Server"] = "brokerd"

    @web.middleware
    async def _keep_time(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Tell the connection when it is the daemon's turn, and limit how long that lasts."""
        connection = self._connection_of(request)
        if connection is None:  # closed meanwhile
            raise web.HTTPServiceUnavailable
        connection.request_began()
        try:
            async with asyncio.timeout(LONGEST):
                return await handler(request)
        except TimeoutError:
            return _text(503, "this takes too long; ask for less\n")
        finally:
            connection.request_ended()

    @web.middleware
    async def _explain(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answer with an error what a route raises."""
        try:
            return await handler(request)
        except web.HTTPException as answer:
            if answer.content_type == "text/html":  # aiohttp's own text
                answer.content_type = "text/plain"
            raise
        except (asyncio.CancelledError, TimeoutError):
            raise
        except BrokerError as error:
            return _refusal(request, error)
        except ConnectionResetError:
            raise  # the client has left
        except Exception as error:  # noqa: BLE001  # per request, as per command
            self._log.error(DAEMON, subclass="http_failed", path=request.path, exc_info=error)
            return _text(500, "the daemon failed at this; its log says why\n")

    @web.middleware
    async def _inspect(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuse other methods, other names, and whatever cannot be answered yet (MON-26)."""
        if request.method not in METHODS:
            raise web.HTTPMethodNotAllowed(request.method, sorted(METHODS))
        if not self._is_own_name(request.headers.get("Host", "")):
            raise web.HTTPMisdirectedRequest(
                text="this is no name of this listener; add it to http.hosts\n"
            )
        is_open, is_ready = self._reads.sources is not None, self._reads.condition == "ready"
        answered = ALWAYS if not is_open else FOR_ALL if not is_ready else None
        if answered is not None and request.path not in answered:
            return _text(503, f"the daemon is {self._reads.condition}\n", {"Retry-After": "1"})
        return await handler(request)

    def _is_own_name(self, host: str) -> bool:
        """Return whether a request was made to this machine by address, or by a name of its own.

        A page of another site can make a name of its own point to this machine, but not use an
        address or our name without its browser noticing that the site is another."""
        name = _without_port(host).lower()
        if is_loopback_host(name) or name in self._hosts:
            return True
        return not self._is_local and _is_address(name)

    @web.middleware
    async def _identify(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Find the caller; let a browser in that brings a token; check that a POST is meant."""
        token = request.query.get(TOKEN)
        if token is not None and request.method == "GET":
            return self._let_in(request, token)
        caller = None if self._reads.sources is None else self._caller(request)
        if caller is None:
            is_for_all = request.path in FOR_ALL or request.path.startswith(STATIC)
            if request.method == "POST" or not is_for_all:
                return self._refuse_stranger(request, "this browser has not been let in")
            return await handler(request)
        if (connection := self._connection_of(request)) is not None:
            connection.caller_known()
        request[CALLER] = caller
        try:
            if request.method == "POST":
                await self._check_meant(request, caller)
            return await handler(request)
        finally:
            await caller.close()

    def _let_in(self, request: web.Request, token: str) -> web.StreamResponse:
        """Give a browser a cookie for its token, and send it on to the same path without it."""
        cookie = self._browsers.let_in(token)
        browser = None if cookie is None else self._browsers.find(cookie)
        if self._reads.sources is not None:
            self._reads.sources.audit.record(
                Action.LOGIN,
                actor=request.remote or "" if browser is None else browser.who.user,
                subject="http",
                outcome=Outcome.REFUSED if browser is None else Outcome.SUCCESS,
                kind="browser",
            )
        if cookie is None:
            return self._refuse_stranger(
                request, "this address has been used already, or it is too old"
            )
        answer = web.HTTPSeeOther(str(request.rel_url.without_query_params(TOKEN)))
        answer.set_cookie(
            self._cookie, cookie, httponly=True, samesite="Strict", secure=self._is_tls, path="/"
        )
        raise answer

    def _refuse_stranger(self, request: web.Request, reason: str) -> web.Response:
        """Say how a browser is let in: as a page where the caller reads pages, else as text."""
        if "text/html" in request.headers.get("Accept", ""):
            return web.Response(
                status=403,
                body=self._stranger_page(reason),
                content_type="text/html",
                charset="utf-8",
            )
        return _text(
            403,
            f"{reason}: run `brokerd page` on the daemon's machine, and open the address that it "
            "prints\n",
        )

    def _caller(self, request: web.Request) -> Caller | None:
        connection = self._connection_of(request)
        who = None if connection is None else connection.who()
        if who is not None:
            csrf = self._browsers.csrf_of(f"principal {who.user}")
            return Caller(who, csrf=csrf, reads=self._reads)
        browser = self._browsers.find(request.cookies.get(self._cookie, ""))
        if browser is None:
            return None
        return Caller(browser.who, csrf=browser.csrf, reads=self._reads)

    async def _check_meant(self, request: web.Request, caller: Caller) -> None:
        """Raise `HTTPForbidden` unless a page of this listener has sent the POST (SX-26)."""
        origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
        is_ours = origin is None or origin.partition("://")[2] == request.headers.get("Host")
        if is_ours and site in (None, "same-origin", "none"):
            await self._read_body(request)
            sent = request.headers.get(CSRF_HEADER)
            if sent is None and request.content_type == "application/x-www-form-urlencoded":
                sent = str((await request.post()).get(CSRF_FIELD, ""))
            odd = "surrogateescape"  # how aiohttp decodes headers
            if sent is not None and hmac.compare_digest(
                sent.encode(errors=odd), caller.csrf.encode()
            ):
                return
        raise web.HTTPForbidden(
            text=f"no page of this daemon has sent this: reload it, or send {CSRF_HEADER}\n"
        )

    async def _read_body(self, request: web.Request) -> None:
        """Read the body of a POST, which the request keeps, in the time that a request has."""
        if request.content_type.startswith("multipart/"):  # cannot be read twice; no page sends it
            raise web.HTTPUnsupportedMediaType(text="send a form as it is sent by default\n")
        try:
            async with asyncio.timeout(self._request_timeout):
                await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body of the request did not come\n") from None


def status_of(error: BrokerError) -> int:
    """Return the status of the answer for an error of a view or a verb."""
    return next((code for kind, code in _STATUS if isinstance(error, kind)), 500)


def _refusal(request: web.Request, error: BrokerError) -> web.Response:
    """Return the answer for an error of a view or a verb."""
    status = status_of(error)
    if request.path.endswith(".json") or "json" in request.headers.get("Accept", ""):
        said = {"code": error.code, "message": error.message, "hint": error.hint}
        return web.json_response({"error": said}, status=status)
    return _text(status, f"{error.message}\n" + (f"fix: {error.hint}\n" if error.hint else ""))


def _text(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=text, headers=headers)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
