"""Handlers of the demo: a warehouse that answers orders and hashes files.

Reads: its queue, through the SDK.      Calls: nothing of the daemon.
Never: keeps state in memory between two transactions. The proof that every message was processed
once and in order is a running hash for each group, stored in the same commit that receives the
message and sends the reply.
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
"""Contract of the dialogs that send a file."""
BATCH: Final = 100
IDLE: Final = 0.5
"""Seconds without a message after which a reader ends (ACT-25)."""


def chained(so_far: bytes, body: bytes) -> bytes:
    """Return the next running hash of a dialog's orders: SHA-256(hash so far + next body)."""
    return hashlib.sha256(so_far + body).digest()


async def warehouse(session: Session) -> None:
    """Receive, answer and commit until no message has come for `IDLE`."""
    while True:
        async with session.transaction() as tx:
            messages = await tx.receive(QUEUE, BATCH, wait=IDLE)
            if not messages:
                return
            await _answer(tx, messages)


async def _answer(tx: Transaction, messages: list[Message]) -> None:
    """Answer the messages of one group and update its state in the same transaction."""
    group = messages[0].group_id
    kept = await tx.state(group)
    count, running = (int.from_bytes(kept[:8], "big"), kept[8:]) if kept else (0, b"")
    if any(message.is_end or message.is_error for message in messages):
        # A side that has ended the dialog expects no answer, not even to earlier messages.
        await tx.end(messages[0].handle)
        await tx.set_state(group, None)
        return
    if messages[0].contract == FILES:
        await _add_up(tx, messages, count, RunningSha256(running))
        return
    for message in messages:
        running = chained(running, message.body or b"")
        number = _number(message.body)
        if number is None:  # if the handler raised, the message would be retried for ever
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
    """Add the lines of a file to its hash; answer FileEnd with the hash."""
    lines = [one.body or b"" for one in messages if one.message_type != "FileEnd"]
    running.add(b"".join(lines))
    count += len(lines)
    for message in messages:
        if message.message_type == "FileEnd":  # the last message of its dialog
            digest = orjson.dumps({"lines": count, "sha256": running.hexdigest()})
            await tx.send(message.handle, digest, "FileDigest")
    await tx.set_state(messages[0].group_id, count.to_bytes(8, "big") + running.keep())


def _number(body: bytes | None) -> int | None:
    """Return the number of an order; None if the body is not an order."""
    try:
        return msgspec.json.decode(body or b"", type=_Order).number
    except msgspec.MsgspecError:
        return None


class _Order(msgspec.Struct):
    number: int
