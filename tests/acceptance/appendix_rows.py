"""The rows of the table of appendix A; what they stand on is in `appendix.py`."""

import asyncio
import uuid
from contextlib import suppress
from typing import Any

import pytest

from brokerd import Contract, sync
from brokerd.app.session import Session
from brokerd.errors import QueueFull
from brokerd.ids import show
from brokerd.model import END_DIALOG
from tests.acceptance.appendix import (
    LONG,
    NOWHERE,
    Place,
    Row,
    Words,
    begun,
    by_verb,
    ended,
    error_on,
    on,
    refused,
    sending,
    sent,
    words,
)

GUID = r"[0-9a-f]{8}-[0-9a-f-]{27}"
GONE = str(uuid.UUID(bytes=NOWHERE))
ONE_COMMAND = "a command is one short transaction: it holds nothing that another one could want"
COMFORT = "raised by the comfortable layer of the SDK, which commands do without"


# Steps of more than one line, for the SDK.


async def gone_there(place: Place, bk: Session) -> None:
    """The other side, in another broker, is removed; what is sent then is refused."""
    handle = await sent(bk, "harbour")
    async with place.session("other") as there:
        await there.admin.clean_up(await arrival(bk, there, handle, "harbour"), "the test")
    await bk.send(handle, b"again", "Ask")
    await error_on(bk, handle)


def gone_there_for_a_command(place: Place) -> Words:
    handle, there = arrived(place, "harbour")
    place.run("dialog", "end", there, "--cleanup", "--reason", "the test", "--broker", "other")
    return [*on()(handle), "--wait", "20"]


async def arrival(bk: Session, there: Session, handle: bytes, queue: str) -> bytes:
    """Receive at another broker until the dialog is there; its handle there."""
    (row,) = await bk.view("conversation_endpoints", where={"conversation_handle": show(handle)})
    while True:
        for one in await there.receive(queue, wait=20, autocommit=True):
            if show(one.conversation_id) == row["conversation_id"]:
                return one.handle


def arrived(place: Place, service: str, contract: str = "talk", broker: str = "other") -> Any:
    """A dialog with another broker, whose first message was received there; both handles."""
    handle = place.sent(service, contract)

    async def wait() -> bytes:
        async with place.session() as here, place.session(broker) as there:
            queue = "harbour" if broker == "other" else broker
            return await arrival(here, there, uuid.UUID(handle).bytes, queue)

    return handle, show(asyncio.run(wait()))


def altering(service: str, change: Any, contract: str = "talk") -> Any:
    """A dialog with another broker whose objects change under it."""

    async def provoke(place: Place, bk: Session) -> None:
        handle = await sent(bk, service, contract)
        async with place.session("other") as there:
            await arrival(bk, there, handle, "harbour")
            await change(there)
        await error_on(bk, handle)

    return provoke


def altering_by_command(service: str, *command: str, contract: str = "talk") -> Any:
    def prepare(place: Place) -> Words:
        handle, _ = arrived(place, service, contract)
        place.run(*command, "--broker", "other", "--terminate-existing")
        return receiving(handle)

    return prepare


def receiving(handle: str, queue: str = "desk") -> Words:
    """The command that shows an Error which has come, or comes soon."""
    return ["receive", queue, "--ack", "--conversation", handle, "--wait", "20"]


async def lifetime_over(_place: Place, bk: Session) -> None:
    await error_on(bk, await sent(bk, "nowhere", lifetime=1))


async def restored(place: Place, bk: Session, *, here: bool) -> None:
    handle = await sent(bk, "third")
    async with place.session("third") as there:
        other = await arrival(bk, there, handle, "third")
        await there.admin.error_conversations()
        if here:
            await error_on(bk, handle)
        await error_on(there, other, "third")


async def restored_here(place: Place, bk: Session) -> None:
    await restored(place, bk, here=False)


async def restored_there(place: Place, bk: Session) -> None:
    await restored(place, bk, here=True)


def restored_by_command(place: Place, *, here: bool) -> Words:
    handle, there = arrived(place, "third", broker="third")
    place.run("broker", "error-conversations", "third")
    return [*receiving(there, "third"), "--broker", "third"] if here else receiving(handle)


