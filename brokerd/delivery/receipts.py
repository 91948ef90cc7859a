"""Acknowledgements and broker errors that arrive: rows go, endpoints are bound, or fail (DLP-20).

Reads: items that arrived.      Calls: the open rounds, transmitter, answers.
Never: touches what the other side sends here; `sorting.py` does.
"""

from __future__ import annotations

from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.clock import Clock
from brokerd.delivery.accounts import Accounts
from brokerd.delivery.answers import LooseAnswers
from brokerd.delivery.open_rounds import OpenRounds
from brokerd.delivery.transmitter import Transmitter
from brokerd.protocol import dialog
from brokerd.protocol.frames import Ack, BrokerErrorItem
from brokerd.protocol.transitions import State


class Receipts:
    """What the far side says of what this side sent."""

    __slots__ = ("_accounts", "_answers", "_clock", "_rounds", "_transmitter")

    def __init__(
        self,
        *,
        rounds: OpenRounds,
        transmitter: Transmitter,
        answers: LooseAnswers,
        accounts: Accounts,
        clock: Clock,
    ) -> None:
        self._rounds = rounds
        self._transmitter = transmitter
        self._answers = answers
        self._accounts = accounts
        self._clock = clock

    def acknowledged(self, broker: Broker, live: Live, ack: Ack) -> None:
        """Turn an acknowledgement block into `AckReceived`, and let its rows go (DLP-20)."""
        endpoint = live.endpoint
        out = live.outgoing
        if tells(live, ack):
            outcome = self._rounds.of(broker).step(
                live, dialog.AckReceived(ack, broker.options.replay_guard)
            )
            for effect in outcome.effects:
                if isinstance(effect, dialog.Refuse):
                    self._answers.refuse_ack(broker, live, ack, effect.code, effect.description)
                    return
                if isinstance(effect, dialog.Anomaly):
                    self._accounts.unsequenced(live, effect.what)
                    return
            if live.gone and endpoint.is_initiator and (out is None or not out.settled_flag):
                self._answers.settle(broker, live, ack)
        if out is None:
            return
        out.peer_holds = ack.ranges
        rows = out.window.acknowledge(
            ack.sequence, ack.fragment, ack.highest_seen, ack.ranges, self._clock.monotonic()
        )
        if rows:
            out.acknowledged(rows)
            self._rounds.of(broker).acknowledge([row.transmission_order for row in rows])
        if not live.gone:
            self._transmitter.acknowledged(broker, out)
            if endpoint.is_initiator and not endpoint.first_acked and live.endpoint.first_acked:
                self._transmitter.owe_ack(broker, out, 0, at_once=False)  # DLP-57

    def errored(self, broker: Broker, live: Live, item: BrokerErrorItem) -> None:
        """An error made by a broker: unsequenced, taken on arrival (DLG-30)."""
        outcome = self._rounds.of(broker).step(
            live, dialog.ErrorReceived(item.code, item.description)
        )
        if any(isinstance(effect, dialog.Anomaly) for effect in outcome.effects):
            return
        if live.outgoing is not None and live.endpoint.state is State.ERROR:
            live.outgoing.held = "held_after_error"


def tells(live: Live, ack: Ack) -> bool:
    """Whether an ack says something the endpoint does not know yet."""
    endpoint = live.endpoint
    return (
        not endpoint.bound
        or endpoint.far_broker != ack.broker_id
        or (endpoint.is_initiator and not endpoint.first_acked and ack.sequence >= 0)
        or (not endpoint.is_initiator and ack.first_acked and not endpoint.first_acked)
        or endpoint.state is State.DISCONNECTED_OUTBOUND
        or ack.sequence >= endpoint.send_sequence
    )
