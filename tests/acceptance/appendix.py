"""Appendix A as a table: how each error is provoked through the SDK and on the command line.

A row is an error with its code, its Service Broker number, what its message has to name, and the
exit status of the command. Where the command line cannot meet an error, the row says why.
"""

import uuid
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import brokerd
from brokerd import sync
from brokerd.app.session import Session
from brokerd.cli.main import main
from brokerd.ids import show
from tests.acceptance.one_process import Served

NOWHERE = bytes(15) + b"\x01"
LONG = "x" * 257
SCHEMA = '{"type": "object", "required": ["sku"]}'
FAILING = {"Ask": "initiator", "Answer": "target", "Extra": "any", "Mine": "initiator"}

MAIN: dict[str, Any] = {
    "name": "main",
    "default_encryption": "off",
    "message_type": [
        {"name": "Ask"},
        {"name": "Answer"},
        {"name": "Extra"},
        {"name": "Mine"},
        {"name": "Other"},
        {"name": "Json", "validation": "well_formed_json"},
        {"name": "Order", "validation": "valid_json", "schema": SCHEMA},
        {"name": "OwnJson", "validation": "well_formed_json", "validate_on_send": "on"},
        {
            "name": "OwnOrder",
            "validation": "valid_json",
            "schema": SCHEMA,
            "validate_on_send": "on",
        },
    ],
    "contract": [
        {
            "name": "talk",
            "types": {
                **dict.fromkeys(("Ask", "Json", "Order", "OwnJson", "OwnOrder"), "initiator"),
                "Answer": "target",
            },
        },
        {"name": "private", "types": {"Ask": "any"}},
        {"name": "far", "types": FAILING},
        {"name": "wide", "types": {"Ask": "any", "Other": "any"}},
        {"name": "short", "types": {"Ask": "any"}},
        {"name": "brief", "types": {"Ask": "any"}},
    ],
    "queue": [
        {"name": "desk"},
        {"name": "shop"},
        {"name": "spare"},
        {"name": "moved"},
        {"name": "full", "max_messages": 1},
        {"name": "closed", "status": "off"},
        {"name": "kept_closed", "status": "off", "retention": "on"},
        {"name": "narrow", "retention": "on", "retention_limit": {"max_rows": 1}},
        {
            "name": "busy",
            "activation": {"handler": "tests.integration.handlers:idle", "status": "on"},
        },
        {"name": "watched"},
        {"name": "events"},
    ],
    "service": [
        {"name": "desk", "queue": "desk"},
        {"name": "shop", "queue": "shop", "contracts": ["talk"]},
        {"name": "spare", "queue": "spare", "contracts": ["talk", "short"]},
        {"name": "mover", "queue": "moved", "contracts": ["talk"]},
        {"name": "keeper", "queue": "kept_closed"},
        {"name": "full", "queue": "full", "contracts": ["talk"]},
        {"name": "narrow", "queue": "narrow"},
        {"name": "ops", "queue": "events", "contracts": ["urn:brokerd:PostEventNotification"]},
    ],
    "priority": [{"name": "first", "contract": "talk", "level": 9}],
    "remote_service_binding": [{"name": "bound", "service": "urn:bound", "principal": "peer:west"}],
    "event_notification": [
        {"name": "watch", "events": ["QUEUE_ACTIVATION"], "queue": "watched", "service": "ops"}
    ],
}
OTHER: dict[str, Any] = {
    "name": "other",
    "default_encryption": "off",
    "message_type": [{"name": "Ask"}, {"name": "Answer"}, {"name": "Mine"}, {"name": "Other"}],
    "contract": [
        {"name": "talk", "types": {"Ask": "any"}},
        {"name": "far", "types": {"Ask": "initiator", "Answer": "target", "Mine": "target"}},
        {"name": "short", "types": {"Ask": "any"}},
        {"name": "brief", "types": {"Ask": "any"}},
        {"name": "wide", "types": {"Ask": "any"}},
    ],
    "queue": [{"name": "harbour"}],
    "service": [
        {"name": "harbour", "queue": "harbour", "contracts": ["talk", "far", "wide"]},
        {"name": "altered", "queue": "harbour", "contracts": ["talk"]},
        {"name": "again", "queue": "harbour", "contracts": ["talk"]},
        {"name": "dropped", "queue": "harbour", "contracts": ["talk"]},
        {"name": "last", "queue": "harbour", "contracts": ["talk"]},
        {"name": "shortly", "queue": "harbour", "contracts": ["short"]},
        {"name": "briefly", "queue": "harbour", "contracts": ["brief"]},
    ],
}
THIRD: dict[str, Any] = {
    "name": "third",
    "default_encryption": "off",
    "message_type": [{"name": "Ask"}, {"name": "Answer"}],
    "contract": [{"name": "talk", "types": {"Ask": "any"}}],
    "queue": [{"name": "third"}],
    "service": [{"name": "third", "queue": "third", "contracts": ["talk"]}],
}
OBJECTS: dict[str, Any] = {"broker": [MAIN, OTHER, THIRD]}