async def pinned(place: Place, bk: Session) -> None:
    handle = await begun(bk, "nobody", broker_id="CURRENT_DATABASE")
    await bk.send(handle, b"x", "Ask")
    await error_on(bk, handle)


async def related_to_another_service(_place: Place, bk: Session) -> None:
    other = await bk.begin_dialog("spare", "shop", "talk")
    await begun(bk, related_conversation=other)


async def _group_of(bk: Session, handle: bytes) -> str:
    (row,) = await bk.view("conversation_endpoints", where={"conversation_handle": show(handle)})
    return str(row["conversation_group_id"])


async def target_sends_what_is_the_initiators(place: Place, bk: Session) -> None:
    handle = uuid.UUID(await asyncio.to_thread(place.answering)).bytes
    await bk.send(handle, b"x", "Ask")


async def locked_by_another(place: Place, bk: Session) -> None:
    handle = await sent(bk)
    group = uuid.UUID(await _group_of(bk, handle)).bytes
    async with place.session() as other, other.group(group):
        await bk.send(handle, b"x", "Ask")


def locked_meanwhile(place: Place) -> Words:
    handle = place.sent()
    place.hold(place.group_of(handle))
    return on()(handle)


async def deadlock(place: Place, bk: Session) -> None:
    one, two = await sent(bk, "nowhere"), await sent(bk, "nowhere")
    groups = [uuid.UUID(await _group_of(bk, handle)).bytes for handle in (one, two)]

    async def cross(first: bytes, second: bytes, both: asyncio.Barrier) -> None:
        async with place.session() as session, session.transaction() as tx:
            await tx.state(first, take_lock=True)
            await both.wait()
            await tx.state(second, take_lock=True)

    both = asyncio.Barrier(2)
    done = await asyncio.gather(
        cross(groups[0], groups[1], both), cross(groups[1], groups[0], both), return_exceptions=True
    )
    (failed,) = [one for one in done if isinstance(one, BaseException)]
    raise failed


async def moved_while_waiting(_place: Place, bk: Session) -> None:
    handle = await bk.begin_dialog("mover", "nowhere", "talk")
    _place.served.waits.clear()
    waiting = asyncio.ensure_future(
        bk.receive("moved", conversation=handle, wait=20, autocommit=True)
    )
    await asyncio.to_thread(_place.served.waits.wait, 20)
    await bk.alter("service", "mover", queue="spare")
    try:
        await waiting
    finally:
        await bk.end(handle)
        await bk.alter("service", "mover", queue="moved")


def moved_while_the_command_waits(place: Place) -> Words:
    handle = place.bk.begin_dialog("mover", "nowhere", "talk")
    moving = place.served.when_one_waits(lambda: place.bk.alter("service", "mover", queue="spare"))
    place.until_done.callback(lambda: place.bk.alter("service", "mover", queue="moved"))
    place.until_done.callback(lambda: place.bk.end(handle))
    place.until_done.callback(moving.join)
    return ["receive", "moved", "--ack", "--conversation", show(handle), "--wait", "20"]


async def _with_a_lock(place: Place, work: Any) -> None:
    async with place.session("third") as bk, place.session() as admin:
        handle = await bk.begin_dialog("third", "nowhere", "talk")
        tx = bk.transaction()
        try:
            await tx.state(uuid.UUID(await _group_of(bk, handle)).bytes, take_lock=True)
            await work(admin, tx, handle)
        finally:
            tx.rollback()
            await admin.admin.enable("third")


async def in_the_way(place: Place, _bk: Session) -> None:
    await _with_a_lock(place, lambda admin, _tx, _handle: admin.admin.disable("third", wait=0))


def in_the_way_of_a_command(place: Place) -> Words:
    with sync.connect(place.served.address, broker="third") as there:
        handle = there.begin_dialog("third", "nowhere", "talk")
        (row,) = there.view("conversation_endpoints", where={"conversation_handle": show(handle)})
    place.hold(row["conversation_group_id"], broker="third")
    return ["broker", "disable", "third", "--wait", "0s"]


