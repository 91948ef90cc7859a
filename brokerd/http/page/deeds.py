"""Deeds: release, discard, edit, and switching a queue, each after a confirmation (MON-54).

Reads:  forms.      Calls: the verbs of a session of the caller, which checks rights and is audited.
Never:  changes anything by GET, or without showing first what will happen.
Fails:  a refused deed is shown as an error, and nothing has changed.
"""

from collections.abc import Awaitable, Callable, Mapping
from shlex import quote
from typing import Final, NamedTuple

from brokerd.errors import InvalidArgument
from brokerd.http.page import bodies, parked, queues
from brokerd.http.page.desk import Desk, Query, Row, broker_of
from brokerd.http.page.html import Child, Html, as_it_is, el, join
from brokerd.http.page.shell import facts, field
from brokerd.http.page.words import badge, command, ident, link, name, number, sentence, url
from brokerd.ids import parse
from brokerd.telemetry.audit import Action
from brokerd.units import counted

MOST_EDITED: Final = 16 * 1024
"""Bytes of a body that can be edited here; a form has at most 64 KiB once it is encoded."""
DONE: Final = {
    "release": "The group was released; its messages can be received again.",
    "discard": "The message was discarded, and the group released.",
    "edit": "The message has its new body, and the group was released.",
    "switch": "The queue was switched.",
}
"""The notice after each deed. A query names a deed, so it cannot put other texts on the page."""


class Asked(NamedTuple):
    """A confirmation."""

    title: str
    content: Html


Confirm = Callable[[Desk, Query], Awaitable[Asked]]
Perform = Callable[[Desk, Query], Awaitable[str]]
"""Function that does a deed; it returns the URL to go on to."""


def form(desk: Desk, action: str, hidden: Mapping[str, object], *content: Child) -> Html:
    """Return a form that is sent by POST with the caller's proof that this page has made it."""
    kept = [el("input", type="hidden", name=key, value=value) for key, value in hidden.items()]
    proof = el("input", type="hidden", name="csrf", value=desk.caller.csrf)
    return el("form", proof, kept, content, method="post", action=action, class_="confirm")


def _ask(verb: str, back: str, *content: Child, is_grave: bool = False) -> Html:
    return el(
        "p",
        content,
        el("button", verb, class_="grave" if is_grave else "go"),
        " ",
        el("a", "Do nothing", href=back, class_="deed"),
        class_="deeds",
    )


def _reason() -> Html:
    return field("reason", "Why (for the log and the audit)", maxlength="1000")


# Groups.


async def _group(desk: Desk, query: Query) -> tuple[str, Row, dict[str, object], str]:
    found = await parked.load_one(desk, query)
    broker, group = found["broker"], found["group"]
    named: dict[str, object] = {"broker": broker, "group": group["conversation_group_id"]}
    return broker, group, named, url("/group", named)


def _about(broker: str, group: Row) -> Html:
    return facts(
        ("group", el("code", group["conversation_group_id"])),
        ("queue", name(group["queue"], "/queue", {"broker": broker, "name": group["queue"]})),
        ("state", badge(group["state"], "bad")),
        ("reason", sentence(group["park_reason"])),
        ("messages", number(group["messages"])),
        ("rollbacks in a row", number(group["rollback_streak"])),
        (
            "its conversation",
            ident(
                group["culprit_conversation_id"],
                "/dialogs",
                {"broker": broker, "q": group["culprit_conversation_id"]},
            ),
        ),
    )


async def _confirm_release(desk: Desk, query: Query) -> Asked:
    broker, group, named, back = await _group(desk, query)
    many = counted(group["messages"] or 0, "message")
    text = f"Its {many} can be received again, in order, from the first one on. If the handler "
    text += "fails as before, the group is parked again. Nothing is lost."
    return Asked(
        "Release a group?",
        join(
            _about(broker, group),
            el("p", text),
            form(desk, "/do/release", named, _reason(), _ask("Release", back)),
        ),
    )


async def _release(desk: Desk, sent: Query) -> str:
    broker = broker_of(desk, sent)
    session = await desk.session(broker)
    await session.admin.release_group(_id(sent), _why(sent), broker)
    return url("/parked", {"broker": broker, "done": "release"})


