"""Notifier of one broker: sends events to the subscribers, each on its own dialog (EVT-4).

Reads:  its subscriptions, the events given to `notify`.
Calls:  verbs.sends, in its own transactions: it begins dialogs and sends as any program would.
Never:  delays the cause of an event, which is already durable, or lets an error of a notification
        affect the cause (EVT-7). Receives no messages: a broken dialog shows in its state.
Wakes:  when it gets an event, when a dialog is ended or fails, when the wait for a retry is over.
Fails:  together with a failing store, as the instance does; any other failure is logged, and the
        subscription retries with a growing wait (PBT-15).

An event is durable once the transaction that sends or keeps it is durable. That transaction begins
as soon as the cause is durable. Only a crash in between loses the event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from brokerd.broker.blocked import settle
from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.clock import SECOND, Instant
from brokerd.errors import BrokerError, StoreFault
from brokerd.events.payload import owed_again
from brokerd.events.subscription import (
    Event,
    NotifierOptions,
    Owed,
    Subscription,
    broken,
    keep,
    opened,
    postponed,
    sent,
    wants,
    why_broken,
)
from brokerd.ids import BrokerId, Handle, NotificationKey, show
from brokerd.model import (
    EVENT_NOTIFICATION,
    EVENT_SERVICE,
    MAX_LIFETIME,
    POST_EVENT_NOTIFICATION,
    EventNotification,
)
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State
from brokerd.storage.changes import EventChanges, EventRow, OutgoingRow
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import EVENT_NOTIFICATION as LOGGED_AS
from brokerd.verbs import ends, sends

BATCH: Final = 500
"""Largest number of events sent in one transaction."""
_GOOD: Final = frozenset({State.STARTED_OUTBOUND, State.CONVERSING})
_TO_END: Final = frozenset({*_GOOD, State.DISCONNECTED_INBOUND, State.ERROR})
_PAGE_BYTES: Final = 16 * 1024 * 1024


Spawn = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]
"""Function that starts a supervised task."""


class Notifier:
    """The notifier of one broker. One task at a time changes the dialogs of its subscriptions."""

    def __init__(self, broker: Broker, *, spawn: Spawn, log: Log, options: NotifierOptions) -> None:
        self.broker = broker
        self._spawn = spawn
        self._log = log
        self._options = options
        self._definitions: dict[NotificationKey, EventNotification] = {}
        self._subscriptions: dict[NotificationKey, Subscription] = {}
        self._incoming: dict[NotificationKey, list[Owed]] = {}
        self._orphans: dict[NotificationKey, Handle | None] = {}
        """Dialogs of dropped notifications, still to be ended; None = no dialog."""
        self._next_key = 1
        self._begun = self._again = self._stopped = False
        self._working: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Life.

    async def load(self) -> None:
        """Load the state of the subscriptions from the store. No event is sent before `begin`."""
        store = self.broker.store
        self.use(store.catalog.event_notifications.values())
        for row in await store.events.undelivered():
            self._next_key = row.key + 1
            one = self._subscriptions.get(row.notification)
            if one is None:
                self._orphans[row.notification] = None
                continue
            owed = (*one.owed, Owed(row.key, row.event, row.subject, row.body))
            self._subscriptions[row.notification] = msgspec.structs.replace(one, owed=owed)
        for handle, key in (await store.events.dialogs()).items():
            if key in self._subscriptions:
                self._subscriptions[key] = opened(self._subscriptions[key], handle)
            else:
                self._orphans[key] = handle

    def begin(self) -> None:
        """Open missing dialogs and send kept events, now that the broker is running."""
        self._begun = True
        self.wake()

    async def stop(self, seconds: float) -> None:
        """Send the pending events, for at most `seconds`; send no further events.

        Work that takes longer is abandoned, for instance when the disk is full."""
        self.wake()
        while self._working is not None:
            done, _ = await asyncio.wait({self._working}, timeout=seconds)
            if not done:
                break
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def use(self, notifications: Iterable[EventNotification]) -> None:
        """Replace the notifications by `notifications`, those now in the catalog."""
        self._definitions = {one.key: one for one in notifications}
        for key, one in self._definitions.items():
            if key not in self._subscriptions:
                self._subscriptions[key] = Subscription(one)
        self.wake()

    # What happens.

    def wanting(self, event: Event) -> list[Subscription]:
        """Return the subscriptions to this event."""
        at_home = event.broker == self.broker.name
        return [
            self._subscriptions[key]
            for key, one in self._definitions.items()
            if wants(one, event, at_home=at_home)
        ]

    def notify(self, keys: Iterable[NotificationKey], event: Event) -> None:
        """Add an event to the subscriptions `keys`; it is sent soon."""
        for key in keys:
            waiting = self._incoming.setdefault(key, [])
            row = Owed(self._new_key(), event.name, event.subject, event.body)
            kept = keep(waiting, (row,), traces=self._options.traces)
            self._incoming[key] = list(kept.owed)
            if kept.lost:
                self._lose(key, kept.lost)
        self.wake()

    def wake(self) -> None:
        """Process every subscription now, or again after the running pass."""
        if not self._subscriptions and not self._orphans:
            return
        self._again = True
        if self._begun and self._working is None and not self._stopped:
            self._working = self._spawn(self._work())

    async def _work(self) -> None:
        try:
            while self._again:  # a pass may cause another, and events may come while it waits
                self._again = False
                self._remove_dropped()
                for key, handle in list(self._orphans.items()):
                    await self._end_orphan(key, handle)
                for key in list(self._subscriptions):
                    await self._process(key)
        finally:
            self._working = None
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer that wakes the notifier when the first postponed subscription may retry."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._now()
        due = [one.retry_at for one in self._subscriptions.values() if not one.is_due(now)]
        if due:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(due) - now, self.wake)

    # One subscription.

    def _remove_dropped(self) -> None:
        """Remove the subscriptions of dropped notifications; record their dialogs as orphans."""
        for key in self._subscriptions.keys() - self._definitions.keys():
            one = self._subscriptions.pop(key)
            self._incoming.pop(key, None)
            self._orphans[key] = one.handle

    async def _end_orphan(self, key: NotificationKey, handle: Handle | None) -> None:
        changes = EventChanges()
        changes.forgotten.append(key)
        if handle is None:
            await self._commit(Transaction(self.broker, "event notifications"), changes)
        else:
            await self._close(handle, await self._live(handle), changes)
        del self._orphans[key]

    async def _process(self, key: NotificationKey) -> None:
        one = self._subscriptions[key]
        if one.handle is not None:
            live = await self._live(one.handle)
            if live is None or live.endpoint.state not in _GOOD:
                await self._replace(key, live)
                one = self._subscriptions[key]
        if not one.is_due(self._now()):
            await self._keep(key)
        elif one.handle is None or one.owed or self._incoming.get(key):
            await self._send(key)

    async def _send(self, key: NotificationKey) -> None:
        """Open a dialog if the subscription has none, and send its events, in one transaction."""
        one = self._subscriptions[key]
        rows = [*one.owed, *self._incoming.pop(key, ())]
        now, later = rows[:BATCH], rows[BATCH:]
        handle = one.handle
        changes = EventChanges()
        tx = Transaction(self.broker, "event notifications")
        try:
            if handle is None:
                handle = Handle(self.broker.ids.fresh())
                await settle(partial(self._begin, tx, handle, one.definition))
                changes.opened.append((handle, key))
            for row in now:
                send = partial(sends.send, tx, (handle,), EVENT_NOTIFICATION, row.body)
                await settle(send)
        except StoreFault:
            raise
        except BrokerError as error:
            tx.roll_back()
            # Incoming events are not stored yet, so they return to the front, in their order.
            self._put_off(key, [row for row in rows if row not in one.owed], error.message)
            return
        except BaseException:
            tx.roll_back()
            raise
        changes.delivered += [row.key for row in one.owed if row in now]
        await self._commit(tx, changes)
        after = opened(self._subscriptions[key], handle)  # read again: `lost` may have risen
        if now:
            after = sent(after, self.broker.clock.utc())
        owed = tuple(row for row in later if row in one.owed)
        self._subscriptions[key] = msgspec.structs.replace(after, owed=owed)
        # Events beyond the limit of one transaction are sent by another pass.
        self._give_back(key, [row for row in later if row not in one.owed])
        if later:
            self._again = True
        live = await self._live(handle)
        if live is None or live.endpoint.state not in _GOOD:  # refused within this broker
            await self._replace(key, live, refused=now)

    def _begin(self, tx: Transaction, handle: Handle, definition: EventNotification) -> object:
        options = sends.DialogOptions(
            contract=POST_EVENT_NOTIFICATION,
            broker_id=self.broker.broker_id
            if definition.broker_id is None
            else definition.broker_id,
            lifetime=MAX_LIFETIME,
            by_broker=True,
        )
        return sends.begin_dialog(tx, handle, EVENT_SERVICE, definition.service, options)

    def _put_off(self, key: NotificationKey, rows: list[Owed], why: str) -> None:
        """Postpone a subscription after a failure to send; keep its events."""
        one = self._subscriptions[key]
        self._give_back(key, rows)
        after = postponed(one, why=why, now=self._now(), options=self._options)
        self._subscriptions[key] = after
        self._log_failure(after)
        self._again = True

    async def _keep(self, key: NotificationKey) -> None:
        """Store the new events of a subscription that has to wait."""
        rows = self._incoming.pop(key, None)
        if rows:
            changes = self._add(key, rows)
            await self._commit(Transaction(self.broker, "event notifications"), changes)

    async def _replace(
        self, key: NotificationKey, live: Live | None, refused: Sequence[Owed] = ()
    ) -> None:
        """End a broken dialog, and keep its undelivered events (PBT-15)."""
        one = self._subscriptions[key]
        assert one.handle is not None
        # Read before the end of the dialog, which withdraws its unacknowledged messages; stored in
        # the transaction that ends the dialog, so that a crash loses no event.
        rows = await self._undelivered(live, {row.body for row in refused})
        rows += [row._replace(key=self._new_key()) for row in refused]
        rows += self._incoming.pop(key, [])
        changes = self._add(key, rows)
        worked, why = why_broken(None if live is None else live.endpoint)
        await self._close(one.handle, live, changes)
        after = broken(
            self._subscriptions[key], worked=worked, why=why, now=self._now(), options=self._options
        )
        self._subscriptions[key] = after
        self._log_failure(after)
        self._again = True

    async def _undelivered(self, live: Live | None, known: set[bytes]) -> list[Owed]:
        """Return the events that were sent on a dialog but not acknowledged.

        These events may arrive twice (DLG-27). `known`: bodies of events to leave out."""
        if live is None or live.outgoing is None:
            return []
        out, store = live.outgoing, self.broker.store
        frozen: list[OutgoingRow] = out.window.messages()
        after = frozen[-1].sequence + 1 if frozen else 0
        while out.waiting:
            page = await store.outgoing.page(live.endpoint.key, after, BATCH, _PAGE_BYTES)
            frozen += page.rows
            if not page.rows:
                break
            after = page.rows[-1].sequence + 1
        found = [
            owed_again(self._new_key(), row.body)
            for row in frozen
            if row.body is not None and row.body not in known
        ]
        return [one for one in found if one is not None]

    def _add(self, key: NotificationKey, rows: Iterable[Owed]) -> EventChanges:
        """Add events to those a subscription still has to send; return the changes to store."""
        one = self._subscriptions[key]
        kept = keep(one.owed, rows, traces=self._options.traces)
        self._subscriptions[key] = msgspec.structs.replace(
            one, owed=kept.owed, lost=one.lost + kept.lost
        )
        changes = EventChanges()
        changes.kept += [EventRow(row.key, key, *row[1:]) for row in kept.added]
        changes.delivered += kept.gone
        return changes

    # Small things.

    async def _live(self, handle: Handle) -> Live | None:
        return await settle(lambda: self.broker.endpoints.look_up(handle))

    async def _close(self, handle: Handle, live: Live | None, changes: EventChanges) -> None:
        """End a dialog, in any state, and delete its row from the subscriptions' dialogs."""
        tx = Transaction(self.broker, "event notifications")
        try:
            if live is not None and live.endpoint.state in _TO_END:
                await settle(lambda: ends.end(tx, (handle,), None, None))
        except StoreFault:
            raise
        except BrokerError:  # the dialog has ended in the meantime
            tx.roll_back()
            tx = Transaction(self.broker, "event notifications")
        changes.closed.append(handle)
        await self._commit(tx, changes)

    async def _commit(self, tx: Transaction, changes: EventChanges) -> None:
        tx.attach_events(changes)
        await tx.committed()

    def _give_back(self, key: NotificationKey, rows: list[Owed]) -> None:
        if rows:
            self._incoming[key] = [*rows, *self._incoming.get(key, ())]

    def _new_key(self) -> int:
        key = self._next_key
        self._next_key = key + 1
        return key

    def _now(self) -> float:
        return self.broker.clock.monotonic()

    def _lose(self, key: NotificationKey, count: int) -> None:
        one = self._subscriptions[key]
        self._subscriptions[key] = msgspec.structs.replace(one, lost=one.lost + count)

    def _log_failure(self, one: Subscription) -> None:
        """Log a failure of a subscription; the view shows it, too (EVT-5, EVT-7)."""
        self._log.warning(
            LOGGED_AS,
            subclass="broken",
            broker=self.broker.name,
            notification=one.definition.name,
            service=one.definition.service,
            reason=one.last_error,
            failures=one.failures,
            retry_in=round(max(0.0, one.retry_at - self._now()), 3),
            undelivered=len(one.owed),
        )

    # Rows of the view.

    async def rows(self) -> list[dict[str, object]]:
        """Return the rows of `event_notifications` (VIEW-11)."""
        found = [self._subscriptions[key] for key in self._definitions]
        lives = [None if one.handle is None else await self._live(one.handle) for one in found]
        return [
            view_row(
                one,
                None if live is None else live.endpoint,
                waiting=len(self._incoming.get(one.definition.key, ())),
                home=self.broker.broker_id,
                now=self._now(),
                utc=self.broker.clock.utc(),
            )
            for one, live in zip(found, lives, strict=True)
        ]


