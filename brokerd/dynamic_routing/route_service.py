"""Dynamic routing service: answers requests for routes from its own file (BCN-6).

If the file names an SRV record instead of addresses, the addresses come from DNS.

Reads:  a TOML file, again whenever it has changed; DNS.
Calls:  the client, as any program would.
Never:  ends a request before its routes exist, or creates a route that is not in its sources. Drops
        a route only when its sources no longer have it (BCN-5).
Fails:  a request that cannot be answered is ended with an error that gives the reason (BCN-7).
"""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from xml.etree import ElementTree

import msgspec
from msgspec import Meta

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.config.toml_file import read
from brokerd.dynamic_routing.srv_records import (
    DnsOptions,
    SrvRecords,
    Unanswered,
    check_name,
    check_server,
    chosen,
)
from brokerd.errors import (
    ConfigError,
    InvalidArgument,
    ObjectExists,
    ObjectNotFound,
    ObjectsRefused,
    QueueDisabled,
    QueueNotFound,
    TransactionAborted,
)
from brokerd.ids import parse
from brokerd.model import (
    CONFIGURATION_NOTICE,
    CONFIGURATION_SERVICE,
    FAILED_ROUTE,
    MISSING_BINDING,
    MISSING_ROUTE,
    MessageType,
    Validation,
)
from brokerd.objects.keys import MAX_NAME
from brokerd.objects.validation import problem
from brokerd.routing.address import normalise

QUEUE: Final = "dynamic_routing"
"""Name of the queue and of the route that `declare` creates."""
UNKNOWN: Final = 1
"""Error code for a service that is not in the file."""
LOOK: Final = 1.0
"""Seconds that a receive waits before its loop checks whether to stop."""
READERS: Final = 8
"""Number of requests answered at the same time."""
FAILED_FOR: Final = 300.0
"""Seconds for which addresses of lower rank are added after the report of a failed address."""
_PREFIX: Final = "dynamic "
_REQUEST: Final = MessageType("request", Validation.WELL_FORMED_XML)
"""The form of a request in XML, without a DOCTYPE and not deep: any sender may write anything."""
Say = Callable[[str], None]


