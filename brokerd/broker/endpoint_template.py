"""Target endpoints that differ only in their ids, made one after the other.

Reads: the broker's memory.      Calls: broker.endpoints.
Never: writes, or checks whether such a dialog is allowed: the caller has, once for all of them.

What `Broker.new_target` finds out for each endpoint is found out once: dialogs of one message come
by the hundred, in one moment, from one service to another.
"""

from __future__ import annotations

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.state import Group, Live
from brokerd.ids import ConversationId, GroupId, Handle, MessageId
from brokerd.protocol.endpoint import DialogEndpoint

_replace = msgspec.structs.replace


class Alike:
    """A maker of targets in memory whose initiators are in the same broker, and gone already."""

    __slots__ = ("_broker", "_contract", "_mold", "_queue", "coming")

    def __init__(self, broker: Broker, mold: DialogEndpoint) -> None:
        """Create the maker; `mold`: such a target, except for its key and its ids."""
        self._broker = broker
        self._mold = mold
        self._queue = broker.queues[broker.services[mold.service].queue]
        self._contract = broker.contracts[mold.contract]
        self.coming = broker.pairs.between(mold.far_service, mold.service, mold.contract)
        """Counts the messages that arrive for these targets."""
        broker.lifetimes.at_latest(mold.expires_at)

    def make(self, conversation_id: ConversationId, last_message: MessageId) -> Live:
        """Create the target of a new conversation and group; the changeset inserts its row."""
        broker, mold, queue = self._broker, self._mold, self._queue
        key, group_id = broker.store.next_endpoint_key(), GroupId(broker.ids.fresh())
        endpoint = _replace(
            mold,
            key=key,
            handle=Handle(broker.ids.fresh()),
            conversation_id=conversation_id,
            group_id=group_id,
            last_message=last_message,
        )
        group = broker.groups[group_id] = Group(group_id, mold.service, queue)
        group.mark_whole()
        live = group.members[key] = Live(
            endpoint,
            group=group,
            queue=queue,
            contract=self._contract,
            coming=self.coming,
            is_local=True,
        )
        broker.endpoints.add(live)
        return live