async def _confirm_discard(desk: Desk, query: Query) -> Asked:
    broker, group, named, back = await _group(desk, query)
    rest = max(0, (group["messages"] or 0) - 1)
    text = f"Message {group['culprit_message_id']} is deleted for good, unread: nobody gets it "
    text += f"back. The group is released, and its other {counted(rest, 'message')} can be "
    text += "received. The sender is not told."
    every = el(
        "p",
        el(
            "label",
            el("input", type="checkbox", name="everything", value="yes"),
            " all messages of the group, not only the first",
        ),
        class_="field",
    )
    return Asked(
        "Discard a message?",
        join(
            _about(broker, group),
            el("p", text),
            form(
                desk,
                "/do/discard",
                {**named, "message": group["culprit_message_id"]},
                every,
                _reason(),
                _ask("Discard", back, is_grave=True),
            ),
        ),
    )


async def _discard(desk: Desk, sent: Query) -> str:
    broker = broker_of(desk, sent)
    session = await desk.session(broker)
    await session.admin.discard_group(
        _id(sent),
        _why(sent),
        broker,
        everything=sent.get("everything") == "yes",
        message=_message(sent),
    )
    return url("/parked", {"broker": broker, "done": "discard"})


async def _confirm_edit(desk: Desk, query: Query) -> Asked:
    """Return the question before the body is shown; `edit_form` follows, by POST."""
    broker, group, named, back = await _group(desk, query)
    text = "You will see the body of the message for which the group is held, and can give it "
    text += "another one. That you have seen it is recorded in the audit."
    return Asked(
        "Edit a message?",
        join(
            _about(broker, group),
            el("p", text),
            form(desk, "/edit", named, _ask("Show the body", back)),
        ),
    )


async def edit_form(desk: Desk, sent: Query) -> Asked:
    """Return the form in which a body is edited; that it was seen is in the audit."""
    broker, group, named, back = await _group(desk, sent)
    order = await bodies.order_of(desk, broker, group)
    message = await bodies.by_order(desk, broker, group["queue"], order)
    body = message.body or b""
    lines = _line_ends(body)
    if len(body) > MOST_EDITED or lines is None:
        whole = group["conversation_group_id"]
        return Asked(
            "Edit a message",
            join(
                bodies.draw(message, broker, group["queue"]),
                el(
                    "p",
                    "This body cannot be edited in a form: it is too large, or not all of it "
                    "can be seen. Write the new one to a file:",
                ),
                el(
                    "p", command(f"brokerd group edit {whole} --file FILE --broker {quote(broker)}")
                ),
            ),
        )
    text = "When you save it, the message keeps its place and its identity, gets this body, and "
    text += "the group is released. The old body is lost."
    area = el(
        "p",
        el("label", "Body", for_="field-body"),
        el(
            "textarea",
            Html("\n"),
            as_it_is(body.decode()),
            name="body",
            id="field-body",
            rows="16",
            spellcheck="false",
        ),
        class_="field",
    )
    return Asked(
        "Edit a message",
        join(
            _about(broker, group),
            el("p", text),
            form(
                desk,
                "/do/edit",
                {**named, "lines": lines, "message": group["culprit_message_id"]},
                area,
                _reason(),
                _ask("Save and release", back, is_grave=True),
            ),
        ),
    )


