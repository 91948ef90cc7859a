"""Messages as the command line prints them: as text for operators, as JSON for programs."""

import base64

from brokerd.cli.output import print_line
from brokerd.client.messages import Message
from brokerd.clock import Instant, show_instant
from brokerd.ids import show


def as_map(message: Message) -> dict[str, object]:
    """Return the message for `--json`; a body that is not UTF-8 is in base64, and marked."""
    body, encoding = _text(message.body)
    return {
        "message_type": message.message_type,
        "service": message.service,
        "contract": message.contract,
        "conversation_handle": show(message.handle),
        "conversation_id": show(message.conversation_id),
        "conversation_group_id": show(message.group_id),
        "sequence": message.sequence,
        "enqueued_at": show_instant(Instant(message.enqueued_at)),
        "delivery_count": message.delivery_count,
        "headers": show_headers(message),
        "body": body,
        "body_encoding": encoding,
    }


def print_message(message: Message) -> None:
    """Print a line about a message, and its body; for an Error also its meaning and the cure."""
    about = f"{message.message_type}  sequence {message.sequence}"
    print_line(f"{about}  to {message.service}  conversation {show(message.conversation_id)}")
    for name, value in show_headers(message).items():
        print_line(f"  {name}: {value}")
    body, encoding = _text(message.body)
    if message.error is not None:
        print_line(f"  {message.error.message}")
        print_line(f"  fix: {message.error.hint}")
    elif body is None:
        print_line("  (no body)")
    elif encoding == "utf-8":
        for line in body.splitlines() or [""]:
            print_line(f"  {line}")
    else:
        print_line(f"  {len(message.body or b'')} bytes, in base64: {body}")


def show_headers(message: Message) -> dict[str, str]:
    """Return the headers as text; a value of bytes that are not UTF-8 is in base64."""
    return {
        name: value if isinstance(value, str) else _text(value)[0] or ""
        for name, value in message.headers.items()
    }


def _text(body: bytes | None) -> tuple[str | None, str | None]:
    if body is None:
        return None, None
    try:
        return body.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode("ascii"), "base64"