class Served(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The routes to one service."""

    name: str
    addresses: Annotated[list[str], Meta(min_length=1)] | None = None
    srv: str | None = None
    """Name of the SRV records with the addresses, instead of `addresses`."""
    broker_id: str | None = None
    """Id of the broker that the routes lead to; None = not known."""
    lifetime: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Lifetime of routes in seconds, at most that of the DNS answer; None = that of the file."""


class RouteFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file: the services, and defaults for them."""

    service: list[Served]
    lifetime: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = 3600
    """Lifetime of routes in seconds; an expired route is requested again, which brings changes
    (BCN-11)."""
    dns: DnsOptions = DnsOptions()


class _Request(NamedTuple):
    """The content of a MissingRoute or a FailedRoute."""

    service: str
    broker_id: str | None
    address: str
    """Address of the failed route; empty in a MissingRoute."""


class _Answer(NamedTuple):
    """The routes that one service should have."""

    served: Served
    addresses: list[str]
    lifetime: int | None


def load(path: Path) -> RouteFile:
    """Read the file. Raises `ConfigError`, which describes the problem of the file."""
    hint = "see docs/how-to/dynamic-routing.md for what such a file says"
    try:
        found = msgspec.convert(read(path).data, RouteFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}", hint=hint) from None
    names: set[tuple[str, str | None]] = set()
    for one in found.service:
        if (one.name, one.broker_id) in names:
            raise ConfigError(f"{path}: service {one.name!r} is there twice", hint=hint)
        names.add((one.name, one.broker_id))
        try:
            _check(one)
        except InvalidArgument as error:
            raise ConfigError(f"{path}: {one.name}: {error.message}", hint=hint) from None
    try:
        for server in found.dns.servers:
            check_server(server)
    except InvalidArgument as error:
        raise ConfigError(f"{path}: dns.servers: {error.message}", hint=hint) from None
    return found


def _check(one: Served) -> None:
    if one.broker_id is not None and not _is_id(one.broker_id):
        raise InvalidArgument(f"{one.broker_id!r} is no broker id")
    if (one.addresses is None) == (one.srv is None):
        raise InvalidArgument("give either addresses or srv")
    for address in one.addresses or ():
        normalise(address)
    if one.srv is not None:
        check_name(one.srv)


async def declare(session: Session) -> None:
    """Create the queue, the service, and the route to the service, if they are missing."""
    for kind, name, fields in (
        ("queue", QUEUE, {"poison_mode": "park"}),
        (
            "service",
            CONFIGURATION_SERVICE,
            {"queue": QUEUE, "contracts": [CONFIGURATION_NOTICE]},
        ),
        ("route", QUEUE, {"service": CONFIGURATION_SERVICE, "address": "LOCAL"}),
    ):
        try:
            await session.create(kind, name, **fields)
        except ObjectExists:
            continue


class RouteService:
    """The routing service of one broker."""

    def __init__(self, path: Path, say: Say) -> None:
        """Create the service, and read the file at `path`. `say`: prints a line.

        Raises `ConfigError` if the file is wrong, or needs a library that is missing."""
        self._path = path
        self._say = say
        self._seen = 0
        self._file = RouteFile([])
        self._records: SrvRecords | None = None
        self._failed: dict[str, float] = {}
        """Addresses that were reported as failed, with the loop time until which this counts."""
        self._kept_by = ""
        """Printed reason why no message can be received at the moment; empty = receiving works."""
        self._reload()

    async def run(self, session: Session, stop: asyncio.Event) -> None:
        """Answer requests until `stop` is set, several at a time, because DNS may be slow.

        Wait while the queue is off or dropped. Raises the error of the first reader that fails."""
        try:
            async with asyncio.TaskGroup() as readers:
                for _ in range(READERS):
                    readers.create_task(self._read(session, stop))
        except ExceptionGroup as ended:
            raise ended.exceptions[0] from None

    async def _read(self, session: Session, stop: asyncio.Event) -> None:
        clock = session.clock
        while not stop.is_set():
            try:
                async with session.transaction() as tx:
                    messages = await tx.receive(QUEUE, wait=LOOK)
                    self._print_waiting("")
                    for message in messages:
                        await self._process(session, tx, message)
            except TransactionAborted:  # connection lost: the messages are received again
                continue
            except (QueueDisabled, QueueNotFound) as kept:
                self._print_waiting(kept.message)
                await clock.sleep_until(clock.monotonic() + LOOK)

    def _print_waiting(self, kept_by: str) -> None:
        """Print once why no message can be received, and once that receiving works again."""
        if kept_by != self._kept_by:
            self._say(f"{kept_by}; waiting for it" if kept_by else f"reading {QUEUE} again")
            self._kept_by = kept_by

    async def _process(self, session: Session, tx: Transaction, message: Message) -> None:
        if message.message_type == MISSING_BINDING:
            why = "this service makes no bindings: brokerd binding create"
            await tx.end(message.handle, UNKNOWN, why)
            return
        if message.message_type not in (MISSING_ROUTE, FAILED_ROUTE):
            if message.is_end or message.is_error:
                await tx.end(message.handle)
            return
        # The dialog ends in the transaction of the receive, after the routes exist (BCN-6): the end
        # of the dialog makes the broker classify the waiting dialogs again.
        self._reload()
        try:
            request = parse_request(message.body or b"")
        except (ValueError, SyntaxError) as error:  # no broker sends such a request
            await tx.end(message.handle, UNKNOWN, f"the request cannot be read: {error}"[:1000])
            return
        try:
            if message.message_type == FAILED_ROUTE:
                self._note_failure(request)
            await self._answer(session, request, missing=message.message_type == MISSING_ROUTE)
        except (Unanswered, ObjectsRefused) as error:
            why = error.message if isinstance(error, ObjectsRefused) else str(error)
            self._say(f"{request.service}: {why}")
            await tx.end(message.handle, UNKNOWN, why[:1000])
            return
        await tx.end(message.handle)

    def _note_failure(self, request: _Request) -> None:
        self._say(f"{request.service}: {request.address} cannot be reached")
        now = asyncio.get_running_loop().time()
        self._failed = {one: until for one, until in self._failed.items() if until > now}
        self._failed[request.address] = now + FAILED_FOR

    async def _answer(self, session: Session, request: _Request, *, missing: bool) -> None:
        """Update the routes of a service to the current content of its sources."""
        found = [
            one
            for one in self._file.service
            if one.name == request.service and request.broker_id in (None, one.broker_id)
        ]
        if not found and missing:
            self._say(f"{request.service}: not in {self._path}")
            raise Unanswered(f"no route to {request.service} is known here")
        await self._make(session, request, [await self._resolved(one) for one in found])

    async def _resolved(self, one: Served) -> _Answer:
        lifetime = one.lifetime or self._file.lifetime
        if one.srv is None:
            return _Answer(one, [normalise(address) for address in one.addresses or ()], lifetime)
        assert self._records is not None, "made when the file was read"
        records = await self._records.look_up(one.srv)
        for why in records.unusable:
            self._say(f"{one.name}: {why}")
        now = asyncio.get_running_loop().time()
        failed = {address for address, until in self._failed.items() if until > now}
        lifetime = min(records.lifetime, lifetime or records.lifetime)
        return _Answer(one, chosen(records.targets, failed), lifetime)

    async def _make(self, session: Session, request: _Request, answers: list[_Answer]) -> None:
        """Create the missing routes in one commit, so that dialogs are spread over them.

        Renew existing routes, and drop routes created earlier that the file or DNS no longer
        has."""
        known = {str(one["name"]): one for one in await session.objects("route")}
        new: list[dict[str, object]] = []
        kept: set[str] = set()
        for one, addresses, lifetime in answers:
            for address in addresses:
                name = _name(one, address)
                kept.add(name)
                if name in known:
                    await session.alter("route", name, lifetime=lifetime)
                    continue
                route: dict[str, object] = {"name": name, "service": one.name, "address": address}
                if lifetime is not None:
                    route["lifetime"] = lifetime
                if one.broker_id is not None:
                    route["broker"] = one.broker_id
                new.append(route)
            self._say(f"{one.name}: {', '.join(addresses)}")
        if new:
            wanted = {"broker": {"name": session.welcome.broker}, "route": new}
            await session.apply(wanted, ensure=True)
        # Dropped last, so that the service is never without a route. Routes created by others do
        # not have the prefix, and stay.
        for name, there in known.items():
            ours = name.startswith(_PREFIX) and there.get("service") == request.service
            if ours and name not in kept and request.broker_id in (None, there.get("broker")):
                await _drop(session, name)

    def _reload(self) -> None:
        """Read the file if it has changed; if it is wrong, keep the content read before."""
        changed = self._path.stat().st_mtime_ns if self._path.exists() else -1
        if changed == self._seen:
            return
        first, self._seen = not self._seen, changed
        try:
            file = load(self._path)
            if any(one.srv is not None for one in file.service):
                self._records = SrvRecords(file.dns)
            self._file = file
        except ConfigError as error:
            if first:
                raise
            self._say(error.message)


def _is_id(text: str) -> bool:
    try:
        return bool(parse(text))
    except ValueError:
        return False


def _name(one: Served, address: str) -> str:
    """Return the name of a route: it shows the purpose, and is the same at each creation."""
    digest = hashlib.sha256(f"{one.broker_id} {address}".encode()).hexdigest()[:8]
    return f"{_PREFIX}{one.name[: MAX_NAME - 20]} {digest}"


async def _drop(session: Session, route: str) -> None:
    try:
        await session.drop("route", route)
    except ObjectNotFound:  # another reader has dropped it
        return


def parse_request(body: bytes) -> _Request:
    """Return the content of a request, in either form (BCN-15).

    Raises:
        ValueError: the request cannot be read.
    """
    if body.startswith(b"{"):
        named = msgspec.json.decode(body, type=dict[str, str])
    else:
        if unfit := problem(_REQUEST, body):
            raise ValueError(unfit)
        tree = ElementTree.fromstring(body)  # noqa: S314  # checked above
        named = {one.tag.lower(): one.text or "" for one in tree}
    return _Request(
        named.get("service_name", ""), named.get("broker_instance"), named.get("address", "")
    )
