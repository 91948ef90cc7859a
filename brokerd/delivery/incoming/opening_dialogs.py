"""Opening dialogs: those whose first message is not complete, and their limit per peer (DSP-16).

Reads:  endpoints of dialogs begun by peers.      Calls: nothing.
Never:  ends a dialog: its fragments were acknowledged, so it stays until it is complete or over.

No program on this side knows of an opening, and only its peer can complete it. A refused fragment
is not acknowledged, so the peer sends it again, when other openings may have been completed.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.ids import ConversationId, EndpointKey, InstanceId
from brokerd.protocol.transitions import State


class _Opening(Struct):
    peer: InstanceId | None
    broker: Broker | None = None
    endpoint: EndpointKey | None = None
    """Key of the endpoint; None until the commit of the first fragment is durable. Before that the
    broker does not list it as incomplete, and `sweep` would treat the dialog as over."""


class OpeningDialogs:
    """The openings that peers have begun since the start of the instance."""

    __slots__ = ("_by_peer", "_has_refused", "_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[ConversationId, _Opening] = {}
        self._by_peer: Counter[InstanceId | None] = Counter()
        self._has_refused = False

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, conversation_id: ConversationId, peer: InstanceId | None) -> bool:
        """Count a dialog without stored fragments; False = the peer has reached its limit."""
        if conversation_id in self._known:
            return True
        if self._by_peer[peer] >= self._most:
            self._has_refused = True
            return False
        self._add(conversation_id, _Opening(peer))
        return True

    def stored(self, broker: Broker, live: Live, peer: InstanceId | None) -> None:
        """Update, after a commit of fragments, whether the dialog counts as an opening."""
        endpoint = live.endpoint
        if live.gone or endpoint.state is not State.STARTED_INBOUND:
            self.remove(endpoint.conversation_id)
            return
        if endpoint.conversation_id not in self._known:
            self._add(endpoint.conversation_id, _Opening(peer))
        known = self._known[endpoint.conversation_id]
        known.broker, known.endpoint = broker, endpoint.key

    def remove(self, conversation_id: ConversationId) -> None:
        """Remove a dialog that is no longer an opening, or has no fragments left."""
        known = self._known.pop(conversation_id, None)
        if known is not None:
            self._by_peer[known.peer] -= 1
            if not self._by_peer[known.peer]:
                del self._by_peer[known.peer]

    def sweep(self) -> None:
        """Remove ended openings, every tick, if an opening was refused since the last tick.

        An administrator or the end of its lifetime can end an opening without the arrival of a
        fragment. A search for such openings at each refusal would make refusals expensive, and a
        peer can cause any number of refusals."""
        if not self._has_refused:
            return
        self._has_refused = False
        for conversation_id, one in list(self._known.items()):
            if one.broker is not None and one.endpoint not in one.broker.incomplete:
                self.remove(conversation_id)

    def _add(self, conversation_id: ConversationId, opening: _Opening) -> None:
        self._known[conversation_id] = opening
        self._by_peer[opening.peer] += 1
