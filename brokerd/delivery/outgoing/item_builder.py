"""Outgoing items of one dialog: its fragments, its acknowledgement, its errors (DLP-7).

Reads: the dialog's endpoint, transmission object and keys.      Calls: peers.dialog_security.
Never: chooses what is sent or when; the transmitter does.
"""

from __future__ import annotations

from datetime import timedelta

from brokerd.broker.outgoing import Outgoing
from brokerd.clock import Clock
from brokerd.delivery.peers.dialog_security import DialogSecurity
from brokerd.ids import MessageId
from brokerd.protocol import fragments
from brokerd.protocol.frames import Ack, AckOnly, BrokerErrorItem, Fragment, Hop, Item
from brokerd.routing.classify import Local, Remote
from brokerd.routing.reasons import Reason
from brokerd.storage.changes import OutgoingRow


class ItemBuilder:
    """Builder of items; clears the acknowledgements and errors that they carry."""

    __slots__ = ("_clock", "_hops", "_security", "_time_to_live", "acks_carried", "acks_sent")

    def __init__(
        self, *, hops: int, time_to_live: timedelta, security: DialogSecurity, clock: Clock
    ) -> None:
        self._security = security
        self._clock = clock
        self._hops = hops
        self._time_to_live = time_to_live // timedelta(milliseconds=1)
        self.acks_sent = self.acks_carried = 0
        """Numbers of acknowledgements sent alone, and within a fragment (MON-9)."""

    def fragment(self, out: Outgoing, row: OutgoingRow, number: int, count: int) -> Fragment:
        """Return one fragment of a message, which carries an ack that is owed (DLP-18)."""
        endpoint = out.live.endpoint
        broker_id = out.live.broker_id
        acks = out.acks
        ack: Ack | None = None
        if acks.due_at is not None or acks.first_acked or not endpoint.is_initiator:
            ack = acks.build(base_sequence=out.base_sequence, broker_id=broker_id)
            self.acks_carried += acks.due_at is not None
            acks.ack_sent()
        # By position, as it is made for each fragment: by name it takes six times as long.
        item = Fragment(
            endpoint.conversation_id,
            endpoint.is_initiator,
            MessageId(row.message_id),
            row.sequence,
            number,
            count,
            row.flags,
            endpoint.service,
            endpoint.far_service,
            broker_id,
            endpoint.contract,
            row.message_type,
            endpoint.expires_at,
            out.incarnation,
            ack,
            self._hop(out),
            fragments.piece(row.body or b"", row.fragment_size, number),
        )
        if endpoint.security is None:
            return item
        keys = out.live.keys
        assert keys is not None, "a secured dialog is classified once its keys are loaded"
        # Sent again, it may meet a target that has forgotten the dialog, and needs keys to say so.
        with_header = row.sequence == 0 or out.window.attempts > 0
        sealed = self._security.seal(keys, item, with_header=with_header)
        if row.sequence == 0 and endpoint.is_initiator and not sealed.security:
            # The target will drop it: a first message that is not answered needs valid
            # certificates (SEC-40). It is sent again, as any other, until they are there.
            out.route.refused(Reason.NO_CERTIFICATE, keys.kept.principal, self._clock.utc())
        return sealed

    def unsequenced(self, out: Outgoing) -> list[Item]:
        """Return the errors and the dedicated ack of one dialog, and clear them (DLP-3, DLP-5)."""
        endpoint = out.live.endpoint
        broker_id = out.live.broker_id
        keys = self._security.load(out.live)
        if endpoint.security is not None and keys is None:
            return []  # they cannot be read (SEC-38): what is owed stays so
        items: list[Item] = [
            BrokerErrorItem(
                endpoint.conversation_id,
                endpoint.is_initiator,
                endpoint.service,
                endpoint.far_service,
                broker_id,
                code,
                text,
                self._hop(out),
            )
            for code, text in out.acks.errors_sent()
        ]
        if out.acks.due_at is not None:
            self.acks_sent += 1
            items.append(
                AckOnly(
                    endpoint.conversation_id,
                    endpoint.is_initiator,
                    endpoint.service,
                    endpoint.far_service,
                    broker_id,
                    out.acks.build(base_sequence=out.base_sequence, broker_id=broker_id),
                    self._hop(out),
                )
            )
            out.acks.ack_sent()
        if keys is None:
            return items
        return [self._security.seal_answer(item, keys) for item in items]

    def _hop(self, out: Outgoing) -> Hop:
        far = out.live.endpoint.far_broker
        hops, decision = self._hops, out.route.decision
        if type(decision) is Local:  # the dispatcher does not route it again (RTE-30)
            return Hop(far or b"", hops, self._time_to_live, 0, decision.broker_id)
        if type(decision) is Remote and decision.hops_used:  # routed through this instance (RTE-43)
            hops = max(0, hops - decision.hops_used)
        return Hop(far or b"", hops, self._time_to_live, 0)
