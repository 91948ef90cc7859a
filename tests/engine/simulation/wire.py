"""Wire: faults of an instance, or of a frame, at the moment a frame leaves (HK-6).

If an instance dies while it sends, the frame may have left it or not; if an acknowledgement is lost
or late, its sender does not notice.
Reads:  items of boxcars.      Calls: the node that sends.
Never:  changes a frame.
"""

from random import Random
from typing import Final

from brokerd.protocol.frames import Kind as FrameKind
from brokerd.protocol.frames import decode_boxcar
from brokerd.protocol.items import END, AckOnly, Fragment
from brokerd.testing.mangler import Mangler
from brokerd.testing.rng import chance
from tests.engine.simulation.nodes import Node
from tests.engine.simulation.surround import Surround

_HEAD: Final = 5
"""Bytes of a frame's length and kind."""
_Copies = list[tuple[float, bytes]]
_Said = Fragment | AckOnly


class Wire:
    """A mangler that draws faults of one direction before it passes frames to the next mangler."""

    def __init__(self, shared: Surround, node: Node, then: Mangler, rng: Random) -> None:
        self._shared = shared
        self._node = node
        self._then = then
        self._rng = rng
        self._acknowledged: set[bytes] = set()
        """Conversation ids of dialogs with an acknowledgement sent before."""

    def __call__(self, frame: bytes) -> _Copies:
        """Draw faults for a frame, and pass it on unless it is lost."""
        if self._node.calm or frame[_HEAD - 1 : _HEAD] != bytes((FrameKind.BOXCAR,)):
            return self._then(frame)
        items = [one for one in decode_boxcar(frame[_HEAD:]) if isinstance(one, Fragment | AckOnly)]
        acks = {one.conversation_id for one in items if one.ack is not None}
        first = acks - self._acknowledged
        self._acknowledged |= acks
        if self._is_lost(items, first=bool(first), acks=bool(acks)):
            return []
        late = self._rng.uniform(0.1, 5.0) if self._is_late(items, acks=bool(acks)) else 0.0
        return [(delay + late, copy) for delay, copy in self._then(frame)]

    def _is_lost(self, items: list[_Said], *, first: bool, acks: bool) -> bool:
        """Draw the faults of a frame; return whether it is lost.

        A node that dies before the write has not sent the frame; one that dies after it has.
        """
        if any(_ends_message(one) for one in items) and self._happens("fragment.last_missing"):
            return True
        if any(_ends_dialog(one) for one in items):
            self._happens("dialog.end_before_ack", dies=True)
        if any(isinstance(one, Fragment) for one in items):
            if self._happens("transmit.before_write", dies=True):
                return True
            self._happens("transmit.after_write", dies=True)
        elif acks:
            if self._happens("ack.before_write", dies=True) or self._happens("ack.dropped"):
                return True
            if first and self._happens("ack.first_lost"):
                return True
            self._happens("ack.after_write", dies=True)
        return False

    def _is_late(self, items: list[_Said], *, acks: bool) -> bool:
        alone = acks and not any(isinstance(one, Fragment) for one in items)
        return alone and self._happens("ack.delayed")

    def _happens(self, name: str, *, dies: bool = False) -> bool:
        shared = self._shared
        if not chance(self._rng, shared.plan.features.wire.get(name, 0.0)):
            return False
        shared.counts[f"wire: {name}"] += 1
        if dies:
            shared.loop.call_soon(self._node.die, name, self._node.boots, context=shared.context)
        return True


def _ends_message(item: _Said) -> bool:
    """Return whether the item is the last of several fragments."""
    return isinstance(item, Fragment) and 0 < item.fragment == item.fragments - 1


def _ends_dialog(item: _Said) -> bool:
    return isinstance(item, Fragment) and bool(item.flags & END)