def _line_ends(body: bytes) -> str | None:
    """Return how the lines of a body end, lf or crlf; None if it cannot be edited in a form.

    A browser sends every end of a line as CR LF, so mixed ones would be lost. Characters that
    nobody sees must not be edited unseen."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    without = text.replace("\r\n", "")
    if "\r" in without or not without.replace("\n", "").replace("\t", "").isprintable():
        return None
    if "\r\n" not in text:
        return "lf"
    return None if "\n" in without else "crlf"


async def _edit(desk: Desk, sent: Query) -> str:
    broker = broker_of(desk, sent)
    body = sent.get("body", "").replace("\r\n", "\n")
    if sent.get("lines") == "crlf":
        body = body.replace("\n", "\r\n")
    session = await desk.session(broker)
    await session.admin.edit_group(
        _id(sent), body.encode(), _why(sent), broker, message=_message(sent)
    )
    return url("/parked", {"broker": broker, "done": "edit"})


def _id(sent: Query) -> bytes:
    try:
        return parse(sent.get("group", ""))
    except ValueError:
        raise InvalidArgument("the form names no conversation group") from None


def _message(sent: Query) -> bytes:
    """Return the id of the message that the question was about.

    The verb refuses a group that is held for another one: somebody else may have discarded it."""
    try:
        return parse(sent.get("message", ""))
    except ValueError:
        raise InvalidArgument("nothing was changed: the form names no message") from None


def _why(sent: Query) -> str:
    return sent.get("reason", "")[:1000]


# Queues.


async def _confirm_switch(desk: Desk, query: Query) -> Asked:
    found = await queues.load_one(desk, {**query, "name": query.get("queue", ""), "after": ""})
    broker, row = found["broker"], found["queue"]
    status = "off" if query.get("status") == "off" else "on"
    hidden = {"broker": broker, "queue": row["name"], "status": status}
    if status == "off":
        text = "Nothing can be put into it or received from it. Messages for it wait at their "
        text += "senders, which are told why; its own messages stay. Its readers end."
    else:
        text = "Messages can be put into it and received from it again, and its readers start."
        if row["culprit_conversation_id"]:
            text += " It is off for a poison message: unless that was mended, it will be switched "
            text += "off again. brokerd queue cure ends the dialog of that message."
    back = url("/queue", {"broker": broker, "name": row["name"]})
    word = f"Switch {status}"
    return Asked(
        f"Switch a queue {status}?",
        join(
            facts(
                ("queue", name(row["name"])),
                ("broker", name(broker)),
                ("can be received", number(row["ready_count"])),
                ("parked", number(row["parked_count"])),
                ("switched last", sentence(row["status_reason"])),
                (
                    "culprit",
                    link(
                        "/dialogs",
                        el("code", row["culprit_conversation_id"]),
                        {"broker": broker, "q": row["culprit_conversation_id"]},
                    )
                    if row["culprit_conversation_id"]
                    else "none",
                ),
            ),
            el("p", text),
            form(desk, "/do/switch", hidden, _ask(word, back, is_grave=status == "off")),
        ),
    )


async def _switch(desk: Desk, sent: Query) -> str:
    broker, queue = broker_of(desk, sent), sent.get("queue", "")
    if sent.get("status") not in ("on", "off"):
        raise InvalidArgument("a queue is switched on or off")
    session = await desk.session(broker)
    await session.alter("queue", queue, status=sent["status"])
    desk.record(Action.QUEUE_SWITCHED, f"{broker}/{queue}", status=sent["status"])
    return url("/queue", {"broker": broker, "name": queue, "done": "switch"})


# One message.


async def _confirm_body(desk: Desk, query: Query) -> Asked:
    broker, queue = broker_of(desk, query), query.get("queue", "")
    hidden = {"broker": broker, "queue": queue, "order": _order(query)}
    text = "The body may hold data of other people. That you have seen it is recorded in the audit."
    return Asked(
        "Show the body of a message?",
        join(
            facts(
                ("queue", name(queue)),
                ("broker", name(broker)),
                ("message", number(hidden["order"])),
            ),
            el("p", text),
            form(
                desk,
                "/body",
                hidden,
                _ask("Show", url("/queue", {"broker": broker, "name": queue})),
            ),
        ),
    )


async def body(desk: Desk, sent: Query) -> Asked:
    """Return a message with its body; that it was seen is in the audit."""
    broker, queue = broker_of(desk, sent), sent.get("queue", "")
    message = await bodies.by_order(desk, broker, queue, _order(sent))
    return Asked("Body of a message", bodies.draw(message, broker, queue))


def _order(query: Query) -> int:
    text = query.get("order", "")
    if not text.isdecimal() or len(text) > 18:  # noqa: PLR2004  # within 63 bits
        raise InvalidArgument("order is the number of a message in its queue")
    return int(text)


CONFIRM: Final[dict[str, Confirm]] = {
    "release": _confirm_release,
    "discard": _confirm_discard,
    "edit": _confirm_edit,
    "switch": _confirm_switch,
    "body": _confirm_body,
}
PERFORM: Final[dict[str, Perform]] = {
    "release": _release,
    "discard": _discard,
    "edit": _edit,
    "switch": _switch,
}
SHOW: Final[dict[str, Confirm]] = {"/edit": edit_form, "/body": body}
"""Pages that show a body, by POST only."""
