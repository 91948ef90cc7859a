"""Arriving acks and broker errors: they delete rows, bind endpoints or end dialogs (DLP-20).

Reads: items that arrived.      Calls: open_changesets, transmitter, orphan_replies.
Never: touches the messages that the far side sends; `sequencer.py` does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.state import Live
from brokerd.clock import Clock
from brokerd.delivery.incoming.counters import ArrivalCounters
from brokerd.delivery.incoming.open_changesets import OpenChangesets
from brokerd.delivery.outgoing.orphan_replies import OrphanReplies
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.ids import InstanceId, show
from brokerd.protocol import dialog
from brokerd.protocol.frames import Ack, BrokerErrorItem, Fragment
from brokerd.protocol.transitions import OVER, State
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import AUDIT_CONVERSATION, HISTORY_LOST


class Acknowledgements:
    """Applier of the far side's reports about the messages of this side."""

    __slots__ = (
        "_answers",
        "_changesets",
        "_clock",
        "_counters",
        "_log",
        "_peer_at",
        "_transmitter",
        "history_lost",
    )

    def __init__(
        self,
        *,
        changesets: OpenChangesets,
        transmitter: Transmitter,
        answers: OrphanReplies,
        counters: ArrivalCounters,
        clock: Clock,
        log: Log,
        peer_at: Callable[[str], InstanceId | None] | None,
    ) -> None:
        """Create the applier. `peer_at`: returns the instance at an address.

        `peer_at` None: broker errors count from any neighbour (NBT-24)."""
        self._changesets = changesets
        self._transmitter = transmitter
        self._answers = answers
        self._counters = counters
        self._clock = clock
        self._log = log
        self._peer_at = peer_at
        self.history_lost = 0
        """Number of dialogs ended because one side had lost its history (REL-15)."""

    def apply_ack(self, broker: Broker, live: Live, ack: Ack) -> None:
        """Apply an acknowledgement: step the endpoint, delete the acknowledged rows (DLP-20)."""
        endpoint = live.endpoint
        out = live.outgoing
        if tells(live, ack):
            if not self._step(broker, live, ack):
                return
            if out is not None and live.endpoint.bound and not endpoint.bound:
                now_bound = partial(self._transmitter.reclassification.bound, broker, out)
                self._changesets.when_durable(broker, now_bound)
            was_sent = out is not None and out.acks.first_acked_sent
            if live.gone and endpoint.is_initiator and not was_sent:
                settled = partial(self._answers.send_first_acked, broker, live, ack)
                # Once durable: a crash before it would bring message 0 back.
                self._changesets.when_durable(broker, settled)
        if out is None:
            return
        removal = out.acknowledge(ack, self._clock.monotonic())
        if removal is not None:
            self._changesets.for_broker(broker).remove_outgoing(live, removal)
        if not live.gone:
            self._transmitter.acknowledged(broker, out)
            if endpoint.is_initiator and not endpoint.first_acked and live.endpoint.first_acked:
                settle = partial(self._settle, broker, out)
                # Once durable: a crash before it would bring message 0 back (REL-14).
                self._changesets.when_durable(broker, settle)

    def _settle(self, broker: Broker, out: Outgoing) -> None:
        """Send FIRST_ACKED from now on: the target may forget that it had message 0 (DLP-57)."""
        out.acks.first_ack_stored()
        if not out.live.gone:
            self._transmitter.owe_ack(broker, out, 0, at_once=False)

    def _step(self, broker: Broker, live: Live, ack: Ack) -> bool:
        """Step the endpoint with an acknowledgement; False = it was refused."""
        outcome = self._changesets.for_broker(broker).step(
            live, dialog.AckReceived(ack, broker.options.replay_guard)
        )
        for effect in outcome.effects:
            if isinstance(effect, dialog.Refuse):
                if effect.code == dialog.HISTORY_LOST:
                    self._report_lost_history(broker, live, effect)
                else:
                    self._answers.refuse_ack(broker, live, ack, effect.code, effect.description)
                return False
            if isinstance(effect, dialog.Anomaly):
                self._counters.unsequenced(live, effect.what, 28010)
                return False
        return True

    def contradicts(self, broker: Broker, live: Live, item: Fragment) -> bool:
        """Return whether a repeat's message differs from the one stored under its sequence.

        True: its sender has lost its history and begun again at this sequence; the dialog was ended
        (REL-15)."""
        acks = None if live.outgoing is None else live.outgoing.acks
        if acks is None or acks.stored_message is None or item.sequence != acks.stored_sequence:
            return False
        if item.message_id == acks.stored_message or live.endpoint.state is not State.CONVERSING:
            return False
        outcome = self._changesets.for_broker(broker).step(
            live, dialog.FaultStruck(dialog.HISTORY_LOST, dialog.UNKNOWN_SENT)
        )
        for effect in outcome.effects:
            if isinstance(effect, dialog.Refuse):
                self._report_lost_history(broker, live, effect)
        return True

    def _report_lost_history(self, broker: Broker, live: Live, refusal: dialog.Refuse) -> None:
        """Report a dialog of which one side lost its history; end the far side, too (REL-15)."""
        self.history_lost += 1
        self._log.warning(
            HISTORY_LOST,
            broker=broker.name,
            conversation_id=show(live.endpoint.conversation_id),
            service=live.endpoint.service,
            far_service=live.endpoint.far_service,
            reason=refusal.description,
        )
        out = broker.outgoing(live)
        answer = partial(self._transmitter.refuse, broker, out, refusal.code, refusal.description)
        self._changesets.when_durable(broker, answer)

    def apply_error(
        self, broker: Broker, live: Live, item: BrokerErrorItem, neighbour: InstanceId | None
    ) -> None:
        """Apply an error made by a broker at once, even if earlier messages are missing
        (DLG-30)."""
        if not self._counts(live, neighbour):
            self._log.warning(
                AUDIT_CONVERSATION,
                subclass="error_from_elsewhere",
                broker=broker.name,
                conversation_id=show(live.endpoint.conversation_id),
                role="initiator" if live.endpoint.is_initiator else "target",
                code=item.code,
                neighbour=show(neighbour) if neighbour is not None else None,
            )
            return
        outcome = self._changesets.for_broker(broker).step(
            live, dialog.ErrorReceived(item.code, item.description)
        )
        for effect in outcome.effects:
            if isinstance(effect, dialog.Anomaly):
                if live.endpoint.state not in OVER:  # in these, each repeat brings it again
                    self._counters.unsequenced(live, effect.what)
                return

    def _counts(self, live: Live, neighbour: InstanceId | None) -> bool:
        """Return whether an error that this neighbour brought counts (NBT-24)."""
        if self._peer_at is None or neighbour is None or live.endpoint.security is not None:
            return True
        address = live.outgoing.route.address if live.outgoing is not None else None
        return address is not None and self._peer_at(address) == neighbour


def tells(live: Live, ack: Ack) -> bool:
    """Return whether an ack may change the endpoint, apart from the rows it acknowledges.

    Most acks do not, so the endpoint need not be stepped for them."""
    endpoint = live.endpoint
    return (
        not endpoint.bound
        or endpoint.far_broker != ack.broker_id
        or (endpoint.is_initiator and not endpoint.first_acked and ack.sequence >= 0)
        or (not endpoint.is_initiator and ack.first_acked and not endpoint.first_acked)
        or endpoint.state is State.DISCONNECTED_OUTBOUND
        or ack.highest_seen >= endpoint.send_sequence
        or ack.base_sequence > endpoint.receive_sequence
    )
