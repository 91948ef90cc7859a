"""Purging a queue: the dialogs of its messages end with an error, batch by batch (MAN-24).

Reads:  the messages of the queue, a page at a time.      Calls: the ending of dialogs.
Never:  deletes a message whose sender is not told: the other side of each dialog gets the error.
        Nor does it wait for a program that has a group: its dialogs are counted and left.
"""

from typing import Final

from brokerd.admin.poison import end_dialog, find_side
from brokerd.broker.broker import Broker
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import QueueNotFound
from brokerd.ids import EndpointKey
from brokerd.protocol.admin_verbs import PurgeQueue
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION

Row = dict[str, object]
_PAGE_BYTES = 1024 * 1024
_READS = 4
MOST: Final = 256
"""Most purges whose counts are kept; the oldest gives way."""


class Purging:
    """Performer of the purges of one instance."""

    def __init__(self, *, log: Log) -> None:
        self._log = log
        self._totals: dict[tuple[str, str, str], dict[str, int]] = {}
        """Counts of the purges that have not come to the end, by actor, broker and queue."""

    async def run(self, broker: Broker, verb: PurgeQueue, actor: str) -> Row:
        """End the dialogs of the next batch of messages; return how many, and where it ended.

        `total` in the answer counts all batches of the purge, since the start of the daemon."""
        state = broker.queues.get(verb.queue)
        if state is None or state.is_system:
            near = did_you_mean(verb.queue, broker.queues)
            raise QueueNotFound(f"queue {verb.queue!r} is not in broker {broker.name!r}{near}")
        after = -1 if verb.after is None else verb.after
        page = await broker.store.messages.browse(
            state.queue.key, verb.batch, _PAGE_BYTES, after, reads=_READS
        )
        counts: dict[EndpointKey, int] = {}
        for row in (*page.rows, *page.damaged):
            counts[row.endpoint] = counts.get(row.endpoint, 0) + 1
        endpoints = await broker.store.endpoints.by_keys(set(counts))
        dialogs = messages = locked = 0
        for key, endpoint in endpoints.items():
            live = await find_side(broker, endpoint.conversation_id, endpoint.is_initiator)
            if live is None or live.queue is not state:  # it has just ended, or moved
                continue
            if live.group.holder is not None:
                locked += 1
                continue
            ended = await end_dialog(broker, live, verb.code, verb.description)
            dialogs += ended
            messages += counts[key] if ended else 0
        done = {"dialogs": dialogs, "messages": messages, "locked": locked}
        if dialogs:
            self._log.info(
                ADMINISTRATION,
                subclass="purge_queue",
                actor=actor,
                broker=broker.name,
                queue=verb.queue,
                code=verb.code,
                description=verb.description,
                **done,
            )
        next_one = None if page.end is None else page.end[0]
        total = self._counted((actor, broker.name, verb.queue), done, verb.after, next_one)
        return {**done, "next": next_one, "total": total}

    def _counted(
        self, purge: tuple[str, str, str], done: dict[str, int], after: int | None, end: int | None
    ) -> dict[str, int]:
        """Add what a batch has done to the counts of its purge, and return them."""
        before = self._totals.pop(purge, None)
        total = done
        if before is not None and after is not None:
            total = {name: before[name] + done[name] for name in done}
        if end is not None:
            if len(self._totals) >= MOST:
                del self._totals[next(iter(self._totals))]
            self._totals[purge] = total
        return total
