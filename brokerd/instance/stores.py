"""Stores: turns the files of the data directory into the brokers of an instance.

Reads:  the data directory, settings.      Calls: storage, attach, broker, maintenance.
Never:  admits clients or peers, or delivers to a broker that is not fully opened.
Fails:  one broker, alone; the start fails only if the instance needs that broker (CLK-6).
"""

from collections.abc import Awaitable, Callable, Container
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from brokerd.admin.objects.attach import attach
from brokerd.broker.broker import Broker
from brokerd.clock import show_instant
from brokerd.config.settings import Settings
from brokerd.errors import StoreFull, StoreMissing
from brokerd.ids import BrokerId, InstanceId
from brokerd.instance.broker_events import BrokerEvents
from brokerd.instance.changes import Changes
from brokerd.instance.parts import Parts
from brokerd.instance.preflight import needed_stores, optional_stores
from brokerd.instance.store_engine import missing_store
from brokerd.instance.surroundings import Surroundings
from brokerd.model import MSDB
from brokerd.objects.declared import Declared
from brokerd.protocol.sending import WindowLimits
from brokerd.storage.files.private_files import make_private_directory
from brokerd.storage.opening import NewStore, remove_new_file
from brokerd.storage.rows import grants
from brokerd.storage.rows.catalog import NO_CHANGES, CatalogChanges
from brokerd.storage.store import Store, StoreOptions
from brokerd.telemetry.logs import STORE

PAGE: Final = 4096
"""Size of a page of a store, in bytes."""


