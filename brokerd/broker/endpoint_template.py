"""Template of target endpoints that differ only in their ids.

Reads: the broker's memory.      Calls: broker.endpoints.
Never: writes, or checks whether such a dialog is allowed: the caller has, once for all of them.

What `Broker.new_target` looks up for each endpoint is looked up once: dialogs of one message come
by the hundred, in one moment, from one service to another.
"""

from __future__ import annotations

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.state import Group, Live
from brokerd.ids import ConversationId, GroupId, Handle, MessageId
from brokerd.protocol.endpoint import DialogEndpoint

_replace = msgspec.structs.replace


class EndpointTemplate:
    """Makes targets in memory whose initiators are in the same broker, and gone already."""

    __slots__ = ("_broker", "_contract", "_queue", "_template", "coming")

    def __init__(self, broker: Broker, template: DialogEndpoint) -> None:
        """Create the maker; `template`: such a target, except for its key and its ids."""
        self._broker = broker
        self._template = template
        self._queue = broker.queues[broker.services[template.service].queue]
        self._contract = broker.contracts[template.contract]
        self.coming = broker.pairs.between(
            template.far_service, template.service, template.contract
        )
        """Counts the messages that arrive for these targets."""
        broker.lifetimes.at_latest(template.expires_at)

    def make(self, conversation_id: ConversationId, last_message: MessageId) -> Live:
        """Create the target of a new conversation and group; the changeset inserts its row."""
        broker, template, queue = self._broker, self._template, self._queue
        key, group_id = broker.store.next_endpoint_key(), GroupId(broker.ids.fresh())
        endpoint = _replace(
            template,
            key=key,
            handle=Handle(broker.ids.fresh()),
            conversation_id=conversation_id,
            group_id=group_id,
            last_message=last_message,
        )
        group = broker.groups[group_id] = Group(group_id, template.service, queue)
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