async def rolled_back_by_force(place: Place, _bk: Session) -> None:
    async def force(admin: Session, tx: Any, handle: bytes) -> None:
        await admin.admin.disable("third", force=True)
        await tx.send(handle, b"x", "Ask")
        await tx.commit()

    await _with_a_lock(place, force)


async def over(_place: Place, bk: Session) -> None:
    async with bk.transaction() as tx:
        pass
    await tx.send(await begun(bk), b"x", "Ask")


async def closed_before_the_answer(_place: Place, bk: Session) -> None:
    asked = bk.submit_send(await begun(bk), b"x", "Ask")
    await bk.close()
    await asked


async def more_than_is_retained(_place: Place, bk: Session) -> None:
    handle = await bk.begin_dialog("narrow", "shop", "talk")
    for _ in range(2):
        await bk.send(handle, b"x", "Ask")


def more_than_is_retained_by_a_command(place: Place) -> Words:
    handle = place.bk.begin_dialog("narrow", "shop", "talk")
    place.bk.send(handle, b"x", "Ask")
    return on()(show(handle))


async def more_than_a_queue_takes(_place: Place, bk: Session) -> None:
    handle = await bk.begin_dialog("desk", "full", "talk")
    for _ in range(2):
        await bk.send(handle, b"x", "Ask")


def more_than_a_queue_takes_by_a_command(place: Place) -> Words:
    handle = place.bk.begin_dialog("desk", "full", "talk")
    with suppress(QueueFull):  # the other test may have filled it
        place.bk.send(handle, b"x", "Ask")
    return on()(show(handle))


async def a_view_breaks(_place: Place, bk: Session) -> None:
    with _broken():
        await bk.view("brokers")


def a_view_breaks_a_command(place: Place) -> Words:
    place.until_done.enter_context(_broken())
    return ["broker", "ls"]


def _broken() -> Any:
    patch = pytest.MonkeyPatch()

    async def page(*_given: object, **_options: object) -> None:
        raise ZeroDivisionError("by nought")

    class Broken:
        def __enter__(self) -> None:
            patch.setattr("brokerd.admin.views.views.Views.page", page)

        def __exit__(self, *_error: object) -> None:
            patch.undo()

    return Broken()


# The comfortable layer.

TALK = Contract("comfort", initiator={"Ask": bytes}, target={"Answer": bytes})


async def waits_for_ever(_place: Place, bk: Session) -> None:
    await bk.declare(TALK, service="comfy", target=True)
    async with bk.transaction() as tx, bk.dialog("comfy", TALK, service="comfy") as dialog:
        await dialog.send(b"x", tx=tx)
        await dialog.receive(bytes, timeout=1)


async def ended_there(_place: Place, bk: Session) -> None:
    await bk.declare(TALK, service="comfy", target=True)
    async with bk.dialog("comfy", TALK, service="comfy") as dialog:
        await dialog.send(b"x")
        for message in await bk.receive("comfy_q", wait=20, autocommit=True):
            await bk.end(message.handle)
        await dialog.receive(bytes, timeout=20)


async def nothing_comes(_place: Place, bk: Session) -> None:
    await bk.declare(TALK, service="comfy", target=True)
    async with bk.dialog("nowhere", TALK, service="comfy") as dialog:
        await dialog.send(b"x")
        await dialog.receive(bytes, timeout=0.01)


async def another_type_comes(_place: Place, bk: Session) -> None:
    await bk.declare(TALK, service="comfy", target=True)
    async with bk.dialog("comfy", TALK, service="comfy") as dialog:
        await dialog.send(b"x")
        for message in await bk.receive("comfy_q", wait=20, autocommit=True):
            await bk.send(message.handle, b"x", "Answer")
        await dialog.receive(int, timeout=20)


LETTER = ["send", "--from", "desk", "--to", "shop", "--contract", "talk"]
ACTIVE = "activation.status=on"
HANDLER = {"handler": "tests.integration.handlers:idle", "status": "on"}


async def then(first: Any, second: Any) -> None:
    """One verb, and another one on what it returned."""
    await second(await first)


