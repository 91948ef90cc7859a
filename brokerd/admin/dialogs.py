"""Administration of one dialog: transmission status and clean-up.

Reads: memory, and the store for an endpoint that is not in memory.
Calls: verbs.timers (clean_up) and a changeset of its own, for changes.
Never: takes a lock to answer a question (OBJ-47), or removes a dialog without a log line.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.broker.blocked import settle
from brokerd.broker.broker import Broker
from brokerd.broker.changeset import Changeset
from brokerd.broker.dialog_events import DialogEvent, fields_of
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.clock import Instant
from brokerd.delivery.outgoing.classification import HERE
from brokerd.delivery.outgoing.transmission_status import Attempts
from brokerd.errors import ConversationNotFound, InvalidArgument
from brokerd.ids import Handle, show
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.routing.reasons import status_text
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import CONVERSATION
from brokerd.transport.destinations import Destinations
from brokerd.verbs.timers import clean_up

MAX_REASON = 1000
GONE = "the other side was removed by an administrator"


class DialogAdministration:
    """Performer of the verbs of administration for single dialogs of one instance."""

    def __init__(
        self,
        *,
        explain: Callable[[Outgoing], tuple[str, str]],
        attempts: Callable[[Broker, Outgoing], Attempts],
        destinations: Destinations,
        tell_peer: Callable[[Broker, DialogEndpoint, int, str], None],
        log: Log,
    ) -> None:
        self._explain = explain
        self._attempts = attempts
        self._destinations = destinations
        self._tell_peer = tell_peer
        self._log = log

    async def transmission_status(self, broker: Broker, handle: Handle) -> dict[str, object]:
        """Return the state of a dialog's transmission (SND-23, XMT-16 to XMT-19).

        The status key is empty only if no message waits to be sent or acknowledged. Raises
        `ConversationNotFound`.
        """
        live = broker.endpoints.find(handle)
        if live is None and await broker.store.endpoints.by_handle(handle) is None:
            raise ConversationNotFound(f"no conversation {show(handle)} is open here")
        out = None if live is None else live.outgoing
        if out is None:  # an endpoint with waiting messages is always in memory
            return _answer("", "")
        key, detail = self._explain(out)
        if not key:
            return _answer("", "")
        tried = self._attempts(broker, out)
        since, next_at = out.route.status_since(key), tried.next_at
        if out.route.address is not None and out.route.address != HERE:
            at = self._destinations.status(out.route.address)
            if key == at.reason:
                since, next_at = at.since, at.suppressed_until
        return _answer(
            key,
            status_text(key, detail),
            since=since,
            attempts=tried.times,
            next_attempt_at=next_at,
            pending=out.pending,
            destination=out.route.address,
        )

    async def clean_up(
        self, broker: Broker, handle: Handle, reason: str, *, tell_peer: bool, who: str
    ) -> None:
        """End a dialog with clean-up, in any state (DLG-23, DLG-T27, PBT-9).

        The peer is not notified unless `tell_peer`. A target leaves a tombstone, so that messages
        that the peer repeats never begin the dialog again (DLG-24). Raises `ConversationNotFound`,
        and `InvalidArgument` without a reason.
        """
        if not reason.strip() or len(reason) > MAX_REASON:
            raise InvalidArgument(
                f"a clean-up needs a reason of 1 to {MAX_REASON} characters",
                hint="it is written to the log, for whoever misses the messages later",
            )
        tx = Transaction(broker, who)
        try:
            live = await settle(lambda: clean_up(tx, handle))
        except BaseException:
            tx.roll_back()
            raise
        before = live.endpoint
        peer = live.peer
        await tx.committed()
        self._log.warning(
            CONVERSATION,
            subclass="end_with_cleanup",
            broker=broker.name,
            **fields_of(DialogEvent("end_with_cleanup", before)) | {"reason": reason},
            by=who,
            peer_told=tell_peer,
        )
        if tell_peer:
            await self._notify_far_side(broker, live, before, peer)

    async def _notify_far_side(
        self, broker: Broker, live: Live, before: DialogEndpoint, peer: Live | None
    ) -> None:
        if not live.is_local:
            self._tell_peer(broker, before, dialog.PEER_GONE, GONE)
        elif peer is not None and not peer.gone:
            changeset = Changeset(broker, broker.clock.utc())
            changeset.step(peer, dialog.ErrorReceived(dialog.PEER_GONE, GONE))
            await changeset.commit()


def _answer(
    key: str,
    text: str,
    *,
    since: Instant | None = None,
    attempts: int = 0,
    next_attempt_at: Instant | None = None,
    pending: int = 0,
    destination: str | None = None,
) -> dict[str, object]:
    return {
        "status_key": key,
        "transmission_status": text,
        "status_since": since,
        "attempts": attempts,
        "next_attempt_at": next_attempt_at,
        "pending": pending,
        "destination": destination,
    }
