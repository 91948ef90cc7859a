"""Handlers of the demo: a warehouse that answers orders and adds up files.

Reads: its queue, through the SDK.      Calls: nothing of the daemon.
Never: keeps anything in memory between two transactions. What proves that every message was
processed once and in order is the running hash kept per group, in the very commit that receives
the message and sends the reply.
"""

import hashlib
from typing import Final

import msgspec
import orjson

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.demo.running_sha256 import RunningSha256

QUEUE: Final = "warehouse_q"
FILES: Final = "files/v1"
"""Contract of a dialog that sends a file."""
BATCH: Final = 100
IDLE: Final = 0.5
"""Seconds without a message after which a reader ends (ACT-25)."""


def chained(so_far: bytes, body: bytes) -> bytes:
    """The running hash of a dialog's orders: the SHA-256 of the hash so far and the next body."""
    return hashlib.sha256(so_far + body).digest()


async def warehouse(session: Session) -> None:
    """Receive, answer, commit, until the queue stays empty."""
    while True:
        async with session.transaction() as tx:
            messages = await tx.receive(QUEUE, BATCH, wait=IDLE)
            if not messages:
                return
            await _answer(tx, messages)


async def _answer(tx: Transaction, messages: list[Message]) -> None:
    """Answer the messages of one group; its state moves on in the same commit."""
    group = messages[0].group_id
    kept = await tx.state(group)
    count, running = (int.from_bytes(kept[:8], "big"), kept[8:]) if kept else (0, b"")
    if any(message.is_end or message.is_error for message in messages):
        # Whoever ended wants no answer any more, not even to what came before the end.
        await tx.end(messages[0].handle)
        await tx.set_state(group, None)
        return
    if messages[0].contract == FILES:
        await _add_up(tx, messages, count, RunningSha256(running))
        return
    for message in messages:
        running = chained(running, message.body or b"")
        number = _number(message.body)
        if number is None:  # a handler that raised would be tried again for ever
            await tx.end(message.handle, 1, 'an Order is JSON: {"number": 0}')
            await tx.set_state(group, None)
            return
        reply = {"number": number, "count": count, "sha256": running.hex()}
        await tx.send(message.handle, orjson.dumps(reply), "OrderReply")
        count += 1
    await tx.set_state(group, count.to_bytes(8, "big") + running)


async def _add_up(
    tx: Transaction, messages: list[Message], count: int, running: RunningSha256
) -> None:
    """Add the lines of a file to its hash; answer its end with that."""
    lines = [one.body or b"" for one in messages if one.message_type != "FileEnd"]
    running.add(b"".join(lines))
    count += len(lines)
    for message in messages:
        if message.message_type == "FileEnd":  # the last of its dialog
            digest = orjson.dumps({"lines": count, "sha256": running.hexdigest()})
            await tx.send(message.handle, digest, "FileDigest")
    await tx.set_state(messages[0].group_id, count.to_bytes(8, "big") + running.keep())


def _number(body: bytes | None) -> int | None:
    """The number of an order; None if it is no order."""
    try:
        return msgspec.json.decode(body or b"", type=_Order).number
    except msgspec.MsgspecError:
        return None


class _Order(msgspec.Struct):
    number: int