def told(to: str, contract: str, message_type: str, body: str = "x") -> Any:
    """How a refusal of the receiver is provoked, both ways."""
    return (
        refused(to, contract, message_type, body.encode()),
        sending(to, contract, message_type, body),
    )


def typed(message_type: str, body: bytes = b"x") -> Any:
    return by_verb(lambda bk: then(begun(bk), lambda one: bk.send(one, body, message_type)))


def typing(message_type: str, body: str = "x") -> Any:
    return lambda place: on(message_type, body)(place.begun())


def twice(handle: str) -> Words:
    return [*on()(handle), "--on", handle]


async def reached(place: Place, broker: str) -> None:
    async with place.session(broker):
        pass


async def drop_contract(there: Session) -> None:
    await there.alter("service", "shortly", contracts=[])
    await there.drop("contract", "short", terminate_existing=True)


def contract_dropped(place: Place) -> Words:
    handle, _ = arrived(place, "briefly", "brief")
    place.run("service", "alter", "briefly", "contracts=[]", "--broker", "other")
    place.run("contract", "drop", "brief", "--broker", "other", "--terminate-existing")
    return receiving(handle)


async def moved_after_the_end(_place: Place, bk: Session) -> None:
    handle = await ended(bk)
    await bk.move(handle, uuid.UUID(await _group_of(bk, handle)).bytes)


def moving(place: Place, handle: str) -> Words:
    return ["dialog", "move", handle, place.group_of(handle)]


