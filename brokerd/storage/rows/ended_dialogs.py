"""Ended dialogs: the rows that they leave are deleted some at a time (REL-35, REL-36).

Reads:  nothing.      Calls: the writer's connection, in steps that `sweeps.py` submits.
Never:  deletes a row that its dialog still needs.

A dialog that ends may leave hundreds of thousands of messages in the transmission queue, or
retained messages. The flush that ends it deletes a bounded number; the rest is deleted in steps
between other flushes. No note is needed: the state of the endpoint, or its absence, shows at any
later time that these rows are no longer needed. So the next start finds the rows that a crash, a
stop or an older version has left, and deletes them.
"""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from brokerd.clock import Clock
from brokerd.ids import EndpointKey
from brokerd.protocol.transitions import State
from brokerd.storage.changes import OutgoingRemoval, Owner
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.rows import bodies
from brokerd.storage.rows.sweeps import Step
from brokerd.storage.statements import Script
from brokerd.storage.tables import PAGED

ENDED: Final = f"'{State.DISCONNECTED_OUTBOUND.value}', '{State.CLOSED.value}'"
"""States, as SQL, in which this side has ended its conversation."""
_OF: Final = "SELECT 1 FROM conversation_endpoints AS of_ WHERE of_.endpoint_key ="
OUTGOING_LEFT: Final = (
    f"NOT EXISTS ({_OF} transmission_queue.endpoint_key AND of_.state <> '{State.CLOSED.value}'"
    f" AND NOT (of_.state = '{State.DISCONNECTED_OUTBOUND.value}' AND of_.error_code IS NOT NULL"
    " AND transmission_queue.sequence < of_.end_sequence))"
)
"""Condition of a transmission queue row that is no longer needed: its endpoint is closed or does
not exist, or an Error has replaced the messages sent before it (DLG-T11)."""
RETAINED_LEFT: Final = (
    "retained_messages.endpoint_key IS NOT NULL"
    f" AND NOT EXISTS ({_OF} retained_messages.endpoint_key AND of_.state NOT IN ({ENDED}))"
)
"""Condition of a retained message that is no longer needed: this side has ended its conversation
(RCV-32). An archived message no longer belongs to a conversation."""
FIND_RETAINED: Final = (
    "SELECT endpoint_key FROM (SELECT DISTINCT endpoint_key FROM retained_messages)"  # noqa: S608
    f" AS retained_messages WHERE {RETAINED_LEFT}"
)
"""Statement that finds the endpoints whose retained messages are no longer needed."""

_FIND_OUTGOING: Final = (
    "SELECT transmission_order FROM transmission_queue WHERE endpoint_key = ? AND sequence <= ?"  # noqa: S608
    f" AND {PAGED} ORDER BY sequence LIMIT ?"
)
_LISTED: Final = "IN (SELECT value FROM json_each(?))"
_FIND_OF_RETAINED: Final = (
    f"SELECT queuing_order FROM retained_messages WHERE endpoint_key {_LISTED}"  # noqa: S608
    " ORDER BY endpoint_key, queuing_order LIMIT ?"
)
_DELETE_OUTGOING: Final = f"DELETE FROM transmission_queue WHERE transmission_order {_LISTED}"  # noqa: S608
_DELETE_RETAINED: Final = f"DELETE FROM retained_messages WHERE queuing_order {_LISTED}"  # noqa: S608


class LeftOutgoing(NamedTuple):
    """Rows of one endpoint in the transmission queue that are no longer needed."""

    endpoint: EndpointKey
    removal: OutgoingRemoval


class _Sweep:
    """A sweep of rows that are found and deleted by number, a limited count in each step."""

    owner: Owner
    delete: str

    def __init__(self) -> None:
        self.place = self.last = 0

    def step(
        self,
        connection: Connection,
        *,
        places: Sequence[int],  # of waiting messages
        limit: int,
        some_bodies: bool,
        clock: Clock,
    ) -> Step:
        """Delete the next `limit` rows, in a transaction of its own."""
        began = clock.monotonic()
        with transaction(connection):
            numbers, last = self._next(connection, limit)
            if numbers:
                script = Script()
                if some_bodies:
                    bodies.leave(script, self.owner, numbers)
                script.add(self.delete, (json.dumps(numbers),))
                script.run(connection)
        return Step(int(bool(numbers)), last, len(numbers), clock.monotonic() - began)

    def finish(self) -> None:
        """Do nothing: no note was stored for these rows, so there is none to delete."""

    def _next(self, connection: Connection, limit: int) -> tuple[list[int], int]:
        """Return the numbers of the next rows, and where to continue; no numbers = no more rows."""
        raise NotImplementedError  # each kind of row has its own


class OutgoingSweep(_Sweep):
    """A sweep of rows of the transmission queue."""

    owner = Owner.OUTGOING
    delete = _DELETE_OUTGOING

    def __init__(self, left: Sequence[LeftOutgoing]) -> None:
        super().__init__()
        self._known = [order for one in left for order in one.removal.orders]
        self._found = [one for one in left if one.removal.beyond]

    def _next(self, connection: Connection, limit: int) -> tuple[list[int], int]:
        # `last` first counts the known orders, then the endpoints whose rows are found by index: an
        # endpoint is searched again until a step finds fewer rows than it may delete.
        at = self.last
        numbers = self._known[at : at + limit]
        at += len(numbers)
        while at >= len(self._known) and len(numbers) < limit:
            which = at - len(self._known)
            if which == len(self._found):
                break
            endpoint, removal = self._found[which]
            values = endpoint, removal.through, limit - len(numbers)
            numbers += [row[0] for row in connection.execute(_FIND_OUTGOING, values)]
            if len(numbers) < limit:
                at += 1
        return numbers, at


class RetainedSweep(_Sweep):
    """A sweep of retained messages."""

    owner = Owner.RETAINED
    delete = _DELETE_RETAINED

    def __init__(self, keys: Sequence[EndpointKey]) -> None:
        super().__init__()
        self._keys = json.dumps(list(keys))

    def _next(self, connection: Connection, limit: int) -> tuple[list[int], int]:
        found = connection.execute(_FIND_OF_RETAINED, (self._keys, limit))
        return [row[0] for row in found], 0


def remove_retained(
    script: Script, keys: Sequence[EndpointKey], limit: int, *, some_bodies: bool
) -> None:
    """Delete at most `limit` retained messages of ended endpoints, in the flush that ends them."""
    if not keys:
        return
    values = json.dumps(list(keys)), limit
    if some_bodies:
        script.add(bodies.leaving(Owner.RETAINED, _FIND_OF_RETAINED), values)
    script.add(_DELETE_RETAINED_OF, values)


_DELETE_RETAINED_OF: Final = (
    f"DELETE FROM retained_messages WHERE queuing_order IN ({_FIND_OF_RETAINED})"  # noqa: S608
)