class Stores:
    """The stores of one instance, which it opens, recovers and closes."""

    def __init__(
        self,
        parts: Parts,
        *,
        settings: Settings,
        surroundings: Surroundings,
        broker_events: BrokerEvents,
        changes: Changes,
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._with = surroundings
        self.host = surroundings.host
        """Fingerprint of the machine, or of the server, that has the stores (MAN-7)."""
        self._broker_events = broker_events
        self._changes = changes

    def path_of(self, name: str) -> Path:
        """Return the file of a broker, whether it exists or not."""
        return self._settings.store_path(name)

    def missing(self, name: str, broker_id: BrokerId) -> StoreMissing:
        """Return the error of a broker that the instance has, and that has no store (MAN-17)."""
        return missing_store(self._settings, name, broker_id)

    async def open_all(self, declared: Declared | None) -> None:
        """Open `msdb`, which has the instance's own data, then the other stores (design D6)."""
        ids = self._with.ids
        make_private_directory(self._settings.instance.data_dir)
        new = NewStore(MSDB, BrokerId(ids.fresh()), InstanceId(ids.fresh()))
        store = await self._open(MSDB, create=new)
        self._parts.instance_id = store.identity.instance_id
        self._with.identify(self._parts.instance_id)
        self._add_broker(store)
        self._parts.known_brokers.load(store)
        self._parts.audit.open(store)
        await self._parts.credential_store.open(store)
        await self._parts.key_rotation.finish()
        self._parts.grants.load(*await store.run(grants.load))
        mirrored = self._parts.mirroring.names
        # Declared brokers come before those that merely have a file: without one of them the
        # instance does not start. A shared one is an exception: its partner may have it open
        # (RTE-55).
        for one in declared.brokers if declared is not None else ():
            if one.broker not in mirrored:
                await self._make_or_open(one)
                continue
            with self._parts.absent_brokers.recording_failure(one.broker):
                await self._make_or_open(one)
        tried = self._parts.brokers.keys() | self._parts.absent_brokers.reasons.keys()
        # On a server, `msdb` alone says which brokers there are (REL-56).
        data_dir, files = self._settings.instance.data_dir, not self._settings.is_on_server
        optional = {path.stem for path in optional_stores(data_dir, declared) if files}
        # A file may exist without being known (a copy), and a broker may be known without a file
        # (MAN-17). Both are tried, so that each broker is either in use or absent with a reason.
        there = {name for name in mirrored if self.path_of(name).exists()}
        for name in sorted((optional | there | self._parts.known_brokers.ids.keys()) - tried):
            if self._with.only not in (None, name):
                continue
            with self._parts.absent_brokers.recording_failure(name):
                await self._attach(name)
        await self._parts.mirroring.refresh()

    async def _make_or_open(
        self, declared: Declared, objects: CatalogChanges = NO_CHANGES
    ) -> Broker:
        new = NewStore(
            declared.broker,
            BrokerId(self._with.ids.fresh()),
            self._parts.instance_id,
            default_encryption=declared.default_encryption,
            host=self.host,
            objects=objects,
        )
        return await self._attach(declared.broker, create=new)

    async def _attach(self, name: str, *, create: NewStore | None = None) -> Broker:
        """Open a store; a store that looks like a copy delivers nothing (MAN-7, OBJ-3).

        With `create`, make a missing store, unless the instance has had it before (MAN-17).
        """
        mirrored = name in self._parts.mirroring.names
        await self._parts.known_brokers.refuse_missing(name)
        store = await self._open(name, create=create)
        try:
            await self._parts.known_brokers.opened(store.identity)
            await self._parts.key_rotation.adopt(store)
            # Nothing may come between its last check and `_add_broker`: until then, an operation
            # that switches delivery on does not see this broker (OBJ-3).
            await attach(
                store,
                instance_id=self._parts.instance_id,
                host=self.host,
                others=self._parts.brokers.values(),
                log=self._with.log,
                mirrored=mirrored,
            )
            return self._add_broker(store)
        except BaseException as error:
            await store.abandon()
            # `msdb`, which would record the broker, is full
            if store.is_new and isinstance(error, StoreFull):
                await self._with.executor.call(partial(remove_new_file, self.path_of(name)))
            raise

    async def _open(self, name: str, *, create: NewStore | None = None) -> Store:
        settings, window, parts = self._settings.store, self._with.limits.window, self._parts
        store = await Store.open(
            self.path_of(name),
            ids=self._with.ids,
            clock=self._with.clock,
            executor=self._with.executor,
            on_fault=partial(parts.tasks.fail_store, name),
            options=StoreOptions(
                flush_transactions=settings.flush_transactions,
                flush_bytes=settings.flush_bytes,
                checkpoint_pages=_log_pages(settings.min_free),
                shelf_messages=window.window_messages,
                shelf_bytes=window.window_bytes,
                unread_at_once=min(StoreOptions().unread_at_once, window.window_messages),
            ),
            create=create,
            name=name,
            fault=self._with.fault,
            observe=self._parts.times.of_store(name),
            on_full=partial(self._parts.disk_space.ran_out, name),
            on_room=partial(self._parts.disk_space.written, name),
        )
        if (at := store.loss_accepted_at) is not None:
            self._with.log.warning(
                STORE, subclass="loss_accepted", broker=name, accepted_at=show_instant(at)
            )
        if store.has_new_history:
            self._with.log.warning(
                STORE,
                subclass="new_history",
                broker=name,
                hint="dialogs whose peers know more than this store end with history_lost",
            )
        return store

    def _add_broker(self, store: Store) -> Broker:
        dialog = self._settings.dialog
        broker = Broker(
            store=store,
            clock=self._with.clock,
            ids=self._with.ids,
            options=msgspec.structs.replace(
                self._with.limits,
                unfinished_bytes=min(
                    self._with.limits.unfinished_bytes, self._settings.dispatcher.mem_low
                ),
                endpoints=min(self._with.limits.endpoints, self._settings.transmitter.max_objects),
                fast_paths=self._with.limits.fast_paths and self._settings.instance.fast_paths,
                fragment_size=dialog.fragment_size,
                max_message=dialog.max_message,
                replay_guard=dialog.replay_guard,
                check_aside=dialog.check_aside,
                default_lifetime=int(dialog.default_lifetime.total_seconds()),
                lock_timeout=self._settings.clients.lock_timeout.total_seconds(),
                outgoing=msgspec.structs.replace(
                    self._with.limits.outgoing,
                    limits=WindowLimits(
                        window_fragments=dialog.window_fragments,
                        window_bytes=dialog.window_bytes,
                        retry_first=dialog.retry_first,
                        retry_max=dialog.retry_max,
                    ),
                ),
            ),
            spawn=self._parts.tasks.spawn,
            checker=self._parts.checker,
            events=self._broker_events,
            times=self._parts.times.of_queue,
        )
        broker.writes_closing_lines = self._with.metrics is not None
        self._parts.brokers[broker.name] = broker
        return broker

    # Messages that wait in the stores.

    def needed_brokers(self, declared: Declared | None) -> set[str]:
        """Return the brokers that a start needs, except those that a partner has."""
        return needed_stores(declared) - self._parts.absent_brokers.reasons.keys()

    def without_absent(self, declared: Declared) -> Declared | None:
        """Return the declaration without the partner's brokers, to which the partner applied it.

        None: no broker is left.
        """
        kept = [
            one for one in declared.brokers if one.broker not in self._parts.absent_brokers.reasons
        ]
        if not kept:
            return None
        first = {"others": tuple(kept[1:]), "instance_routes": declared.instance_routes}
        return msgspec.structs.replace(kept[0], **first)

    async def recover(self, declared: Declared | None, changed: Container[str]) -> None:
        """Load the messages that wait in the stores, and begin to send them.

        `changed`: brokers whose objects have changed since their stores were opened.
        """
        needed = self.needed_brokers(declared)
        for broker in list(self._parts.brokers.values()):
            if broker.name in changed:
                await broker.store.recover_again()
            if broker.name in needed:
                await broker.recover()
            else:
                with self._parts.absent_brokers.recording_failure(broker.name):
                    await self._recover_or_close(broker)
        for broker in self._parts.brokers.values():
            broker.resume()
        for broker in list(self._parts.brokers.values()):
            self._changes.queues_changed(broker)
            with self._parts.absent_brokers.recording_failure(broker.name):
                await self._finish_or_close(broker)
                self._begin_activities(broker)

    def _begin_activities(self, broker: Broker) -> None:
        """Begin the broker's own activities: event notifications and dynamic routing."""
        messages, dialogs = broker.left_rows
        if messages or dialogs:
            self._parts.log.info(
                STORE,
                subclass="leftovers",
                broker=broker.name,
                messages=messages,
                retaining_dialogs=dialogs,
                reason="messages of dialogs that are over were still in the transmission queue, or"
                " retained; they are being deleted",
            )
        self._parts.events.begin(broker)
        self._parts.route_requester.begin(broker)

    async def _finish_or_close(self, broker: Broker) -> None:
        """Finish an operation that an administrator began before a crash (MAN-5, MAN-6)."""
        if broker.store.identity.unfinished:
            await self._close_on_error(broker, self._parts.operations.finish(broker))

    async def _recover_or_close(self, broker: Broker) -> None:
        await self._close_on_error(broker, self._recover(broker))

    async def _recover(self, broker: Broker) -> None:
        await broker.recover()
        await self._parts.events.load(broker)

    async def _close_on_error(self, broker: Broker, work: Awaitable[None]) -> None:
        try:
            await work
        except BaseException:
            del self._parts.brokers[broker.name]
            self._parts.router.rebuild()
            broker.close_deadlines()
            await broker.store.abandon()
            raise

    # While the instance runs.

    async def open_absent(self, name: str) -> Broker:
        """Open and recover an absent broker; nothing is delivered to it until it is in use."""
        broker = await self._attach(name)
        self._parts.router.rebuild()
        await self._recover_or_close(broker)
        broker.resume()
        await self._finish_or_close(broker)
        self._begin_activities(broker)
        return broker

    async def make_declared(
        self, declared: Declared, objects: CatalogChanges, made: Callable[[Broker], None]
    ) -> Broker:
        """Create a broker with objects; call `made` before its event notifications load.

        They are loaded last, so that they do not report the objects created with them (EVT-6).
        """
        with self._parts.mirroring.creating(declared.broker):
            broker = await self._make_or_open(declared, objects)
        self._parts.router.rebuild()
        made(broker)
        await self._parts.events.load(broker)
        self._begin_activities(broker)
        return broker

    def refuse_to_serve_nobody(self) -> None:
        """Refuse to start if `msdb` is the only broker; the error says why another one is absent.

        A mirror starts all the same, because it waits to take over from the principal.
        """
        if self._parts.brokers.keys() == {MSDB} and not self._parts.mirroring.names:
            for reason in self._parts.absent_brokers.reasons.values():
                raise reason

    async def close(self) -> None:
        for broker in self._parts.brokers.values():
            broker.close_deadlines()
            await broker.store.close()


def _log_pages(min_free: int) -> int:
    """Return the number of pages at which the log is folded into the store.

    Folding needs the same room again, and must find it in the space left when the disk counts
    as full (REL-26).
    """
    usual = StoreOptions().checkpoint_pages
    return min(usual, min_free // (4 * PAGE)) or usual
