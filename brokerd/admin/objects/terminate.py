"""Terminating: ends the dialogs that need a dropped object (OBJ-36 to OBJ-38).

Reads:  the endings of a plan; endpoints of one broker, in memory and in its store.
Calls:  broker.transaction, one per dialog: the dialog's group is locked as by any verb.
Never:  begins unless ordered explicitly (MAN-14), or notifies a peer before the end is durable.
Fails:  `LockTimeout` names the transaction that holds a group; ended dialogs stay ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from brokerd.admin.objects.plan import Ending
from brokerd.broker import sweeps
from brokerd.broker.blocked import settle
from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.ids import EndpointKey
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State, Trigger
from brokerd.storage.changes import Changes
from brokerd.verbs.group_locks import lock

BATCH = 500
"""Number of endpoints read at a time, and largest number of commits under way."""

Tell = Callable[[Broker, Live, int, str], None]
"""Function that sends an error made by this broker to the remote side of a dialog (DLP-42)."""

_KNOWN_TO_PEER: Final = frozenset(
    {State.STARTED_INBOUND, State.CONVERSING, State.DISCONNECTED_OUTBOUND}
)
"""States in which the peer knows the dialog and has not ended it."""


async def terminate(broker: Broker, endings: Sequence[Ending], tell: Tell) -> int:
    """End every dialog that fits an ending, each in its own transaction; return their number.

    The caller keeps fitting dialogs from beginning meanwhile (`Broker.close_objects`).
    """
    work = _Work(broker, endings, tell)
    lives = broker.endpoints.all()  # also those of transactions that are still open
    for live in lives:
        live.pin()
    await work.end_all(lives)
    await broker.store.commit(Changes())  # writes all commits that have joined so far
    after: EndpointKey | None = None
    while True:
        lives, after = await sweeps.batch(broker, after, BATCH)
        await work.end_all(lives)
        if after is None:
            return work.count


class _Work:
    def __init__(self, broker: Broker, endings: Sequence[Ending], tell: Tell) -> None:
        self._broker = broker
        self._endings = endings
        self._tell = tell
        self._durable: list[asyncio.Future[None]] = []
        self.count = 0

    async def end_all(self, lives: list[Live]) -> None:
        """End the dialogs that fit an ending, and release all pins of `lives`."""
        try:
            for live in lives:
                await self._end(live)
            await self._settled()
        finally:
            sweeps.release(lives)

    async def _settled(self) -> None:
        """Wait until the ends committed so far are durable."""
        waiting, self._durable = self._durable, []
        for one in waiting:
            await one

    async def _end(self, live: Live) -> None:
        """End one dialog, if it fits an ending."""
        if self._ending_of(live.endpoint) is None:
            return
        tx = Transaction(self._broker, "administration")
        tx.pin(live)
        try:
            await settle(lambda: lock(tx, live.group))
            ending = None if live.gone else self._ending_of(live.endpoint)
            if ending is None:  # it ended while the lock was waited for
                tx.roll_back()
                return
            await self._complete(tx, live)
        except BaseException:
            tx.roll_back()
            raise
        self._commit(tx, live, ending)
        if len(self._durable) >= BATCH:
            await self._settled()

    def _ending_of(self, endpoint: DialogEndpoint) -> Ending | None:
        return next((one for one in self._endings if one.fits(endpoint)), None)

    async def _complete(self, tx: Transaction, live: Live) -> None:
        """Load the data for the end: the number of messages outside memory, and a local peer."""
        if live.beyond is None:
            await settle(lambda: None if live.beyond is not None else live.queue.count_beyond(live))
        if live.is_local and live.peer is None:
            endpoint = live.endpoint
            found = await settle(
                lambda: self._broker.endpoints.look_up_conversation(
                    endpoint.conversation_id, not endpoint.is_initiator
                )
            )
            if found is not None:
                live.pair_with(found)
                tx.pin(found)

    # The peer is notified only by `done`: before the end is durable, a crash could undo it.
    def _commit(self, tx: Transaction, live: Live, ending: Ending) -> None:
        peer_knows = live.endpoint.state in _KNOWN_TO_PEER
        peer = live.peer if live.is_local else None
        tx.want(live, ending.event())
        tx.keep_locks()
        if peer_knows and peer is not None and not peer.gone:
            view = tx.view(peer)
            if view is not None and dialog.may(view, Trigger.PEER_ERROR):
                tx.want(peer, dialog.ErrorReceived(ending.code, ending.text))
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done() -> None:
            if peer_knows and not live.is_local:
                self._tell(self._broker, live, ending.code, ending.text)
            if not durable.done():
                durable.set_result(None)

        tx.commit(done)
        self._durable.append(durable)
        self.count += 1
