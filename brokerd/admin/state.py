"""What an instance says of itself: the answers to `status` and `view` (VIEW, MON).

Reads: memory, and the store where rows are asked for.      Calls: nothing that changes anything.
Never: takes a lock (OBJ-47).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from brokerd.admin.figures import peak_memory
from brokerd.broker.broker import Broker
from brokerd.broker.transmission import Outgoing
from brokerd.clock import Instant
from brokerd.delivery.dispatcher import Dispatcher
from brokerd.delivery.transmitter import Transmitter
from brokerd.errors import BrokerError, InvalidArgument
from brokerd.ids import show
from brokerd.model import ANY, DIALOG_TIMER, is_system
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.status import DestinationStatus, InstanceStatus, QueueStatus, StoreStatus
from brokerd.transport.destinations import Destinations

MOST_ROWS = 100_000
MOST_BYTES = 64 * 1024 * 1024
_STORED = (
    "conversation_endpoints",
    "event_notifications",
    "retained_messages",
    "transmission_queue",
)


class About(msgspec.Struct, frozen=True):
    """Facts that do not change while an instance runs."""

    instance: str
    instance_id: bytes
    boot_id: bytes
    version: str
    started_at: Instant
    data_dir: Path


class ReaderRows(Protocol):
    """What is asked of the queue monitors (VIEW-6, VIEW-7)."""

    def trouble(self, broker: str, queue: str) -> str:
        """Why no reader is started now, if they keep failing."""
        ...

    def running(self, broker: str, queue: str) -> int:
        """Readers of the queue that run now."""
        ...

    def monitors(self) -> Sequence[msgspec.Struct]:
        """Rows of `queue_monitors`."""
        ...

    def tasks(self) -> Sequence[msgspec.Struct]:
        """Rows of `activated_tasks`."""
        ...


class PassRow(Protocol):
    """What is known of a pass (VIEW-13)."""

    runs: int
    skips: int
    last_started_at: Instant | None
    last_seconds: float
    last_error: str


class StateReport:
    """Answers questions about an instance."""

    def __init__(
        self,
        *,
        about: About,
        brokers: Mapping[str, Broker],
        absent: Mapping[str, BrokerError],
        destinations: Destinations,
        transmitter: Transmitter,
        dispatcher: Dispatcher,
        readers: ReaderRows,
        passes: Mapping[str, PassRow],
        clients: Callable[[], int],
        condition: Callable[[], str],
        notifications: Callable[[Broker], Awaitable[list[dict[str, object]]]],
    ) -> None:
        self._about = about
        self._brokers = brokers
        self._absent = absent
        self._destinations = destinations
        self._transmitter = transmitter
        self._dispatcher = dispatcher
        self._readers = readers
        self._passes = passes
        self._clients = clients
        self._condition = condition
        self._notifications = notifications
        self._in_memory: dict[str, Callable[[Broker], list[dict[str, object]]]] = {
            "service_queues": self._service_queues,
            "queue_monitors": self._queue_monitors,
            "activated_tasks": self._activated_tasks,
            "destinations": self._all_destinations,
            "periodic_tasks": self._periodic_tasks,
            "services": self._services,
            "conversation_priorities": self._conversation_priorities,
            "brokers": self._all_brokers,
            "counters": lambda broker: [self.counters(broker)],
        }

    async def status(self, broker: Broker) -> InstanceStatus:
        """One screen."""
        about = self._about
        dialogs: dict[str, int] = {}
        for one in list(self._brokers.values()):  # one may be opened meanwhile
            for state, count in (await one.store.count_by_state()).items():
                dialogs[state] = dialogs.get(state, 0) + count
        listeners = self._destinations.listeners
        return InstanceStatus(
            instance=about.instance,
            instance_id=show(about.instance_id),
            boot_id=about.boot_id.hex(),
            version=about.version,
            broker=broker.name,
            broker_id=show(broker.broker_id),
            now=broker.clock.utc(),
            started_at=about.started_at,
            state=self._condition(),
            listening=tuple(one.address for one in listeners if one.address is not None),
            listen_error="; ".join(one.listen_error for one in listeners if one.listen_error),
            clients=self._clients(),
            peers=len(self._destinations.peers.online),
            queues=tuple(
                self._queue(one, state.name)
                for one in self._brokers.values()
                for state in one.own_queues
            ),
            destinations=tuple(self._waiting()),
            dialogs=dialogs,
            stores=(
                *(self._store(one) for one in self._brokers),
                *(self._refused(one, reason) for one, reason in self._absent.items()),
            ),
        )

    def _queue(self, broker: Broker, name: str) -> QueueStatus:
        state = broker.queues[name]
        queue = state.queue
        on = queue.enqueue_enabled and queue.receive_enabled
        activation = queue.activation
        return QueueStatus(
            name=name,
            ready=state.ready_count,
            oldest_ready_at=state.oldest_at,
            status="on" if on else "off",
            handler=activation.handler if activation is not None else "",
            readers=self._readers.running(broker.name, name),
            max_readers=activation.max_readers if activation is not None else 0,
            reason=self._readers.trouble(broker.name, name),
        )

    def _waiting(self) -> list[DestinationStatus]:
        """What waits to be sent, by destination, or without one by reason."""
        waiting: dict[tuple[str, str, str], int] = {}
        for broker in self._brokers.values():
            for live in broker.endpoints.all():
                out = live.outgoing
                if out is None or not out.pending:
                    continue
                key, detail = self.explain(out)
                at = out.address or ""
                group = (at, key if not at or out.held else "", detail if not at else "")
                waiting[group] = waiting.get(group, 0) + out.pending
        rows = [self._destination(*group, count) for group, count in waiting.items()]
        shown = {row.address for row in rows}
        rows += [
            self._destination(one.address, "", "", 0)
            for one in self._destinations.known()
            if one.address not in shown
        ]
        return sorted(rows, key=lambda row: row.address)

    def _destination(self, address: str, key: str, detail: str, count: int) -> DestinationStatus:
        if not address or address == "LOCAL":
            state = "delayed" if not address else "online"
            return DestinationStatus(
                address=address, messages=count, state=state, status_key=key, detail=detail
            )
        status = self._destinations.status(address)
        return DestinationStatus(
            address=address,
            messages=count,
            state=str(status.state),
            status_key=key or status.reason or ("awaiting_ack" if count else ""),
            detail=detail or status.detail,
            since=status.since,
            next_attempt_at=status.suppressed_until,
            failures=status.failures,
        )

    def explain(self, out: Outgoing) -> tuple[str, str]:
        """Status key and detail of one dialog's transmission (XMT-17, XMT-18)."""
        key, detail = self._transmitter.status(out)
        if out.address and key == "transport_unavailable":
            status = self._destinations.status(out.address)
            return status.reason or "not_attempted", status.detail or out.address
        return key, detail

    def _refused(self, name: str, reason: BrokerError) -> StoreStatus:
        return msgspec.structs.replace(self._store(name), state="refused", reason=reason.message)

    def _store(self, name: str) -> StoreStatus:
        path = self._about.data_dir / f"{name}.db"
        return StoreStatus(
            broker=name,
            path=str(path),
            size_bytes=_size(path),
            wal_bytes=_size(path.with_name(path.name + "-wal")),
        )

    # Views.

    async def view(self, broker: Broker, name: str) -> list[dict[str, object]]:
        """The rows of a view as plain maps."""
        if name == "conversation_endpoints":
            rows = await broker.store.conversation_endpoints(MOST_ROWS)
            return [self._endpoint(broker, row) for row in rows]
        if name == "transmission_queue":
            return await self._transmission_queue(broker)
        if name == "retained_messages":
            return await self._retained_messages(broker)
        if name == "event_notifications":
            return await self._notifications(broker)
        in_memory = self._in_memory.get(name)
        if in_memory is None:
            names = ", ".join(sorted((*_STORED, *self._in_memory)))
            raise InvalidArgument(f"there is no view {name!r}", hint=f"there is: {names}")
        return in_memory(broker)

    def _service_queues(self, broker: Broker) -> list[dict[str, object]]:
        return [_plain(self._queue(broker, state.name)) for state in broker.own_queues]

    def _queue_monitors(self, _broker: Broker) -> list[dict[str, object]]:
        return [_plain(row) for row in self._readers.monitors()]

    def _activated_tasks(self, _broker: Broker) -> list[dict[str, object]]:
        return [_plain(row) for row in self._readers.tasks()]

    def _all_destinations(self, _broker: Broker) -> list[dict[str, object]]:
        known = self._destinations.known()
        return [_plain(self._destinations.status(one.address)) for one in known]

    def _periodic_tasks(self, _broker: Broker) -> list[dict[str, object]]:
        return [
            {
                "task": one,
                "runs": state.runs,
                "skips": state.skips,
                "last_started_at": state.last_started_at,
                "last_seconds": state.last_seconds,
                "last_error": state.last_error,
            }
            for one, state in self._passes.items()
        ]

    def _services(self, broker: Broker) -> list[dict[str, object]]:
        return [
            {"name": one.name, "queue": one.queue, "contracts": sorted(one.contracts)}
            for one in broker.services.values()
            if not is_system(one.name)
        ]

    def _conversation_priorities(self, broker: Broker) -> list[dict[str, object]]:
        """Rows of VIEW-9; an absent criterion is ANY."""
        return [
            {
                "name": one.name,
                "service_contract": one.contract or ANY,
                "local_service": one.local_service or ANY,
                "remote_service_name": one.remote_service or ANY,
                "priority": one.level,
            }
            for one in broker.store.catalog.priorities.values()
        ]

    def _all_brokers(self, _broker: Broker) -> list[dict[str, object]]:
        """Rows of VIEW-10; of one that is not open only the name and the reason are known."""
        rows: list[dict[str, object]] = [
            {
                "name": one.name,
                "broker_id": show(one.broker_id),
                "is_broker_enabled": one.store.identity.is_broker_enabled,
                "is_honor_broker_priority_on": one.store.identity.honor_priority,
                "start_failure": "",
            }
            for one in self._brokers.values()
        ]
        rows += [
            {"name": name, "broker_id": None, "start_failure": reason.message}
            | {"is_broker_enabled": False}
            for name, reason in self._absent.items()
        ]
        return sorted(rows, key=lambda row: str(row["name"]))

    def counters(self, broker: Broker) -> dict[str, object]:
        """Totals since the start, for checks from outside."""
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

    def _endpoint(self, broker: Broker, row: DialogEndpoint) -> dict[str, object]:
        """A row of VIEW-1."""
        live = broker.endpoints.get(row.key)
        return {
            "conversation_handle": show(row.handle),
            "conversation_id": show(row.conversation_id),
            "is_initiator": row.is_initiator,
            "service": row.service,
            "service_contract": row.contract,
            "conversation_group_id": show(row.group_id),
            "lifetime": row.expires_at,
            "state": str(row.state),
            "state_desc": row.state.name,
            "far_service": row.far_service,
            "far_broker_instance": show(row.far_broker) if row.far_broker else None,
            "security_timestamp": row.purge_at,
            "send_sequence": row.send_sequence,
            "receive_sequence": row.receive_sequence,
            "receive_sequence_frag": row.receive_fragment,
            "end_dialog_sequence": row.end_sequence,
            "is_system": is_system(row.service),
            "priority": row.priority,
            "error_code": row.error_code,
            "error_text": row.error_text,
            "unread_count": len(live.ready) if live is not None else None,
            "pending_send_count": live.outgoing.pending if live and live.outgoing else 0,
        }

    async def _retained_messages(self, broker: Broker) -> list[dict[str, object]]:
        """Messages retained until their conversations end, with their bodies (RCV-32)."""
        rows: list[dict[str, object]] = []
        size = 0
        for queue in list(broker.queues.values()):
            for row in await broker.store.browse_retained(queue.queue.key, MOST_ROWS - len(rows)):
                size += len(row.body or b"")
                if size > MOST_BYTES:
                    return rows
                is_timer = row.message_type == DIALOG_TIMER
                rows.append(
                    {
                        "queue": queue.name,
                        "status": row.status,
                        "queuing_order": row.queuing_order,
                        "conversation_handle": show(row.handle),
                        "conversation_id": show(row.conversation_id),
                        "conversation_group_id": show(row.group_id),
                        "service_name": row.service,
                        "service_contract_name": row.contract,
                        "message_sequence_number": row.sequence,
                        "message_type_name": row.message_type,
                        "priority": row.priority,
                        "enqueued_at": row.enqueued_at,
                        "message_id": show(row.message_id),
                        "message_body": None if is_timer else row.body,
                        "is_archived": row.endpoint < 0,
                    }
                )
        return rows

    async def _transmission_queue(self, broker: Broker) -> list[dict[str, object]]:
        """Rows of VIEW-3, without bodies."""
        found = (await broker.store.transmission_queue(MOST_ROWS, MOST_BYTES)).rows
        endpoints = await broker.store.endpoints_by_key({row.endpoint for row in found})
        rows: list[dict[str, object]] = []
        for row in found:
            endpoint = endpoints.get(row.endpoint)
            live = broker.endpoints.get(row.endpoint)
            key, detail = "not_attempted", ""
            if live is not None and live.outgoing is not None:
                key, detail = self.explain(live.outgoing)
            rows.append(
                {
                    "conversation_handle": show(endpoint.handle) if endpoint else None,
                    "to_service_name": endpoint.far_service if endpoint else None,
                    "from_service_name": endpoint.service if endpoint else None,
                    "enqueue_time": row.enqueued_at,
                    "message_sequence_number": row.sequence,
                    "message_type_name": row.message_type,
                    "status_key": key,
                    "transmission_status": f"{key} {detail}".strip(),
                }
            )
        return rows


def _plain(value: msgspec.Struct) -> dict[str, object]:
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    return {key: item.hex() if isinstance(item, bytes) else item for key, item in plain.items()}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
