"""Bodies that arrive in fragments: the pieces that one changeset stores and deletes (DSP-15).

Reads:  the broker's memory of incomplete messages.      Calls: broker.unfinished, the changes.
Never:  decides whether a message is complete; the step of its endpoint does.

The fragments of an incomplete message are pieces of one stored body. When the last fragment
arrives, a large body stays in the store and becomes the body of its message; a small body is
deleted from there, and its message carries it.
"""

from __future__ import annotations

from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.ids import BodyKey
from brokerd.protocol.frames import Fragment
from brokerd.storage.changes import BodyRow, Changes, Owner, PieceRow


class ArrivingBodies:
    """The fragments that one changeset stores and deletes."""

    __slots__ = ("_broker", "_changes", "_marks")

    def __init__(self, broker: Broker, changes: Changes) -> None:
        self._broker = broker
        self._changes = changes
        self._marks: list[tuple[Live, bool]] = []

    def store(self, live: Live, fragment: Fragment) -> None:
        """Store a fragment that does not complete its message."""
        if live.endpoint.key not in self._broker.damaged_parts:
            self._append(live, fragment)
            self._broker.unfinished.add(live, fragment.body)
        self._marks.append((live, True))

    def join(self, live: Live, last: Fragment) -> tuple[bytes, BodyKey | None]:
        """Return the whole body of a message whose last fragment has arrived, and its key.

        The key is None if the body is small, so that it is no longer stored separately."""
        assert not live.parts_stored, "they are read before the last one is taken"
        body = b"".join((*live.parts, last.body))
        if len(body) < self._broker.options.large_body:
            self.delete(live)
            return body, None
        key = self._append(live, last)
        self._broker.unfinished.close(live)
        self._marks.append((live, False))
        return body, key

    def delete(self, live: Live) -> None:
        """Delete the message's fragments, stored or about to be stored by this changeset."""
        left = live.parts_stored or len(live.parts)
        key, changes = self._broker.unfinished.close(live), self._changes
        self._broker.damaged_parts.discard(live.endpoint.key)
        self._marks.append((live, False))
        if key is None:  # they were not read since the start
            changes.bodies_removed_of.append(live.endpoint.key)
            return
        kept = changes.pieces
        while kept and kept[-1].body_key == key:
            kept.pop()
            left -= 1
        if left or key not in changes.bodies:
            changes.bodies[key] = BodyRow(key, Owner.NOBODY, key, 0)
        else:  # no piece of the body is stored, or about to be
            del changes.bodies[key]

    def publish(self) -> None:
        """Update `Broker.incomplete`, because the changeset is durable."""
        incomplete = self._broker.incomplete
        for live, is_incomplete in self._marks:
            if is_incomplete:
                incomplete[live.endpoint.key] = live.endpoint.service
            else:
                incomplete.pop(live.endpoint.key, None)

    def _append(self, live: Live, fragment: Fragment) -> BodyKey:
        """Append a fragment to the stored pieces of its message."""
        key, changes = live.body_key, self._changes
        if key is None:
            key = self._broker.store.next_body_key()
            self._broker.unfinished.open(live, key)
            changes.bodies[key] = BodyRow(key, Owner.ARRIVING, live.endpoint.key, 0)
        changes.pieces.append(PieceRow(key, fragment.fragment, fragment.body))
        return key
