"""The wait of a send until its large body is stored, ahead of the message (SND-12, TRN-40).

Reads:  the transaction.      Calls: the store.
Never:  makes a message visible: the commit does, and notes the message that owns the body.
Fails:  never by itself; if there is no room, it waits for some, as any commit does (REL-26).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction, TxState
from brokerd.errors import StoreFault

STORED = "stored"
"""The name of a send's wait until its body is stored."""


def before_send(tx: Transaction, lives: Sequence[Live], body: bytes | None) -> Blocked | None:
    """Wait until a large body is stored: one copy for each message and each retained copy.

    The groups stay locked meanwhile, so later messages queue behind the message of the body."""
    if body is None or len(body) < tx.broker.options.large_body:
        return None
    wanted = len(lives) + sum(live.queue.retains for live in lives)
    missing = wanted - tx.kept_bodies.count(body)
    if missing <= 0:
        return None
    return Blocked(STORED, partial(_keep, tx, body, missing))


def _keep(tx: Transaction, body: bytes, copies: int, resume: Resume) -> None:
    async def keep() -> None:
        store, size = tx.broker.store, tx.broker.options.large_body
        try:
            for _ in range(copies):
                key = await store.keep(body, size)
                # If the transaction has ended meanwhile, it has released its bodies without this
                # one.
                if tx.state is not TxState.OPEN:
                    store.discard_bodies([key])
                    return
                tx.kept_bodies.add(body, key)
        except StoreFault:
            return  # the daemon stops, and no request is answered any more
        resume()

    tx.broker.spawn(keep())
