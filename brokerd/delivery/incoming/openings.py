"""Dialogs whose first message is not complete: how many of them a peer may have (DSP-16).

Reads:  endpoints of dialogs that were begun elsewhere.      Calls: nothing.
Never:  ends one: its fragments were acknowledged, so it stays until it is complete or over.

Nobody at this side knows of such a dialog, and only its peer can go on with it. What is refused is
not acknowledged and comes again; meanwhile dialogs that were let in complete and make room.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.ids import ConversationId, EndpointKey, InstanceId
from brokerd.protocol.transitions import State


class _Opening(Struct):
    peer: InstanceId | None
    broker: Broker | None = None
    endpoint: EndpointKey | None = None
    """Its endpoint; None until the commit of its first fragment is through, because before that the
    broker does not list it as incomplete, and it would be taken for one that is over."""


class Openings:
    """Those that peers have begun since the start of the instance."""

    __slots__ = ("_by_peer", "_has_refused", "_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[ConversationId, _Opening] = {}
        self._by_peer: Counter[InstanceId | None] = Counter()
        self._has_refused = False

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, conversation_id: ConversationId, peer: InstanceId | None) -> bool:
        """A fragment of a dialog came that nothing is stored of; False = it is one too many."""
        if conversation_id in self._known:
            return True
        if self._by_peer[peer] >= self._most:
            self._has_refused = True
            return False
        self._add(conversation_id, _Opening(peer))
        return True

    def stored(self, broker: Broker, live: Live, peer: InstanceId | None) -> None:
        """The commit of fragments of a dialog is through: it is an opening, or is no longer."""
        endpoint = live.endpoint
        if live.gone or endpoint.state is not State.STARTED_INBOUND:
            self.forget(endpoint.conversation_id)
            return
        if endpoint.conversation_id not in self._known:
            self._add(endpoint.conversation_id, _Opening(peer))
        known = self._known[endpoint.conversation_id]
        known.broker, known.endpoint = broker, endpoint.key

    def forget(self, conversation_id: ConversationId) -> None:
        """It is none, or nothing of it is left."""
        known = self._known.pop(conversation_id, None)
        if known is not None:
            self._by_peer[known.peer] -= 1
            if not self._by_peer[known.peer]:
                del self._by_peer[known.peer]

    def sweep(self) -> None:
        """Every tick: make room where one was refused since the last tick.

        An administrator, or the end of its lifetime, ends an opening without a fragment. To search
        for those at each refusal would make refusals dear, which a peer can cause at will."""
        if not self._has_refused:
            return
        self._has_refused = False
        for conversation_id, one in list(self._known.items()):
            if one.broker is not None and one.endpoint not in one.broker.incomplete:
                self.forget(conversation_id)

    def _add(self, conversation_id: ConversationId, opening: _Opening) -> None:
        self._known[conversation_id] = opening
        self._by_peer[opening.peer] += 1
