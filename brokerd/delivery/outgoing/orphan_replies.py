"""Answers to items whose dialog no longer has an endpoint here (DLP-48, DLG-T28, DLP-57).

Reads: the item that is answered.      Calls: peers.router, protocol.frames.
Never: keeps anything durable: if an answer is lost, the peer repeats the item and gets another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.delivery.outgoing.ack_log import AckLog
from brokerd.delivery.peers.dialog_security import DialogSecurity
from brokerd.delivery.peers.router import Router
from brokerd.ids import BrokerId, InstanceId
from brokerd.protocol.dialog import WHOLE
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import Ack, AckOnly, BrokerErrorItem, Fragment, Hop, Item
from brokerd.routing.classify import Delayed, Local, Remote
from brokerd.routing.reasons import Reason
from brokerd.security.sealing import AnswerKeys

MOST_WAITING = 10_000
"""Limit of answers that wait, over all destinations: a peer may provoke any number of them, and by
the name of its service choose where each goes (RTE-62). Beyond it a destination that gets a further
answer loses its oldest one."""


HandBack = Callable[[InstanceId, list[Item]], bool]
"""Gives items to a neighbour over its open connection; False = it accepts none now (NBT-1)."""


class OrphanReplies:
    """Unsequenced items without an endpoint here, by destination."""

    def __init__(
        self,
        *,
        router: Router,
        security: DialogSecurity,
        hop: Callable[[BrokerId], Hop],
        ack_log: AckLog,
    ) -> None:
        self._router = router
        self._security = security
        self._ack_log = ack_log
        self._hop = hop
        self._waiting: dict[str, deque[Item]] = {}
        self._count = 0
        self.notify: Callable[[str], None] = lambda _address: None
        self.deliver_here: Callable[[list[Item]], None] = lambda _items: None
        """Receives answers for brokers of this instance."""
        self.hand_back: HandBack = lambda _neighbour, _items: False

    def acknowledge(
        self,
        broker: Broker,
        item: Fragment,
        *,
        neighbour: InstanceId | None = None,
        keys: AnswerKeys | None = None,
    ) -> None:
        """Acknowledge a message of a dialog that is gone, so that it is not sent again.

        For a target FIRST_ACKED is set: an initiator that is gone never sends message 0 again."""
        settled = not item.from_initiator
        ack = Ack(item.sequence, WHOLE, item.sequence, 0, broker.broker_id, first_acked=settled)
        self._send(
            broker,
            item,
            AckOnly(
                item.conversation_id,
                not item.from_initiator,
                item.to_service,
                item.from_service,
                broker.broker_id,
                ack,
                self._hop(item.from_broker),
            ),
            neighbour,
            keys,
        )

    def refuse(
        self,
        broker: Broker,
        item: Fragment,
        code: int,
        text: str,
        *,
        neighbour: InstanceId | None = None,
        keys: AnswerKeys | None = None,
    ) -> None:
        """Answer an item with an error made by this broker (DLP-42)."""
        self._send(
            broker,
            item,
            BrokerErrorItem(
                item.conversation_id,
                not item.from_initiator,
                item.to_service,
                item.from_service,
                broker.broker_id,
                code,
                text,
                self._hop(item.from_broker),
            ),
            neighbour,
            keys,
        )

    def refuse_ack(self, broker: Broker, live: Live, ack: Ack, code: int, text: str) -> None:
        """End the stray endpoint of a broker other than the bound one (DLP-45)."""
        endpoint = live.endpoint
        self._route(
            broker,
            endpoint.far_service,
            BrokerId(ack.broker_id),
            self._security.seal_answer(
                BrokerErrorItem(
                    endpoint.conversation_id,
                    endpoint.is_initiator,
                    endpoint.service,
                    endpoint.far_service,
                    broker.broker_id,
                    code,
                    text,
                    self._hop(BrokerId(ack.broker_id)),
                ),
                live.keys,
            ),
            endpoint.is_initiator,
        )

    def send_error(self, broker: Broker, endpoint: DialogEndpoint, code: int, text: str) -> None:
        """Send the far side the error with which this side's endpoint was removed (DLG-M7)."""
        item = BrokerErrorItem(
            endpoint.conversation_id,
            endpoint.is_initiator,
            endpoint.service,
            endpoint.far_service,
            broker.broker_id,
            code,
            text,
            self._hop(endpoint.far_broker or BrokerId(b"")),
        )
        self._send_stored(broker, endpoint, item)

    def send_first_acked(self, broker: Broker, live: Live, ack: Ack) -> None:
        """Send FIRST_ACKED for an initiator that is gone and could not send it before (DLP-57)."""
        endpoint = live.endpoint
        final = Ack(
            sequence=endpoint.receive_sequence - 1,
            fragment=WHOLE if endpoint.receive_sequence else -1,
            highest_seen=endpoint.receive_sequence - 1,
            base_sequence=endpoint.send_sequence,
            broker_id=broker.broker_id,
            first_acked=True,
        )
        self._route(
            broker,
            endpoint.far_service,
            BrokerId(ack.broker_id),
            self._security.seal_answer(
                AckOnly(
                    endpoint.conversation_id,
                    True,
                    endpoint.service,
                    endpoint.far_service,
                    broker.broker_id,
                    final,
                    self._hop(BrokerId(ack.broker_id)),
                ),
                live.keys,
            ),
            True,
        )

    def request_first_acked(self, broker: Broker, endpoint: DialogEndpoint) -> None:
        """Ask the initiator whether message 0 is settled, by another acknowledgement (DLP-57)."""
        assert not endpoint.is_initiator, "only a target is fooled by a repeated message 0"
        far, service = endpoint.far_broker, endpoint.far_service
        if far is None:
            return
        last = endpoint.receive_sequence - 1
        received = Ack(last, WHOLE if last >= 0 else -1, last, 0, broker.broker_id)
        question = AckOnly(
            endpoint.conversation_id,
            False,
            endpoint.service,
            service,
            broker.broker_id,
            received,
            self._hop(far),
        )
        self._send_stored(broker, endpoint, question)

    def confirm_first_acked(
        self, broker: Broker, item: AckOnly, keys: AnswerKeys | None = None
    ) -> None:
        """Answer FIRST_ACKED to a target that acknowledges to a deleted initiator (DLP-57)."""
        final = Ack(-1, -1, -1, 0, broker.broker_id, first_acked=True)
        answer = AckOnly(
            item.conversation_id,
            True,
            item.to_service,
            item.from_service,
            broker.broker_id,
            final,
            self._hop(item.from_broker),
        )
        sealed = self._security.seal_answer(answer, keys)
        self._route(broker, item.from_service, item.from_broker, sealed, True)

    def dequeue(self, address: str, room: int) -> list[Item]:
        """Dequeue and return up to `room` answers for a destination."""
        waiting = self._waiting.get(address)
        if waiting is None:
            return []
        items = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        self._count -= len(items)
        if not waiting:
            del self._waiting[address]
        return items

    def _send(
        self,
        broker: Broker,
        item: Fragment,
        answer: Item,
        neighbour: InstanceId | None,
        keys: AnswerKeys | None,
    ) -> None:
        """Send an answer to the item's broker; without a route, back to `neighbour` (NBT-1)."""
        answer = self._security.seal_answer(answer, keys)
        far, initiator = item.from_broker, not item.from_initiator
        if self._route(broker, item.from_service, far, answer, initiator) or not neighbour:
            return
        if self.hand_back(neighbour, [answer]) and self._ack_log.is_on:
            self._ack_log.sent(broker, answer, None)

    def _send_stored(self, broker: Broker, endpoint: DialogEndpoint, item: Item) -> None:
        """Send an item of an endpoint that may be in the store only.

        One that is secured sends nothing while its keys cannot be read (SEC-38)."""
        keys = self._security.stored_keys(broker, endpoint)
        if endpoint.security is not None and keys is None:
            return
        sealed = self._security.seal_answer(item, keys)
        far, service = endpoint.far_broker, endpoint.far_service
        self._route(broker, service, far, sealed, endpoint.is_initiator)

    def _route(
        self, broker: Broker, service: str, far: BrokerId | None, answer: Item, from_initiator: bool
    ) -> bool:
        """Route an answer and queue it.

        False: no route leads to its destination. True also if this broker's delivery is off: the
        answer is dropped, and must not be sent back the way the item came either."""
        decision = self._router.for_orphan_reply(
            broker, service, far, answer.conversation_id, from_initiator=from_initiator
        )
        if not isinstance(decision, Delayed) and self._ack_log.is_on:
            self._ack_log.sent(broker, answer, None)
        if isinstance(decision, Local):  # by call_soon: the dispatcher may be amid other items
            hop = msgspec.structs.replace(answer.hop, local_target=decision.broker_id)
            answer = msgspec.structs.replace(answer, hop=hop)
            asyncio.get_running_loop().call_soon(self.deliver_here, [answer])
        if not isinstance(decision, Remote):
            return isinstance(decision, Local) or decision.reason == Reason.SENDER_DISABLED
        waiting = self._waiting.setdefault(decision.address, deque())
        waiting.append(answer)
        self._count += 1
        if self._count > MOST_WAITING:
            self._drop(decision.address if len(waiting) > 1 else next(iter(self._waiting)))
        self.notify(decision.address)
        return True

    def _drop(self, address: str) -> None:
        """Drop the oldest answer for a destination."""
        waiting = self._waiting[address]
        waiting.popleft()
        self._count -= 1
        if not waiting:
            del self._waiting[address]