Words = list[str]
Sdk = Callable[["Place", Session], Awaitable[object]]
Cli = Callable[["Place"], Words]


class Row(NamedTuple):
    """One error, provoked."""

    name: str
    """As the appendix has it."""
    number: int | None
    names: str
    """What the message says, as a regular expression: of which object it speaks."""
    sdk: Sdk
    cli: Cli | str
    """The words of a command, or why there is none."""
    status: int = 1
    retryable: bool = False

    @property
    def code(self) -> str:
        parts = [f"_{c.lower()}" if c.isupper() else c for c in self.name]
        return "".join(parts).lstrip("_")


class Place:
    """The daemon, and dialogs in whatever state a row needs."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.until_done = ExitStack()
        """What a row has put in the way, until it is over."""
        self.bk = self.without_await("main")
        """A session without await, for what comes before a command."""

    def without_await(self, broker: str) -> Any:
        """A session that ends with the row."""
        return self.until_done.enter_context(sync.connect(self.served.address, broker=broker))

    def run(self, *command: str) -> None:
        """A command that has to succeed."""
        assert main([*command, "--address", self.served.address]) == 0

    def id_of(self, broker: str) -> bytes:
        return bytes(self.served.instance.brokers[broker].broker_id)

    def hold(self, group: str, broker: str = "main") -> None:
        """Another session locks a group until the row is over."""
        other = self.without_await(broker)
        self.until_done.enter_context(other.group(uuid.UUID(group).bytes))

    def session(self, broker: str = "main") -> Any:
        return brokerd.connect(self.served.address, broker=broker, service="desk")

    def begun(self, to: str = "shop", contract: str = "talk", **options: Any) -> str:
        """A dialog, as its handle is typed."""
        return show(self.bk.begin_dialog("desk", to, contract, **options))

    def sent(self, to: str = "shop", contract: str = "talk", **options: Any) -> str:
        handle = self.begun(to, contract, **options)
        self.bk.send(uuid.UUID(handle).bytes, b"x", "Ask")
        return handle

    def ended(self) -> str:
        """This side has ended, and nobody has acknowledged it."""
        handle = self.sent("nowhere")
        self.bk.end(uuid.UUID(handle).bytes)
        return handle

    def answering(self) -> str:
        """The other side of a dialog."""
        handle = self.sent("spare")
        (row,) = self.bk.view("conversation_endpoints", where={"conversation_handle": handle})
        (message,) = (
            one
            for one in self.bk.browse("spare")
            if show(one.conversation_id) == row["conversation_id"]
        )
        return show(message.handle)

    def group_of(self, handle: str) -> str:
        (row,) = self.bk.view("conversation_endpoints", where={"conversation_handle": handle})
        return str(row["conversation_group_id"])


async def begun(bk: Session, to: str = "shop", contract: str = "talk", **options: Any) -> bytes:
    return await bk.begin_dialog("desk", to, contract, **options)


async def sent(bk: Session, to: str = "shop", contract: str = "talk", **options: Any) -> bytes:
    handle = await begun(bk, to, contract, **options)
    await bk.send(handle, b"x", "Ask")
    return handle


async def ended(bk: Session) -> bytes:
    handle = await sent(bk, "nowhere")
    await bk.end(handle)
    return handle


async def error_on(bk: Session, handle: bytes, queue: str = "desk") -> None:
    """Wait for the Error that ends a dialog, and raise it."""
    for message in await bk.receive(queue, conversation=handle, wait=20, autocommit=True):
        if message.error is not None:
            await bk.end(handle)
            raise message.error


def refused(to: str, contract: str, message_type: str, body: bytes = b"x", **options: Any) -> Sdk:
    """A message that the receiver refuses with an Error."""

    async def provoke(_place: Place, bk: Session) -> None:
        handle = await begun(bk, to, contract, **options)
        await bk.send(handle, body, message_type)
        await error_on(bk, handle)

    return provoke


def sending(to: str, contract: str, message_type: str, body: str = "x", *more: str) -> Cli:
    """The same on the command line; the reply that is waited for is the Error."""
    words = ["send", "--from", "desk", "--to", to, "--contract", contract, "--type", message_type]
    return lambda _place: [*words, "--body", body, "--wait", "20", *more]


def on(message_type: str = "Ask", body: str = "x") -> Callable[[str], Words]:
    return lambda handle: ["send", "--on", handle, "--type", message_type, "--body", body]


def by_verb(work: Callable[[Session], Awaitable[object]]) -> Sdk:
    async def provoke(_place: Place, bk: Session) -> None:
        await work(bk)

    return provoke


def words(*given: str) -> Cli:
    return lambda _place: list(given)