ROWS = [
    # Told by the other side, in an Error message. Two are met on arrival: what changed the other
    # side's objects, or the time, has long returned when the Error comes, and `receive` shows it.
    Row("ContractNotSupported", 8408, "'shop'.*'private'", *told("shop", "private", "Ask")),
    Row("ContractNotFound", 8425, "'private'", *told("harbour", "private", "Ask")),
    Row("MessageTypeNotFound", 8428, "'Extra'", *told("harbour", "far", "Extra")),
    Row("ValidationFailed", 8430, "'Json'", *told("shop", "talk", "Json")),
    Row("SchemaValidationFailed", 9615, "'Order'", *told("shop", "talk", "Order", "{}")),
    Row("NotInContract", 8498, "'Other'.*'wide'", *told("harbour", "wide", "Other")),
    Row("WrongDirection", 8457, "'Mine'", *told("harbour", "far", "Mine")),
    Row(
        "RemoteServiceNotFound",
        8490,
        "'nobody'",
        pinned,
        lambda place: [*told("nobody", "talk", "Ask")[1](place), "--broker-id", "current_database"],
    ),
    Row("PeerGone", 8462, "", gone_there, gone_there_for_a_command, retryable=True),
    Row(
        "PeerServiceAltered",
        8469,
        "('altered'|'again').*'talk'",
        altering(
            "altered",
            lambda bk: bk.alter("service", "altered", terminate_existing=True, contracts=[]),
        ),
        altering_by_command("again", "service", "alter", "again", "contracts=[]"),
        status=0,
    ),
    Row(
        "PeerServiceDropped",
        8470,
        "'dropped'|'last'",
        altering("dropped", lambda bk: bk.drop("service", "dropped", terminate_existing=True)),
        altering_by_command("last", "service", "drop", "last"),
        status=0,
    ),
    Row(
        "PeerContractDropped",
        8487,
        "'short'|'brief'",
        altering("shortly", drop_contract, contract="short"),
        contract_dropped,
        status=0,
    ),
    Row(
        "LifetimeExceeded",
        8489,
        "",
        lifetime_over,
        lambda place: receiving(place.sent("nowhere", lifetime=1)),
        status=0,
        retryable=True,
    ),
    Row(
        "BrokerRestored",
        9719,
        "",
        restored_here,
        lambda place: restored_by_command(place, here=True),
        status=0,
        retryable=True,
    ),
    Row(
        "BrokerRestored",
        9720,
        "",
        restored_there,
        lambda place: restored_by_command(place, here=False),
        status=0,
    ),
    # What a verb refuses.
    Row(
        "TimerBeyondLifetime",
        8410,
        GUID,
        by_verb(lambda bk: then(begun(bk, lifetime=60), lambda one: bk.set_timer(one, 100))),
        lambda place: ["dialog", "timer", place.begun(lifetime=60), "100"],
        64,
    ),
    Row(
        "InvalidLifetime",
        8411,
        "lifetime.*not 0",
        by_verb(lambda bk: begun(bk, lifetime=0)),
        words(*LETTER, "--lifetime", "0"),
        64,
    ),
    Row(
        "ErrorNeedsCodeAndText",
        8419,
        GUID,
        by_verb(lambda bk: then(begun(bk), lambda one: bk.end(one, 7))),
        lambda place: ["dialog", "end", place.begun(), "--error", "7"],
        64,
    ),
    Row(
        "ServiceNotFound",
        8423,
        "'nobody'.*'main'",
        by_verb(lambda bk: bk.begin_dialog("nobody", "shop")),
        words("send", "--from", "nobody", "--to", "shop"),
        67,
    ),
    Row(
        "ContractNotFound",
        8425,
        "'none'.*'main'",
        by_verb(lambda bk: begun(bk, "shop", "none")),
        words("send", "--from", "desk", "--to", "shop", "--contract", "none"),
        67,
    ),
    Row(
        "ConversationNotFound",
        8426,
        GONE,
        by_verb(lambda bk: bk.end(NOWHERE)),
        words("dialog", "end", GONE),
        67,
    ),
    Row(
        "ConversationNotFound",
        8435,
        f"{GONE}.*position 1",
        by_verb(lambda bk: then(begun(bk), lambda one: bk.send([one, NOWHERE], b"x", "Ask"))),
        lambda place: [*on()(place.begun()), "--on", GONE],
        67,
    ),
    Row(
        "InvalidState",
        8427,
        f"{GUID}: end .* DO",
        by_verb(lambda bk: then(ended(bk), bk.end)),
        lambda place: ["dialog", "end", place.ended()],
    ),
    Row(
        "InvalidState",
        8429,
        f"{GUID}: send .* DO",
        by_verb(lambda bk: then(ended(bk), lambda one: bk.send(one, b"x", "Ask"))),
        lambda place: on()(place.ended()),
    ),
    Row(
        "InvalidState",
        8438,
        f"{GUID}: move .* DO",
        moved_after_the_end,
        lambda place: moving(place, place.ended()),
    ),
    Row(
        "InvalidState",
        8458,
        f"{GUID}: set_timer .* DO",
        by_verb(lambda bk: then(ended(bk), lambda one: bk.set_timer(one, 1))),
        lambda place: ["dialog", "timer", place.ended(), "1"],
    ),
    Row("MessageTypeNotFound", 8428, "'None'", typed("None"), typing("None"), 67),
    Row("NotInContract", 8431, "'talk'.*'Other'", typed("Other"), typing("Other"), 64),
    Row("WrongDirection", 8432, "'talk'.*'Answer'", typed("Answer"), typing("Answer"), 64),
    Row(
        "WrongDirection",
        8434,
        "'talk'.*'Ask'",
        target_sends_what_is_the_initiators,
        lambda place: on()(place.answering()),
        64,
    ),
    Row("ReservedMessageType", None, END_DIALOG, typed(END_DIALOG), typing(END_DIALOG), 64),
    Row("ValidationFailed", 8430, "'OwnJson'", typed("OwnJson"), typing("OwnJson"), 65),
    Row(
        "SchemaValidationFailed",
        9616,
        "'OwnOrder'",
        typed("OwnOrder", b"{}"),
        typing("OwnOrder", "{}"),
        65,
    ),
    Row(
        "NullBody",
        8433,
        "",
        by_verb(lambda bk: then(begun(bk), lambda one: bk.send(one, None, "Ask"))),  # type: ignore[arg-type]  # wrong on purpose
        "a body that is left out is absent, and there is no word for None",
    ),
    Row(
        "GroupNotFound",
        8436,
        f"{GONE}.*'desk'",
        by_verb(lambda bk: bk.receive("desk", group=NOWHERE, autocommit=True)),
        words("receive", "desk", "--ack", "--group", GONE),
        67,
    ),
    Row(
        "DuplicateHandle",
        8451,
        f"{GUID}.*position 1",
        by_verb(lambda bk: then(begun(bk), lambda one: bk.send([one, one], b"x", "Ask"))),
        lambda place: twice(place.begun()),
        64,
    ),
    Row(
        "MessageTooLarge",
        8459,
        "65537 bytes.*65536",
        by_verb(lambda bk: then(begun(bk), lambda one: bk.send(one, bytes(65_537), "Ask"))),
        lambda place: [*on(body="x" * 65_537)(place.begun())],
        65,
    ),
    Row(
        "GroupServiceMismatch",
        9610,
        f"{GUID}.*'spare'",
        related_to_another_service,
        lambda place: [
            *LETTER,
            "--related",
            show(place.bk.begin_dialog("spare", "shop", "talk")),
        ],
        64,
    ),
    Row(
        "QueueDisabled",
        9617,
        "'closed'",
        by_verb(lambda bk: bk.receive("closed", autocommit=True)),
        words("receive", "closed", "--ack"),
    ),
    Row(
        "QueueDisabled",
        9618,
        "'kept_closed'",
        by_verb(
            lambda bk: then(
                bk.begin_dialog("keeper", "shop", "talk"), lambda one: bk.send(one, b"x", "Ask")
            )
        ),
        words("send", "--from", "keeper", *LETTER[3:], "--type", "Ask"),
    ),
    Row("LockTimeout", None, GUID, locked_by_another, locked_meanwhile, 75, retryable=True),
    Row("DeadlockVictim", None, "youngest", deadlock, ONE_COMMAND, retryable=True),
    Row(
        "QueueNotFound",
        None,
        "'dsk'.*'main'.*\"desk\"",
        by_verb(lambda bk: bk.receive("dsk", autocommit=True)),
        words("receive", "dsk", "--ack"),
        67,
    ),
    Row(
        "InvalidName",
        None,
        "to_service 'xxx.*257",
        by_verb(lambda bk: begun(bk, LONG)),
        words("send", "--from", "desk", "--to", LONG),
        64,
    ),
    Row(
        "InvalidArgument",
        None,
        "brokers.*'colour'",
        by_verb(lambda bk: bk.view("brokers", where={"colour": "red"})),
        words("broker", "ls", "--where", "colour=red"),
        64,
    ),
    Row(
        "BadRequest",
        None,
        "view: .*limit|reason|length",
        by_verb(lambda bk: bk.view_page("brokers", limit=0)),
        words("broker", "clean-up", "third", "--reason", ""),
        64,
    ),
    Row("InternalError", None, "view.*by nought", a_view_breaks, a_view_breaks_a_command, 70),
    Row(
        "BrokerUnavailable",
        None,
        "'broken'",
        lambda place, _bk: reached(place, "broken"),
        words("broker", "ls", "--broker", "broken"),
        69,
        retryable=True,
    ),
    Row(
        "ServiceMoved",
        None,
        f"{GUID}.*'spare'",
        moved_while_waiting,
        moved_while_the_command_waits,
    ),
    Row("Busy", None, "third|transaction", in_the_way, in_the_way_of_a_command, 75, retryable=True),
    Row("NoSuchTx", None, "transaction", over, ONE_COMMAND),
    Row(
        "TransactionAborted",
        None,
        "delivery|disable|rolled",
        rolled_back_by_force,
        ONE_COMMAND,
        retryable=True,
    ),
    Row(
        "OutcomeUnknown",
        None,
        "commit",
        closed_before_the_answer,
        "a connection would have to be lost between a commit and its answer",
    ),
    Row(
        "QuotaExceeded",
        None,
        f"'narrow'.*{GUID}",
        more_than_is_retained,
        more_than_is_retained_by_a_command,
        75,
        retryable=True,
    ),
    Row(
        "QueueFull",
        None,
        "'full'.*limit of 1 message",
        more_than_a_queue_takes,
        more_than_a_queue_takes_by_a_command,
        75,
        retryable=True,
    ),
    # Objects.
    Row(
        "ActivationIncomplete",
        9613,
        'queue "q".activation.handler',
        by_verb(lambda bk: bk.create("queue", "q", activation={"status": "on"})),
        words("queue", "create", "q", "activation.status=on"),
        64,
    ),
    Row(
        "ActivationConflict",
        9717,
        '"watched"',
        by_verb(lambda bk: bk.alter("queue", "watched", activation=HANDLER)),
        words("queue", "alter", "watched", f"activation.handler={HANDLER['handler']}", ACTIVE),
        65,
    ),
    Row(
        "ActivationConflict",
        9718,
        '"busy"',
        by_verb(
            lambda bk: bk.create(
                "event_notification", "n", events=["QUEUE_ACTIVATION"], queue="busy", service="ops"
            )
        ),
        words(*["event", "create", "n", "QUEUE_ACTIVATION", "--queue", "busy", "--service", "ops"]),
        65,
    ),
    Row(
        "DuplicateBroker",
        9772,
        "'main'.*'copy'",
        by_verb(lambda bk: bk.admin.enable("copy")),
        words("broker", "enable", "copy"),
        65,
    ),
    Row(
        "InvalidPriority",
        None,
        'priority "p".level',
        by_verb(lambda bk: bk.create("priority", "p", level=11)),
        words("priority", "create", "p", "level=11"),
        64,
    ),
    Row(
        "DuplicatePriority",
        None,
        '"p".*"first"',
        by_verb(lambda bk: bk.create("priority", "p", contract="talk")),
        words("priority", "create", "p", "contract=talk"),
        65,
    ),
    Row(
        "MayNotOwnCertificates",
        28083,
        "'public' may not own certificates",
        by_verb(
            lambda bk: bk.create("remote_service_binding", "b", service="s", principal="public")
        ),
        words("binding", "create", "b", "service=s", "principal=public"),
        64,
    ),
    Row(
        "DuplicateBinding",
        None,
        'service "urn:bound".*"bound"',
        by_verb(
            lambda bk: bk.create(
                "remote_service_binding", "b", service="urn:bound", principal="peer:west"
            )
        ),
        words("binding", "create", "b", "service=urn:bound", "principal=peer:west"),
        65,
    ),
    Row(
        "InUse",
        None,
        "'?desk",
        by_verb(lambda bk: bk.drop("queue", "desk")),
        words("queue", "drop", "desk"),
        65,
    ),
    Row(
        "ObjectNotFound",
        None,
        "queue 'none'.*'main'",
        by_verb(lambda bk: bk.drop("queue", "none")),
        words("queue", "drop", "none"),
        67,
    ),
    Row(
        "ObjectExists",
        None,
        "queue 'desk'.*'main'",
        by_verb(lambda bk: bk.create("queue", "desk")),
        words("queue", "create", "desk"),
        65,
    ),
    Row(
        "ContractUnusable",
        8492,
        'contract "c".types',
        by_verb(lambda bk: bk.create("contract", "c", types={"Answer": "target"})),
        words("contract", "create", "c", "types.Answer=target"),
        64,
    ),
    # The comfortable layer.
    Row("WouldWaitForever", None, "transaction", waits_for_ever, COMFORT),
    Row("DialogEnded", None, "", ended_there, COMFORT),
    Row("ReceiveTimeout", None, "", nothing_comes, COMFORT, retryable=True),
    Row("UnexpectedMessage", None, "Answer", another_type_comes, COMFORT),
]

NOT_YET = {
    "HandlerLeftTransactionOpen": "logged about a reader, and met by nobody (ACT-23)",
    "AccessDenied": "takes a second user: see tests/integration/sessions/test_permissions.py",
    "AlreadyAcknowledgedElsewhere": "takes two instances with one service: the tests of the wire",
    "DialogIdle": "takes months without a message: tests/integration/broker/test_idle_dialogs.py",
    "HistoryLost": "takes a peer that was restored: the tests of the wire",
    "NoBinding": "takes an encrypted dialog: see tests/integration/verbs/test_sending.py",
    "NoCertificate": "takes two instances: see tests/integration/delivery/test_dialog_security.py",
    "StoreFull": "takes a full disk: see tests/integration/storage/test_no_room.py",
}
"""Errors of the appendix that no row provokes, and why."""
