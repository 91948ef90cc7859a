"""Reader events: requests of readers to other parts, and questions of sessions about readers.

Reads:  the queues of the brokers.      Calls: readers, event notifications.
Never:  decides whether a reader starts (activation/monitor.py does).
"""

from brokerd.activation.decisions import MANY_GROUPS, Ready
from brokerd.activation.monitor import QueueFacts
from brokerd.broker.broker import Broker
from brokerd.broker.poison import Undone
from brokerd.broker.queues import QueueState
from brokerd.clock import show_instant
from brokerd.instance.parts import Parts
from brokerd.objects.event_names import QUEUE_ACTIVATION
from brokerd.sessions.session import ClientSession


class ReaderEvents:
    """The listener of the readers of one instance."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    # Called by readers.

    def facts(self, broker: str, queue: str) -> QueueFacts:
        """Return the facts on which a queue monitor decides."""
        state = self._find(broker, queue)
        if state is None:  # dropped while its readers still run (ACT-Q9)
            return QueueFacts(ready=False, youngest_ready_at=None, waiting=0)
        activation = state.queue.activation
        first = 1 if activation is None else activation.initial_readers
        return QueueFacts(
            ready=state.ready_count > 0,
            youngest_ready_at=state.youngest_at,
            waiting=len(state.waiting),
            ready_groups=1 if first == 1 else state.groups.count(first),
        )

    def ready(self, broker: str, queue: str) -> Ready:
        """Return the number and age of ready messages, for the record of a decision (VIEW-15)."""
        state = self._find(broker, queue)
        if state is None:
            return Ready()
        groups = state.groups.count(MANY_GROUPS)
        return Ready(
            messages=state.ready_count,
            groups=groups,
            is_more=groups == MANY_GROUPS or state.beyond > 0,
            oldest_at=state.oldest_at,
        )

    def notify_activators(self, broker: str, queue: str, ready: Ready) -> None:
        """Notify external activators that another reader is wanted (ACT-38)."""
        self._parts.events.happened(
            QUEUE_ACTIVATION,
            broker,
            queue=queue,
            ready_messages=ready.messages,
            oldest_ready_at=None if ready.oldest_at is None else show_instant(ready.oldest_at),
        )

    # Called by sessions.

    def may_receive(self, session: ClientSession, queue: str) -> bool:
        """Return whether the session may receive; False = its reader has to end (PBT-25)."""
        return self._parts.readers.receive_issued(
            session.broker.name, queue, known_as=session.known_as, session_id=session.client_id
        )

    def rolled_back(self, broker: Broker, queue: str) -> None:
        """Note that a transaction that received from the queue was rolled back."""
        self._parts.readers.rolled_back(broker.name, queue)

    def count_for_poison(self, session: ClientSession, how: Undone) -> Undone | None:
        """Return how an ended transaction counts for poison; None = it does not count (PBT-10).

        A message is not at fault when the daemon or the reader stops.
        """
        if self._parts.tasks.condition == "draining":
            return None
        return self._parts.readers.evaluate_rollback(session.known_as, how)

    def _find(self, broker: str, queue: str) -> QueueState | None:
        home = self._parts.brokers.get(broker)
        return None if home is None else home.queues.get(queue)
