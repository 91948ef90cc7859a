"""Events of an instance: finds the subscriptions to each event (EVT).

Reads:  the notifications of every broker.      Calls: the notifier of each broker.
Never:  waits, fails, or undoes the cause of an event: the cause is done when it is reported (EVT-6,
        EVT-7).

Events have three sources: `happened`, called by parts that know of an event, such as queue monitors
(QUEUE_ACTIVATION); `objects_changed`, called after administration; and the event log, to whose
classes services may subscribe (`tapped_log.py`).
"""

import asyncio
from collections.abc import Mapping, Sequence

from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.events.notifier import Notifier, Spawn
from brokerd.events.payload import make_event
from brokerd.events.subscription import Event, NotifierOptions, fan_in
from brokerd.model import MSDB
from brokerd.objects.declared import Action, Change, Kind
from brokerd.objects.event_names import (
    BROKER_CONVERSATION,
    BROKER_CONVERSATION_GROUP,
    OBJECTS,
    expand,
)
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import EVENT_NOTIFICATION, QUEUE_STATUS

_VERBS = {
    Action.CREATE: ("CREATE",),
    Action.ALTER: ("ALTER",),
    Action.REPLACE: ("DROP", "CREATE"),
    Action.DROP: ("DROP",),
}
_Flags = tuple[bool, bool]


class Events:
    """The subscriptions of one instance, broker by broker."""

    def __init__(
        self,
        *,
        instance: str,
        brokers: Mapping[str, Broker],
        clock: Clock,
        spawn: Spawn,
        log: Log,
        options: NotifierOptions | None = None,
    ) -> None:
        self._instance = instance
        self._brokers = brokers
        self._clock = clock
        self._spawn = spawn
        self._log = log
        self._options = options or NotifierOptions()
        self._notifiers: dict[str, Notifier] = {}
        self._flags: dict[str, dict[str, _Flags]] = {}
        """Flags of each queue (enqueue, receive), by broker and queue."""
        self.asked: frozenset[str] = frozenset()
        """Names of all events that have a subscriber."""

    # Life.

    async def load(self, broker: Broker) -> None:
        """Load the subscriptions of an opened broker."""
        notifier = Notifier(broker, spawn=self._spawn, log=self._log, options=self._options)
        await notifier.load()
        self._notifiers[broker.name] = notifier
        self._flags[broker.name] = _flags(broker)
        self._count()

    def begin(self, broker: Broker) -> None:
        """Let the subscriptions of a broker send, now that the broker is running."""
        self._notifiers[broker.name].begin()

    def check(self) -> int:
        """Run the pass: let notifiers find dialogs that ended unnoticed, such as cleaned-up ones.

        Return the number of brokers checked."""
        for notifier in self._notifiers.values():
            notifier.wake()
        return len(self._notifiers)

    async def stop(self, seconds: float) -> None:
        """Send the pending events, for at most `seconds`; send no further events."""
        if self._notifiers:
            await asyncio.gather(*[notifier.stop(seconds) for notifier in self._notifiers.values()])

    def arrived(self, broker: Broker) -> None:
        """Wake the notifier of a broker: a dialog of a notification was ended or has failed."""
        if (notifier := self._notifiers.get(broker.name)) is not None:
            notifier.wake()

    async def rows(self, broker: Broker) -> list[dict[str, object]]:
        """Return the rows of `event_notifications` (VIEW-11)."""
        notifier = self._notifiers.get(broker.name)
        return [] if notifier is None else await notifier.rows()

    # Events.

    def happened(
        self, name: str, broker: str, /, *, queue: str | None = None, **facts: object
    ) -> None:
        """Pass an event to the notifiers of its subscribers; `facts`: fields of its payload."""
        if name not in self.asked:
            return
        home = self._brokers.get(broker)
        event = make_event(
            name,
            instance=self._instance,
            broker=broker,
            broker_id=None if home is None else home.broker_id,
            queue=queue,
            at=self._clock.utc(),
            facts=facts,
        )
        for notifier in self._notifiers.values():
            self._hand_over(notifier, event)

    def _hand_over(self, notifier: Notifier, event: Event) -> None:
        keys = fan_in(notifier.wanting(event), home=notifier.broker.broker_id)
        if keys and len(event.body) > notifier.broker.options.max_message:
            self._log.warning(
                EVENT_NOTIFICATION, subclass="lost", broker=notifier.broker.name, lost=event.name
            )
        elif keys:
            notifier.notify(keys, event)

    def objects_changed(self, broker: Broker, changes: Sequence[Change], actor: str) -> None:
        """Report that objects were durably created, altered or dropped (EVT-6, EVT-11).

        A new notification gets only events of changes after its creation."""
        # Before the notifications are replaced: a notification must not get the event of its own
        # creation.
        for change in changes:
            self._changed(broker, change, actor)
        self._switched(broker, actor)
        if (notifier := self._notifiers.get(broker.name)) is not None:
            notifier.use(broker.store.catalog.event_notifications.values())
            self._count()

    def _changed(self, broker: Broker, change: Change, actor: str) -> None:
        word = OBJECTS.get(change.kind)
        if word is None:
            return
        at = MSDB if change.kind is Kind.INSTANCE_ROUTE else broker.name
        for verb in _VERBS[change.action]:
            self.happened(
                f"{verb}_{word}",
                at,
                object_type=word,
                object_name=change.name,
                change=change.sentence,
                actor=actor,
            )

    def _switched(self, broker: Broker, actor: str) -> None:
        """Log each queue that was switched on or off, with the actor (EVT-9)."""
        before, after = self._flags.get(broker.name, {}), _flags(broker)
        self._flags[broker.name] = after
        for name, (enqueue, receive) in after.items():
            if before.get(name, (enqueue, receive)) != (enqueue, receive):
                self._log.info(
                    QUEUE_STATUS,
                    broker=broker.name,
                    queue=name,
                    status="on" if enqueue and receive else "off",
                    is_enqueue_enabled=enqueue,
                    is_receive_enabled=receive,
                    actor=actor,
                )

    def _count(self) -> None:
        asked: set[str] = set()
        for notifier in self._notifiers.values():
            for one in notifier.broker.store.catalog.event_notifications.values():
                asked |= expand(one.events)
        self.asked = frozenset(asked)
        conversations = bool({BROKER_CONVERSATION, BROKER_CONVERSATION_GROUP} & asked)
        for broker in self._brokers.values():
            broker.is_watched = conversations


def _flags(broker: Broker) -> dict[str, _Flags]:
    queues = broker.store.catalog.queues.values()
    return {queue.name: (queue.enqueue_enabled, queue.receive_enabled) for queue in queues}
