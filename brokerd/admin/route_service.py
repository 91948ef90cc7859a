"""A dynamic routing service: answers requests for routes from a file of its own (BCN-6).

Reads:  a TOML file, again whenever it has changed.      Calls: the client, as any program would.
Never:  ends a request before the routes are made, or makes one the file does not say.
Fails:  a request for a service that is not in the file is ended with an error (BCN-7).
"""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final
from xml.etree import ElementTree

import msgspec
from msgspec import Meta

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.declared_objects import MAX_NAME
from brokerd.errors import (
    ConfigError,
    InvalidArgument,
    ObjectExists,
    ObjectsRefused,
    TransactionAborted,
)
from brokerd.ids import parse
from brokerd.model import CONFIGURATION_NOTICE, CONFIGURATION_SERVICE, MISSING_ROUTE
from brokerd.routing.address import normalise
from brokerd.tomlfile import read

QUEUE: Final = "dynamic_routing"
"""The queue and the route that `declare` makes."""
UNKNOWN: Final = 1
"""Error code for a service that is not in the file."""
LOOK: Final = 1.0
"""Seconds a receive waits before it looks whether it is to stop."""
Say = Callable[[str], None]


class Served(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The routes to one service."""

    name: str
    addresses: Annotated[list[str], Meta(min_length=1)]
    broker_id: str | None = None
    """The broker they lead to, where it is known."""
    lifetime: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Seconds; None = that of the file."""


class RouteFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is served."""

    service: list[Served]
    lifetime: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = 3600
    """Seconds that a route lives, so that what has changed is asked for again (BCN-11)."""


def load(path: Path) -> RouteFile:
    """The file; `ConfigError` names what is wrong with it."""
    hint = "see docs/dynamic-routing.md for what such a file says"
    try:
        found = msgspec.convert(read(path).data, RouteFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}", hint=hint) from None
    names: set[tuple[str, str | None]] = set()
    for one in found.service:
        if (one.name, one.broker_id) in names:
            raise ConfigError(f"{path}: service {one.name!r} is there twice", hint=hint)
        names.add((one.name, one.broker_id))
        if one.broker_id is not None and not _is_id(one.broker_id):
            raise ConfigError(f"{path}: {one.name}: {one.broker_id!r} is no broker id", hint=hint)
        for address in one.addresses:
            try:
                normalise(address)
            except InvalidArgument as error:
                raise ConfigError(f"{path}: {one.name}: {error.message}", hint=hint) from None
    return found


async def declare(session: Session) -> None:
    """The queue, the service, and the route that makes it asked, where they are missing."""
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
    """Answers the requests of one broker."""

    def __init__(self, path: Path, say: Say) -> None:
        self._path = path
        self._say = say
        self._seen = 0
        self._file = RouteFile([])
        self._look_again()

    async def run(self, session: Session, stop: asyncio.Event) -> None:
        """Answer requests until `stop` is set."""
        while not stop.is_set():
            try:
                async with session.transaction() as tx:
                    for message in await tx.receive(QUEUE, wait=LOOK):
                        await self._answer(session, tx, message)
            except TransactionAborted:  # the daemon went away: what was received comes again
                continue

    async def _answer(self, session: Session, tx: Transaction, message: Message) -> None:
        if message.message_type != MISSING_ROUTE:
            if message.is_end or message.is_error:
                await tx.end(message.handle)
            return
        self._look_again()
        try:
            name, broker_id = _asked(message.body or b"")
        except (ValueError, SyntaxError) as error:  # no broker writes such a one
            await tx.end(message.handle, UNKNOWN, f"the request cannot be read: {error}"[:1000])
            return
        found = [
            one
            for one in self._file.service
            if one.name == name and broker_id in (None, one.broker_id)
        ]
        if not found:
            self._say(f"{name}: not in {self._path}")
            await tx.end(message.handle, UNKNOWN, f"no route to {name} is known here")
            return
        try:
            await self._make(session, found)
        except ObjectsRefused as error:
            self._say(f"{name}: {error.message}")
            await tx.end(message.handle, UNKNOWN, error.message[:1000])
            return
        await tx.end(message.handle)

    async def _make(self, session: Session, found: list[Served]) -> None:
        """All in one commit, so that dialogs are spread over them; what is there lives on."""
        known = {route["name"] for route in await session.objects("route")}
        new: list[dict[str, object]] = []
        for one in found:
            for address in one.addresses:
                name, lifetime = _name(one, address), one.lifetime or self._file.lifetime
                if name in known:
                    await session.alter("route", name, lifetime=lifetime)
                    continue
                route: dict[str, object] = {"name": name, "service": one.name, "address": address}
                if lifetime is not None:
                    route["lifetime"] = lifetime
                if one.broker_id is not None:
                    route["broker"] = one.broker_id
                new.append(route)
            self._say(f"{one.name}: {', '.join(one.addresses)}")
        if new:
            wanted = {"broker": {"name": session.welcome.broker}, "route": new}
            await session.apply(wanted, ensure=True)

    def _look_again(self) -> None:
        """Read the file if it has changed; one that is wrong leaves what was read before."""
        changed = self._path.stat().st_mtime_ns if self._path.exists() else -1
        if changed == self._seen:
            return
        first, self._seen = not self._seen, changed
        try:
            self._file = load(self._path)
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
    """A name that says what it is for, and is the same each time."""
    digest = hashlib.sha256(f"{one.broker_id} {address}".encode()).hexdigest()[:8]
    return f"dynamic {one.name[: MAX_NAME - 20]} {digest}"


def _asked(body: bytes) -> tuple[str, str | None]:
    """Service and broker that a request names, in either form (BCN-15)."""
    if body.startswith(b"{"):
        told = msgspec.json.decode(body, type=dict[str, str])
        return told.get("service_name", ""), told.get("broker_instance")
    tree = ElementTree.fromstring(body)  # noqa: S314  # written by this very broker
    return tree.findtext("SERVICE_NAME") or "", tree.findtext("BROKER_INSTANCE")
