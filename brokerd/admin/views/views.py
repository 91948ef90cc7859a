"""The views: rows of the content of an instance, a page at a time (VIEW-2 to VIEW-13, CLP-90).

Reads: memory; `stored.py` reads the store.      Calls: stored, keyed, transport, statistics.
Never: takes a lock or changes anything (OBJ-47).
A row is a map with the columns of `columns.py`. Most content of memory is small (declared objects,
passes), so all rows are made again for each page, and the rows up to the key of the previous page
are dropped. There may be many queues and held groups: of these, `keyed.py` makes only the rows of
the page.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from brokerd.admin import poison
from brokerd.admin.grants import grant_row
from brokerd.admin.metrics_rows import peak_memory
from brokerd.admin.views.columns import COLUMNS, KEYS
from brokerd.admin.views.keyed import Key, Keyed, after_of, page_of, sorted_as
from brokerd.admin.views.security import SecurityViews
from brokerd.admin.views.statistics import StatisticsViews
from brokerd.admin.views.stored import Page, Row, StoredViews, is_wanted
from brokerd.admin.views.transport import TransportViews
from brokerd.broker.broker import Broker
from brokerd.broker.queues import QueueState
from brokerd.clock import Clock, Instant
from brokerd.delivery.forwarding.forwarder import Forwarder
from brokerd.delivery.incoming.dispatcher import Dispatcher
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.errors import BrokerError, InvalidArgument
from brokerd.ids import BrokerId, show
from brokerd.model import ANY, MSDB, Queue, Route, SentBy, is_system
from brokerd.protocol.admin_verbs import ViewOptions
from brokerd.routing.mirror import Known, Pair
from brokerd.routing.table import pair_of
from brokerd.security.grants import Grants

Mirrored = Callable[[Pair], Known]
Dynamic = Callable[[str, str], bool]
"""Function that returns whether a broker's route of this name was made by dynamic routing."""


class ActivationRows(Protocol):
    """The queries to activation (VIEW-4, VIEW-6, VIEW-7, VIEW-12)."""

    @property
    def known(self) -> Sequence[tuple[str, str]]:
        """Broker and name of every queue that has or had a monitor."""
        ...

    def monitors(self, of: tuple[str, str], /) -> Sequence[msgspec.Struct]:
        """Return the row of `queue_monitors` of a queue; none if it has no monitor."""
        ...

    def why_unmonitored(self, broker: str, queue: str) -> str:
        """Return why a queue has no monitor; empty if it has one (ACT-5)."""
        ...

    def tasks(self) -> Sequence[msgspec.Struct]:
        """Return the rows of `activated_tasks`."""
        ...

    def decisions(self, of: tuple[str, str], /) -> Sequence[msgspec.Struct]:
        """Return the rows of `activation_decisions` of a queue."""
        ...

    def counters(self) -> Row:
        """Return the row of `activation_counters`."""
        ...


class PassRow(Protocol):
    """The state of a periodic pass (VIEW-13)."""

    every: int
    runs: int
    skips: int
    done: int
    last_started_at: Instant | None
    last_seconds: float
    last_error: str


class PassRows(Protocol):
    """The queries to the ticker (VIEW-13)."""

    @property
    def states(self) -> Mapping[str, PassRow]:
        """Return the states of the passes, by name."""
        ...

    def next_run_of(self, name: str) -> Instant | None:
        """Return the approximate time of the next run of a pass."""
        ...


