"""Bodies: one message of a queue with its content, on request and audited (MON-53, SX-10).

Reads:  a message by browsing, with the rights of the caller.    Calls: the audit.
Never:  receives the message or takes a lock, or shows a body without recording who has seen it.
"""

from typing import Final

import msgspec

from brokerd.client.messages import Message
from brokerd.errors import ConversationNotFound, GroupNotFound
from brokerd.http.page.desk import Desk, Row
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.queues import headers
from brokerd.http.page.shell import facts
from brokerd.http.page.words import badge, ident, lines, name, number, size
from brokerd.ids import show
from brokerd.telemetry.audit import Action

MOST_SHOWN: Final = 64 * 1024
"""Bytes of a body that are shown."""
_PAGES: Final = 20
_ROWS: Final = 1000
_LINE: Final = 16


async def by_order(desk: Desk, broker: str, queue: str, order: int) -> Message:
    """Return a message of a queue with its body; the audit records it.

    Raises `ConversationNotFound` if the message is not there any more."""
    session = await desk.session(broker)
    page = await session.browse_page(queue, (0, order - 1), 1)
    found = next((one for one in page.messages if one.queuing_order == order), None)
    if found is None:
        raise ConversationNotFound(f"message {order} is not in queue {queue!r} any more")
    desk.record(
        Action.BODY_SHOWN,
        f"{broker}/{queue}",
        conversation_id=show(found.conversation_id),
        message_id=show(found.message_id),
        sequence=found.sequence,
    )
    return found


async def order_of(desk: Desk, broker: str, group: Row) -> int:
    """Return the queuing order of the message for which a group is held.

    Raises `GroupNotFound` if the message is not among the first of its queue."""
    session = await desk.session(broker)
    wanted, after = group["culprit_message_id"], None
    for _ in range(_PAGES):
        page = await session.browse_page(group["queue"], after, _ROWS, bodies=False)
        for one in page.messages:
            if show(one.message_id) == wanted:
                return one.queuing_order
        after = page.after
        if after is None:
            break
    raise GroupNotFound(
        f"message {wanted} of this group is not among the first of queue {group['queue']!r}",
        hint="brokerd queue browse shows the messages of a queue",
    )


def draw(message: Message, broker: str, queue: str) -> Html:
    """Return a message with its body as HTML."""
    body, kind = message.body, "none"
    content: Child = el("p", "The message has no body.", class_="empty")
    if body is not None:
        kind, shown = readable(body)
        rest = len(body) - MOST_SHOWN
        content = join(
            lines(shown, MOST_SHOWN * 4),
            el("p", f"{rest} more bytes are not shown.", class_="remark") if rest > 0 else None,
        )
    found: Row = dict(message.headers)
    return join(
        facts(
            ("queue", name(queue, "/queue", {"broker": broker, "name": queue})),
            (
                "dialog",
                ident(
                    show(message.handle),
                    "/dialog",
                    {"broker": broker, "handle": show(message.handle)},
                ),
            ),
            ("number in the dialog", number(message.sequence)),
            ("type", name(message.message_type)),
            ("message id", el("code", show(message.message_id))),
            ("size", size(len(body or b""))),
            ("shown as", badge(kind)),
            ("headers", headers(found) if found else "none"),
        ),
        content,
    )


def readable(body: bytes) -> tuple[str, str]:
    """Return how a body is shown, and the text: JSON set out, text as it is, other bytes in hex."""
    part = body[:MOST_SHOWN]
    try:
        text = part.decode(
            "utf-8", "strict" if part is body or len(part) == len(body) else "ignore"
        )
    except UnicodeDecodeError:
        return "bytes", _hex(part[:4096])
    if len(body) <= MOST_SHOWN and text[:1] in ("{", "["):
        try:
            return "JSON", msgspec.json.format(text, indent=2)
        except msgspec.DecodeError:
            pass
    if "\0" in text:
        return "bytes", _hex(part[:4096])
    return "text", text


def _hex(body: bytes) -> str:
    found = []
    for at in range(0, len(body), _LINE):
        part = body[at : at + _LINE]
        plain = "".join(chr(one) if 32 <= one < 127 else "." for one in part)  # noqa: PLR2004
        found.append(f"{at:06x}  {part.hex(' '):<47}  {plain}")
    return "\n".join(found)
