"""Delivery inside one broker: a message goes onto the peer's queue in its sender's own changeset.

Reads:  the broker's memory, the catalog.      Calls: the changeset, which steps both endpoints.
Never:  waits, or uses the transmission queue (SND-14, SND-16, DLG-16).
Fails:  as a delivery between brokers would: a refusal becomes an Error at the sender (DLG-43).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from brokerd.broker import checks
from brokerd.broker.broker import Broker
from brokerd.broker.messages import NewMessage
from brokerd.broker.state import Live
from brokerd.clock import Instant
from brokerd.ids import BodyKey, MessageId
from brokerd.protocol import dialog
from brokerd.protocol.frames import ERROR as ERROR_FLAG
from brokerd.protocol.frames import Ack
from brokerd.protocol.headers import body_of
from brokerd.protocol.transitions import State


class Stepper(Protocol):
    """A changeset under construction, which steps endpoints and records the effects."""

    now: Instant

    def step(self, live: Live, event: dialog.Event) -> dialog.Step:
        """Step an endpoint and record the effects."""
        ...

    def create(self, live: Live) -> None:
        """Insert the row of a new endpoint, which is in memory already."""
        ...


class LocalPiece(msgspec.Struct, frozen=True, gc=False):
    """A message handed over inside one broker, in the form of a fragment (SND-14)."""

    sequence: int
    flags: int
    message_type: str
    message_id: MessageId
    body: bytes
    body_key: BodyKey | None
    fragment: int = 0
    fragments: int = 1
    ack: Ack | None = None


def hand_over(
    changeset: Stepper,
    broker: Broker,
    live: Live,
    effect: dialog.StoreOutgoing,
    message: NewMessage | None,
) -> None:
    """Deliver a message to the peer of `live`, in the sender's own transaction."""
    endpoint, flags = live.endpoint, effect.flags
    if not flags:
        pairs, service, far = broker.pairs, endpoint.service, endpoint.far_service
        pairs.between(service, far, endpoint.contract).sent += 1
    # The first message creates the target. Later the verbs have loaded the peer, if it exists.
    peer = live.peer
    if peer is None and endpoint.is_initiator and effect.sequence == 0:
        refusal = _open(changeset, broker, live, message)
        if refusal is not None:
            live.withdrew(1)
            changeset.step(live, dialog.ErrorReceived(*refusal))
            return
        peer = live.peer
    if peer is None or peer.gone:
        live.withdrew(not flags)
        changeset.step(live, dialog.ErrorReceived(dialog.PEER_GONE, "the other side is gone"))
        return
    if flags & ERROR_FLAG:
        error = dialog.ErrorReceived(
            endpoint.error_code or 0, endpoint.error_text or "", effect.sequence
        )
        outcome = changeset.step(peer, error)
    else:
        outcome = _arrive(changeset, broker, peer, effect, message)
    for answer in outcome.effects:
        if isinstance(answer, dialog.Refuse):
            changeset.step(live, dialog.ErrorReceived(answer.code, answer.description))
            return
    # No peer sends an acknowledgement of a direct delivery: it binds the dialog, and settles an END
    # or Error.
    if not live.endpoint.bound or flags:
        ack = Ack(effect.sequence, dialog.WHOLE, effect.sequence, 0, broker.broker_id)
        changeset.step(live, dialog.AckReceived(ack))


def _arrive(
    changeset: Stepper,
    broker: Broker,
    peer: Live,
    effect: dialog.StoreOutgoing,
    message: NewMessage | None,
) -> dialog.Step:
    """Step the peer for the message; return its step, which includes a refusal if any."""
    if message is None:
        message = NewMessage("", None, MessageId(broker.ids.fresh()))
    elif not effect.flags and peer.endpoint.state is State.CONVERSING:
        refusal = checks.refuse_message(
            peer.contract,
            message.message_type,
            body_of(message.body),
            known=broker.message_types,
            from_initiator=not peer.endpoint.is_initiator,
            judge=broker.inspection.evaluate,
        )
        if refusal is not None:  # both sides are errored (DLG-43)
            changeset.step(peer, dialog.FaultStruck(*checks.struck(refusal)))
            return dialog.Step(peer.endpoint, (dialog.Refuse(*refusal),))
    piece = LocalPiece(
        effect.sequence,
        effect.flags,
        message.message_type,
        message.message_id,
        message.body or b"",
        message.body_key,
    )
    run = dialog.FragmentsReceived([piece])  # type: ignore[list-item]  # all that a step reads
    return changeset.step(peer, run)


def _open(
    changeset: Stepper, broker: Broker, live: Live, message: NewMessage | None
) -> checks.Refusal | None:
    """Create the target endpoint of a dialog inside this broker, or return why not (DLP-40)."""
    endpoint = live.endpoint
    refusal = checks.refuse_dialog(
        broker.catalog_index,
        service=endpoint.far_service,
        contract=endpoint.contract,
        message_type=message.message_type if message else "",
        body=body_of(message.body) if message else None,
        expires_at=endpoint.expires_at,
        now=changeset.now,
        judge=broker.inspection.evaluate,
    )
    if refusal is not None:
        return refusal
    target = broker.new_target(
        conversation_id=endpoint.conversation_id,
        service=endpoint.far_service,
        contract=endpoint.contract,
        far_service=endpoint.service,
        far_broker=broker.broker_id,
        expires_at=endpoint.expires_at,
        now=changeset.now,
    )
    live.pair_with(target)
    changeset.create(target)
    return None