def view_row(
    one: Subscription,
    endpoint: DialogEndpoint | None,
    *,
    waiting: int,
    home: BrokerId,
    now: float,
    utc: Instant,
) -> dict[str, object]:
    """Return the row of one notification; `now` (monotonic seconds) and `utc` are the same moment.

    `waiting`: number of new events that are neither stored nor sent yet."""
    definition = one.definition
    backing_off = not one.is_due(now)
    # A dialog with an acknowledged message works: earlier failures do not count.
    failures = 0 if endpoint is not None and endpoint.first_acked else one.failures
    return {
        "name": definition.name,
        "scope": str(definition.scope),
        "queue": definition.queue,
        "events": sorted(definition.events),
        "service_name": definition.service,
        "broker_instance": show(definition.broker_id or home),
        "fan_in": definition.fan_in,
        "conversation_handle": show(one.handle) if one.handle is not None else None,
        "dialog_state": str(endpoint.state) if endpoint is not None else None,
        "status": "backing_off" if backing_off else "open",
        "last_sent_at": one.last_sent_at,
        "failures": failures,
        "last_error": one.last_error,
        "next_attempt_at": Instant(utc + round((one.retry_at - now) * SECOND))
        if backing_off
        else None,
        "undelivered": len(one.owed) + waiting,
        "lost": one.lost,
    }
