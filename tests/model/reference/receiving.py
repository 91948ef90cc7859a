"""Receiving: which group, which messages, in which order (GRP-14 to GRP-16, RCV-1 to RCV-13).

PURE.  Where two groups or two conversations stand equal in everything the specification names, the
handles that were seen in the real answer decide.
"""

from collections.abc import Sequence

from tests.model.reference.state import (
    Endpoint,
    Group,
    Message,
    Received,
    Refused,
    Transaction,
)
from tests.model.reference.verbs import ENDED, Verbs

Seen = Sequence[bytes | None]
"""Handles and bodies, or the id of a group, of the real answer, in its order."""


class Receiving(Verbs):
    """`receive` and `get_group`, and what they choose."""

    def receive(
        self,
        tx: Transaction,
        queue: str,
        *,
        limit: int | None,
        conversation: bytes | None,
        group: bytes | None,
        seen: Seen,
    ) -> list[Message]:
        """What is received now; the empty list if there is nothing (yet)."""
        if queue not in self.catalog.queues:
            raise Refused("queue_not_found")
        if queue in self.off:
            raise Refused("queue_disabled")  # RCV-17
        if limit == 0:
            return []  # RCV-12; whether the selector names something is then open
        among = [one for one in self.on_queue(queue) if self._is_selected(tx, one, group)]
        if conversation is not None:
            among = [self._own(tx, queue, conversation)]
        elif group is not None:
            self._check_group(tx, queue, group)
        chosen = self._best(tx, queue, among, (), seen)
        if chosen is None:
            return []
        self.take_lock(tx, chosen)
        found = self._in_order(tx, [one for one in among if tx.group_of(one) is chosen], seen)
        found = found[:limit]
        for message in found:
            message.taker = tx
            tx.taken.append(message)
            tx.done.append(Received(message))
        return found

    def get_group(self, tx: Transaction, queue: str, seen: Seen) -> Group | None:
        """Lock and return the best group; None if there is none (yet)."""
        if queue not in self.catalog.queues:
            raise Refused("queue_not_found")
        if queue in self.off:
            raise Refused("queue_disabled")  # GRP-17
        among = list(self.on_queue(queue))
        chosen = self._best(tx, queue, among, tx.returned, seen)
        chosen = chosen or self._best(tx, queue, among, (), seen)  # GRP-16
        if chosen is not None:
            self.take_lock(tx, chosen)
            tx.returned.append(chosen)
        return chosen

    def would_get(self, tx: Transaction, queue: str) -> bool:
        """Whether an unselective call would get something now."""
        return self._best(tx, queue, list(self.on_queue(queue)), (), ()) is not None

    # Choosing.

    def _own(self, tx: Transaction, queue: str, handle: bytes) -> Endpoint:
        endpoint = self.known(tx, handle)
        if endpoint.queue != queue or tx.state_of(endpoint) in ENDED:  # RCV-5
            raise Refused("conversation_not_found")
        return endpoint

    def _check_group(self, tx: Transaction, queue: str, group: bytes) -> None:
        found = self.group(tx, group)
        if found is None or self.catalog.services[found.service].queue != queue:
            raise Refused("group_not_found")

    def _is_selected(self, tx: Transaction, endpoint: Endpoint, group: bytes | None) -> bool:
        return group is None or tx.group_of(endpoint).id == group

    def ready(self, tx: Transaction, endpoint: Endpoint) -> list[Message]:
        """The messages of an endpoint that this transaction could receive, in order (RCV-8)."""
        if tx.state_of(endpoint) in ENDED:
            return []
        found = [one for one in endpoint.messages if one.taker is None and one.durable]
        return sorted(found, key=lambda one: (one.sequence, one.rank))

    def _best(
        self,
        tx: Transaction,
        queue: str,
        among: Sequence[Endpoint],
        without: Sequence[Group],
        seen: Seen,
    ) -> Group | None:
        """The group to take (GRP-14, GRP-15), of those endpoints' groups."""
        ready: dict[Group, list[Endpoint]] = {}
        for endpoint in among:
            group = tx.group_of(endpoint)
            free = group.holder in (None, tx) and endpoint.group.holder in (None, tx)
            if free and group not in without and self.ready(tx, endpoint):
                ready.setdefault(group, []).append(endpoint)

        def place(group: Group) -> tuple[int, int, int]:
            members = [one for one in self.on_queue(queue) if tx.group_of(one) is group]
            waiting = [one for one in members if self.ready(tx, one)]
            level = max(one.level for one in waiting)
            messages = [one for each in waiting for one in self.ready(tx, each)]
            oldest = min(one.rank for one in messages if one.endpoint.level == level)
            names = {group.id, *(one.handle for one in members)}
            return -level, oldest, _match(seen, names, messages)

        return min(ready, key=place, default=None)

    def _in_order(self, tx: Transaction, among: Sequence[Endpoint], seen: Seen) -> list[Message]:
        """The messages of a group: one conversation after the other (RCV-7)."""
        runs = [run for one in among if (run := self.ready(tx, one))]

        def place(run: list[Message]) -> tuple[int, int, int]:
            at = _match(seen, {run[0].endpoint.handle}, run)
            return -run[0].endpoint.level, run[0].rank, at

        return [message for run in sorted(runs, key=place) for message in run]


def _match(seen: Seen, names: set[bytes | None], messages: Sequence[Message]) -> int:
    """Where in the real answer a group or conversation comes; one of unknown name by a body, or
    else before those that are known and not in it."""
    is_unknown = None in names
    if is_unknown:
        names = names | {one.body for one in messages}
    places = [at for at, name in enumerate(seen) if name is not None and name in names]
    return min(places, default=len(seen) + (not is_unknown))