class Views:
    """Performer of the verb `view`."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        absent: Mapping[str, BrokerError],
        known: Mapping[str, BrokerId],
        part_of: Callable[[str], Row],
        mirrored: Mirrored,
        dynamic: Dynamic,
        clock: Clock,
        stored: StoredViews,
        transport: TransportViews,
        statistics: StatisticsViews,
        security: SecurityViews,
        endpoint: Callable[[], list[Row]],
        transmitter: Transmitter,
        dispatcher: Dispatcher,
        forwarder: Forwarder,
        readers: ActivationRows,
        ticker: PassRows,
        notifications: Callable[[Broker], Awaitable[list[Row]]],
        error_events: Callable[[], list[Row]],
        grants: Grants,
    ) -> None:
        self._brokers = brokers
        self._absent = absent
        self._known = known
        self._part_of = part_of
        self._clock = clock
        self._stored = stored
        self._security = security
        self._transmitter = transmitter
        self._dispatcher = dispatcher
        self._readers = readers
        self._ticker = ticker
        self._in_memory: dict[str, Callable[[Broker], list[Row]]] = {
            "activated_tasks": lambda _broker: self._of_queues(readers.tasks()),
            "services": _services,
            "service_contract_usages": _contract_usages,
            "service_contracts": _contracts,
            "service_contract_message_usages": _message_usages,
            "service_message_types": _message_types,
            "conversation_priorities": _priorities,
            "remote_service_bindings": _bindings,
            "error_events": lambda _broker: error_events(),
            "brokers": lambda _broker: self._all_brokers(),
            "activation_counters": lambda _broker: [readers.counters()],
            "periodic_tasks": lambda _broker: self._periodic_tasks(),
            "connections": lambda _broker: transport.connections(),
            "destinations": lambda _broker: transport.destinations(),
            "transport_counters": lambda _broker: transport.counters(),
            "broker_statistics": lambda _broker: statistics.brokers(),
            "transmission_statistics": statistics.transmission,
            "endpoint": lambda _broker: endpoint(),
            "grants": lambda _broker: [grant_row(one) for one in grants.entries],
            "routes": lambda broker: route_rows(broker, clock.utc(), mirrored, dynamic),
            "instance_routes": lambda _broker: route_rows(
                brokers[MSDB], clock.utc(), mirrored, dynamic
            ),
            "forwarded_messages": lambda _broker: forwarder.rows(),
            "forwarder_counters": lambda _broker: [forwarder.counters()],
            "counters": lambda broker: [self.counters(broker)],
            "principals": lambda _broker: security.principals(),
            "certificates": lambda _broker: security.certificates(),
        }
        self._partly_stored: dict[str, Callable[[Broker], Awaitable[list[Row]]]] = {
            "event_notifications": notifications,
        }
        self._keyed: dict[str, Keyed] = {
            "service_queues": Keyed(_queue_keys, self._service_queues),
            "parked_groups": Keyed(_group_keys, _held_groups),
            "queue_monitors": Keyed(self._monitored, self._by_queue(readers.monitors), 2),
            "activation_decisions": Keyed(self._monitored, self._by_queue(readers.decisions), 2),
        }

    async def page(self, broker: Broker, name: str, options: ViewOptions) -> Page:
        """Return a page of a view; raise `InvalidArgument` for a bad view, column or cursor."""
        columns = COLUMNS.get(name)
        if columns is None:
            raise InvalidArgument(
                f"there is no view {name!r}", hint=f"there is: {', '.join(sorted(COLUMNS))}"
            )
        for column in options.where:
            if column not in columns:
                raise InvalidArgument(
                    f"view {name} has no column {column!r}", hint=f"it has: {', '.join(columns)}"
                )
        if name == "audit":
            return await self._security.audit(options)
        in_memory, partly_stored = self._in_memory.get(name), self._partly_stored.get(name)
        keyed = self._keyed.get(name)
        if in_memory is None and partly_stored is None and keyed is None:
            return await self._stored.page(broker, name, options)
        if options.older_than is not None:
            raise InvalidArgument(f"the rows of view {name} have no age")
        if keyed is not None:
            return await page_of(name, keyed, broker, options, self._clock)
        if in_memory is not None:
            return _cut(name, in_memory(broker), options)
        assert partly_stored is not None, "looked at above"
        return _cut(name, await partly_stored(broker), options)

    def counters(self, broker: Broker) -> Row:
        """Return totals since the start, for monitoring programs."""
        dispatcher, transmitter = self._dispatcher, self._transmitter
        return {
            "sends": broker.sends,
            "receives": broker.receives,
            "rollbacks": broker.rollbacks,
            "flushes": broker.store.metrics.flushes,
            "changesets": broker.store.metrics.changesets,
            "fragments_received": dispatcher.received,
            "fragments_stored": dispatcher.stored,
            "fragments_duplicate": dispatcher.duplicates,
            "fragments_buffered": dispatcher.buffered,
            "fragments_dropped": dict(dispatcher.dropped),
            "retransmitted": transmitter.retransmitted,
            "acks_sent": transmitter.acks_sent,
            "acks_carried": transmitter.acks_carried,
            "peak_memory": peak_memory(),
        }

    # Views of queues and groups, of which there may be many.

    async def _service_queues(self, broker: Broker) -> Callable[[Key], list[Row]]:
        """Return a function that returns the row of a queue."""
        retained = await broker.store.retained.counts() if broker.retains else {}
        incomplete = Counter(
            broker.services[service].queue
            for service in broker.incomplete.values()
            if service in broker.services
        )

        def rows(key: Key) -> list[Row]:
            state = broker.queues.get(key[0])
            if state is None:
                return []
            why = self._readers.why_unmonitored(broker.name, state.name)
            row = _service_queue(state, why)
            row["retained_count"] = retained.get(state.queue.key, 0)
            row["incomplete_count"] = incomplete[state.name]
            return [row]

        return rows

    def _monitored(self, _broker: Broker) -> list[Key]:
        ids = {name: show(one.broker_id) for name, one in self._brokers.items()}
        return [(ids.get(broker, ""), queue) for broker, queue in self._readers.known]

    def _by_queue(
        self, read: Callable[[tuple[str, str]], Sequence[msgspec.Struct]]
    ) -> Callable[[Broker], Awaitable[Callable[[Key], list[Row]]]]:
        """Return what makes the rows of the queues of all brokers."""

        async def prepare(_broker: Broker) -> Callable[[Key], list[Row]]:
            names = {show(one.broker_id): name for name, one in self._brokers.items()}
            return lambda key: self._of_queues(read((names.get(key[0], ""), key[1])))

        return prepare

    # Views of the whole instance.

    def _of_queues(self, rows: Sequence[msgspec.Struct]) -> list[Row]:
        """Return the given rows of queues, with the columns named as in the views."""
        found: list[Row] = []
        for row in rows:
            plain = _plain(row)
            plain["broker_name"] = name = str(plain.pop("broker"))
            broker = self._brokers.get(name)
            plain["broker_id"] = show(broker.broker_id) if broker is not None else None
            plain["queue_id"] = plain.pop("queue")
            plain.pop("reader", None)
            if "session_id" in plain:
                plain["spid"] = plain.pop("session_id")
            found.append(plain)
        return found

    def _all_brokers(self) -> list[Row]:
        """Return the rows of VIEW-10.

        A broker that is not open has its name, its last known identifier, and the reason.
        """
        rows: list[Row] = [
            {
                "name": one.name,
                "broker_id": show(one.broker_id),
                **self._part_of(one.name),
                "is_broker_enabled": one.enabled,
                "is_honor_broker_priority_on": one.store.identity.honor_priority,
                "is_default_encryption_on": one.store.identity.default_encryption,
                "disabled_reason": one.store.identity.disabled_reason,
                "start_failure": "",
                "next_start_attempt": None,
            }
            for one in self._brokers.values()
            if one.name not in self._absent
        ]
        rows += [
            {
                "name": name,
                "broker_id": show(self._known[name]) if name in self._known else None,
                **self._part_of(name),
                "is_broker_enabled": False,
                "is_honor_broker_priority_on": None,
                "is_default_encryption_on": None,
                "disabled_reason": None,
                "start_failure": reason.message,
                "next_start_attempt": self._ticker.next_run_of("absent_brokers"),
            }
            for name, reason in self._absent.items()
        ]
        return rows

    def _periodic_tasks(self) -> list[Row]:
        return [
            {
                "task": name,
                "period": state.every,
                "last_start": state.last_started_at,
                "last_duration": state.last_seconds,
                "runs": state.runs,
                "skips": state.skips,
                "done_total": state.done,
                "last_error": state.last_error,
            }
            for name, state in self._ticker.states.items()
        ]


# Views of one broker.


def _queue_keys(broker: Broker) -> list[Key]:
    return [(name,) for name, state in broker.queues.items() if not state.is_system]


def _group_keys(broker: Broker) -> list[Key]:
    return [(show(group),) for group in broker.held.by_id]


async def _held_groups(broker: Broker) -> Callable[[Key], list[Row]]:
    def rows(key: Key) -> list[Row]:
        row = poison.row_of(broker, key[0])
        return [] if row is None else [row]

    return rows


def _service_queue(state: QueueState, why_unmonitored: str) -> Row:
    queue, depth = state.queue, state.depth
    activation = queue.activation
    return {
        "name": queue.name,
        "max_readers": activation.max_readers if activation is not None else 0,
        "activation_procedure": activation.procedure if activation is not None else None,
        "execute_as_principal_id": activation.run_as if activation is not None else None,
        "is_activation_enabled": activation is not None and activation.enabled,
        "is_receive_enabled": queue.receive_enabled,
        "is_enqueue_enabled": queue.enqueue_enabled,
        "is_retention_enabled": queue.retention,
        "is_poison_message_handling_enabled": queue.poison_handling,
        **_status(queue),
        "ready_count": depth.ready,
        "parked_count": depth.parked,
        "message_bytes": None if queue.max_bytes is None else state.size,
        "max_messages": queue.max_messages,
        "max_bytes": queue.max_bytes,
        "is_full": state.is_at_limit(),
        "refused_count": 0 if state.room is None else state.room.refused,
        "oldest_ready_at": state.oldest_at,
        "rollback_streak": state.streak.rollbacks,
        "monitor_absent_reason": why_unmonitored or None,
    }


def _status(queue: Queue) -> Row:
    """Return why the queue is on or off, and the culprit if it is off for poison (PBT-1)."""
    status = queue.status
    culprit = status is not None and bool(status.conversation_id)
    return {
        "status_reason": None if status is None else status.reason,
        "status_changed_at": None if status is None else status.changed_at,
        "status_changed_by": None if status is None else status.changed_by,
        "culprit_conversation_id": show(status.conversation_id) if culprit and status else None,
        "culprit_message_id": show(status.message_id) if culprit and status else None,
        "last_error": status.error or None if status is not None else None,
        "culprit_rollbacks": status.rollbacks if culprit and status else None,
    }


def _services(broker: Broker) -> list[Row]:
    return [
        {
            "name": one.name,
            "service_id": one.name,
            "principal_id": None,
            "service_queue_id": one.queue,
        }
        for one in broker.services.values()
        if not is_system(one.name)
    ]


def _contract_usages(broker: Broker) -> list[Row]:
    return [
        {"service_id": one.name, "service_contract_id": contract}
        for one in broker.services.values()
        if not is_system(one.name)
        for contract in sorted(one.contracts)
    ]


def _priorities(broker: Broker) -> list[Row]:
    """Return the rows of priorities; an absent criterion is ANY (VIEW-9)."""
    return [
        {
            "priority_id": one.name,
            "name": one.name,
            "service_contract_id": one.contract or ANY,
            "local_service_id": one.local_service or ANY,
            "remote_service_name": one.remote_service or ANY,
            "priority": one.level,
        }
        for one in broker.store.catalog.priorities.values()
    ]


def _bindings(broker: Broker) -> list[Row]:
    """Return the rows of remote service bindings (MON-6)."""
    return [
        {
            "name": one.name,
            "remote_service_binding_id": one.name,
            "principal_id": None,
            "remote_service_name": one.service_name,
            "service_contract_id": None,
            "remote_principal_id": one.principal,
            "is_anonymous_on": one.is_anonymous,
        }
        for one in broker.store.catalog.remote_service_bindings.values()
    ]


def _contracts(broker: Broker) -> list[Row]:
    return [
        {"name": name, "service_contract_id": name, "principal_id": None}
        for name in broker.contracts
    ]


def _message_usages(broker: Broker) -> list[Row]:
    return [
        {
            "service_contract_id": one.name,
            "message_type_id": message_type,
            "is_sent_by_initiator": sent_by is not SentBy.TARGET,
            "is_sent_by_target": sent_by is not SentBy.INITIATOR,
        }
        for one in broker.contracts.values()
        for message_type, sent_by in one.types.items()
    ]


def _message_types(broker: Broker) -> list[Row]:
    return [
        {
            "name": one.name,
            "message_type_id": one.name,
            "principal_id": None,
            "validation": one.validation.code,
            "validation_desc": str(one.validation),
            "schema_id": None,
        }
        for one in broker.message_types.values()
    ]


def _cut(name: str, rows: list[Row], options: ViewOptions) -> Page:
    """Return the page of the matching rows that follow the previous page."""
    columns = COLUMNS[name]
    keys = columns[: KEYS[name]]

    def key(row: Row) -> list[str]:
        return [sorted_as(row[column]) for column in keys]

    wanted = sorted((row for row in rows if is_wanted(row, options.where)), key=key)
    after = after_of(options)
    if after is not None:
        wanted = [row for row in wanted if key(row) > after]
    page = [{column: row[column] for column in columns} for row in wanted[: options.limit]]
    if len(wanted) <= options.limit:
        return Page(page, None)
    return Page(page, msgspec.json.encode(key(page[-1])).decode())


def _plain(value: msgspec.Struct) -> Row:
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    return {key: item.hex() if isinstance(item, bytes) else item for key, item in plain.items()}


def route_rows(broker: Broker, now: Instant, mirrored: Mirrored, dynamic: Dynamic) -> list[Row]:
    """Return a row for each route, including expired ones, which can be revived (RTE-65)."""
    return [
        _row(one, now, mirrored, dynamic(broker.name, one.name))
        for one in broker.store.catalog.routes.values()
    ]


def _row(route: Route, now: Instant, mirrored: Mirrored, is_dynamic: bool) -> Row:
    pair = pair_of(route)
    known = None if pair is None else mirrored(pair)
    return {
        "name": route.name,
        "route_id": route.name,
        "principal_id": None,
        "remote_service_name": route.service_name,
        "broker_instance": None if route.broker_id is None else show(route.broker_id),
        "lifetime": route.expires_at,
        "address": route.address,
        "mirror_address": route.mirror or None,
        "is_expired": route.expires_at is not None and route.expires_at <= now,
        "is_dynamic": is_dynamic,
        "mirror_state": None if known is None else known.state.value,
        "current_principal": None if known is None else known.principal or None,
    }
