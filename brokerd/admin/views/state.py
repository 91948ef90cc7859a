"""The state of an instance on one screen: the answer to `status` (MON).

Reads: memory, and the store where rows are needed.      Calls: nothing that changes anything.
Never: takes a lock (OBJ-47).
"""

import os
import resource
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.queues import QueueState
from brokerd.clock import SECOND, Instant
from brokerd.config.exposure import OpenListener
from brokerd.delivery.outgoing.classification import HERE
from brokerd.delivery.outgoing.transmission_status import Attempts, attempts
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.errors import BrokerError, StoreMissing
from brokerd.ids import ConversationId, parse, show
from brokerd.model import QueueStatus as QueueChange
from brokerd.routing.reasons import Reason, status_text
from brokerd.security.grants import Entry
from brokerd.storage.loss_acceptance import loss_path
from brokerd.telemetry.status import (
    CLOCK_TOLERANCE,
    QUIET,
    UNREAD_AFTER,
    UNREAD_AT_FIRST,
    CertificateStatus,
    ClockApart,
    DestinationStatus,
    DuplicateStatus,
    FailedDialogs,
    FileProblem,
    InstanceStatus,
    PublicGrant,
    QueueStatus,
    RefusedLogins,
    ServerStatus,
    StoreStatus,
)
from brokerd.transport.destinations import Destinations
from brokerd.transport.door import Door
from brokerd.units import counted, show_duration, show_size

RECENT_S: Final = 3600.0
"""Seconds for which a refusal of a dialog is shown."""
_SLICE: Final = 1_000
"""Endpoints looked at between two turns of the loop."""
_DESCRIPTORS: Final = "/dev/fd"
"""The directory in which the system lists the descriptors of the reading process."""


class _Unsent(NamedTuple):
    """The messages of one dialog that wait, and the status of their transmission."""

    broker: str
    out: Outgoing
    key: str
    detail: str


class About(msgspec.Struct, frozen=True):
    """Facts that do not change while an instance runs."""

    instance: str
    instance_id: bytes
    boot_id: bytes
    version: str
    started_at: Instant
    data_dir: Path
    stores: "StorePlaces"
    min_free: int
    """Bytes that a store keeps free on its disk (REL-26)."""
    lingering_after: float
    """Seconds after which an unfinished dialog counts as lingering (PBT-5)."""


class StorePlaces(Protocol):
    """Where the stores are."""

    def place_of(self, name: str) -> StoreStatus:
        """Return the place and the size of the store of a broker."""
        ...

    def wait_of(self, name: str) -> str:
        """Return what a commit of a broker that takes long waits for."""
        ...

    @property
    def server(self) -> ServerStatus | None:
        """Facts about the server that has the stores; None = they are files."""
        ...


class ReaderRows(Protocol):
    """The queries to the queue monitors (VIEW-6, VIEW-7)."""

    def trouble(self, broker: str, queue: str) -> str:
        """Return why no reader is started now because readers keep failing; "" if they do not."""
        ...

    def running(self, broker: str, queue: str) -> int:
        """Return the number of running readers of the queue."""
        ...


class StateReport:
    """Source of reports about the state of an instance."""

    def __init__(
        self,
        *,
        about: About,
        brokers: Mapping[str, Broker],
        absent: Mapping[str, BrokerError],
        destinations: Destinations,
        transmitter: Transmitter,
        readers: ReaderRows,
        clients: Callable[[], int],
        condition: Callable[[], str],
        failing: Callable[[], Mapping[str, str]],
        idle: Callable[[], dict[str, str]],
        clock: Callable[[], str],
        unknown_users: Callable[[], Sequence[str]],
        open_listeners: Callable[[], Sequence[OpenListener]],
        openings: Callable[[], Sequence[str]],
        open_to_public: Callable[[], Sequence[Entry]],
        file_problems: Callable[[], Iterable[FileProblem]],
        certificates: Callable[[], Sequence[CertificateStatus]],
        no_master_key: Callable[[], str],
        failed_dialogs: Callable[[Instant], Sequence[FailedDialogs]],
        refused_logins: Callable[[Instant], Sequence[RefusedLogins]],
        late: Callable[[Broker], float],
        duplicates: Callable[[], Sequence[DuplicateStatus]],
        next_pass: Callable[[], Instant],
        doors: Sequence[Door],
    ) -> None:
        """Create the source of reports.

        `failed_dialogs`: returns the dialogs that have failed since an instant. `refused_logins`:
        returns the logins of peers that were refused since an instant. `late`: returns the
        seconds that a commit of a broker has waited, if that is too long, else 0. `next_pass`:
        returns when delayed dialogs are classified again (XMT-9).
        """
        self._about = about
        self._brokers = brokers
        self._absent = absent
        self._destinations = destinations
        self._transmitter = transmitter
        self._readers = readers
        self._clients = clients
        self._condition = condition
        self._failing = failing
        self._idle = idle
        self._clock = clock
        self._unknown_users = unknown_users
        self._open_listeners = open_listeners
        self._openings = openings
        self._open_to_public = open_to_public
        self._file_problems = file_problems
        self._certificates = certificates
        self._no_master_key = no_master_key
        self._failed_dialogs = failed_dialogs
        self._refused_logins = refused_logins
        self._late = late
        self._duplicates = duplicates
        self._next_pass = next_pass
        self._doors = doors

    async def status(
        self, broker: Broker, only: Container[tuple[str, str]] | None = None
    ) -> InstanceStatus:
        """Return the state of the whole instance; `broker`: the broker of the session.

        `only`: the queues to include, as pairs of broker and name; None = all."""
        about = self._about
        dialogs: dict[str, int] = {}
        for one in list(self._brokers.values()):  # a broker may be opened meanwhile
            for state, count in (await one.store.endpoints.count_by_state()).items():
                dialogs[state] = dialogs.get(state, 0) + count
        listeners = self._destinations.listeners
        now = broker.clock.utc()
        return InstanceStatus(
            instance=about.instance,
            instance_id=show(about.instance_id),
            boot_id=about.boot_id.hex(),
            version=about.version,
            broker=broker.name,
            broker_id=show(broker.broker_id),
            now=now,
            started_at=about.started_at,
            state=self._condition(),
            listening=tuple(one.address for one in listeners if one.address is not None),
            listen_error=self.listen_error,
            endpoint_state=str(self._destinations.endpoint.state) if listeners else "",
            clients=self._clients(),
            peers=len(self._destinations.peers.online),
            doors=tuple(door.status() for door in self._doors),
            queues=tuple(
                queue for one in self._brokers.values() for queue in self._queues(one, only)
            ),
            destinations=tuple(await self._waiting()),
            dialogs=dialogs,
            stores=tuple(self.stores()),
            server=about.stores.server,
            duplicates=tuple(self._duplicates()),
            warnings=tuple(
                f"periodic work {name} fails: {why}; brokerd periodic ls"
                for name, why in self._failing().items()
            ),
            clock=self._clock(),
            unknown_users=tuple(self._unknown_users()),
            open_listeners=tuple(self._open_listeners()),
            openings=tuple(self._openings()),
            open_to_public=tuple(map(_public_grant, self._open_to_public())),
            file_problems=tuple(self._file_problems()),
            certificates=tuple(self._certificates()),
            no_master_key=self._no_master_key(),
            open_files=len(os.listdir(_DESCRIPTORS)),
            max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            min_free=about.min_free,
            lingering_after=about.lingering_after,
            idle_dialogs=self._idle(),
            dialog_limits=tuple(self._dialog_limits()),
            failed_dialogs=tuple(await self._failed(Instant(now - round(RECENT_S * SECOND)))),
            refused_logins=tuple(self._refused_logins(Instant(now - round(RECENT_S * SECOND)))),
            clocks_apart=tuple(
                ClockApart(peer=peer, ahead=ahead)
                for peer, ahead in self._destinations.clocks()
                if abs(ahead) > CLOCK_TOLERANCE.total_seconds()
            ),
        )

    async def _failed(self, since: Instant) -> list[FailedDialogs]:
        """Return the failures since an instant; an example that is gone is left out (MON-84)."""
        found = list(self._failed_dialogs(since))
        kept: set[tuple[str, str]] = set()
        for name in {one.broker for one in found if one.example} & self._brokers.keys():
            broker = self._brokers[name]
            wanted = [
                ConversationId(parse(one.example))
                for one in found
                if one.example and one.broker == name
            ]
            for endpoint in await broker.store.endpoints.by_names((), wanted):
                if not broker.endpoints.is_removed(endpoint.key):
                    kept.add((name, show(endpoint.conversation_id)))
        return [
            one
            if not one.example or (one.broker, one.example) in kept
            else msgspec.structs.replace(one, example="")
            for one in found
        ]

    @property
    def condition(self) -> str:
        """The condition of the instance: starting, ready, draining, stopped or failed."""
        return self._condition()

    @property
    def started_at(self) -> Instant:
        """When the instance started."""
        return self._about.started_at

    @property
    def min_free(self) -> int:
        """Bytes that a store keeps free on its disk (REL-26)."""
        return self._about.min_free

    @property
    def listen_error(self) -> str:
        """Why the instance does not listen for peers where it should; empty = it does."""
        listeners = self._destinations.listeners
        return "; ".join(one.listen_error for one in listeners if one.listen_error)

    def stores(self) -> Iterator[StoreStatus]:
        """Yield the state of every store, from memory and the file system alone."""
        for broker in self._brokers.values():
            yield self._open_store(broker)
        for name, reason in self._absent.items():
            yield self._refused(name, reason)

    def _queues(
        self, broker: Broker, only: Container[tuple[str, str]] | None
    ) -> Iterator[QueueStatus]:
        rows = [one.row for one in broker.held.by_id.values()]
        parked = Counter(row.queue for row in rows if row.parked_at is not None)
        waiting = [row for row in rows if row.parked_at is None and row.retry_at is not None]
        retrying = Counter(row.queue for row in waiting)
        waiting.sort(key=lambda row: row.retry_at or 0)
        # Of what waits for another attempt before what is parked: that happened last.
        errors = {row.queue: row.error for row in rows if row.parked_at is not None}
        errors |= {row.queue: row.error for row in waiting}
        archives = {one.queue.retention_limit.archive for one in broker.own_queues}
        for state in broker.own_queues:
            if only is not None and (broker.name, state.name) not in only:
                continue
            key = state.queue.key
            held = {"retrying": retrying[key], "last_error": errors.get(key, "")}
            if state.name in archives:  # what is there stays there
                held["unread"] = ""
            yield self._queue(broker, state.name, parked=parked[key], **held)

    def _dialog_limits(self) -> Iterator[str]:
        """Yield a sentence for each user and peer that was refused a dialog in the last hour."""
        for broker in self._brokers.values():
            since = broker.clock.monotonic() - RECENT_S
            for owner, found in broker.owners.refused.items():
                if found.last_at >= since:
                    who = owner.replace(":", " ") if owner.startswith("peer:") else f"user {owner}"
                    most = counted(found.most, "dialog")
                    refused = counted(found.number, "more was", "more were")
                    yield f"{who} has {most} open in broker {broker.name}; {refused} refused"

    def _queue(self, broker: Broker, name: str, **held: Any) -> QueueStatus:  # noqa: ANN401
        state = broker.queues[name]
        queue = state.queue
        on = queue.enqueue_enabled and queue.receive_enabled
        activation = queue.activation
        readers = self._readers.running(broker.name, name)
        is_activation_off = activation is not None and not activation.enabled
        off = None if on else queue.status
        return QueueStatus(
            broker=broker.name,
            name=name,
            ready=state.ready_count,
            enqueued=state.enqueued,
            received=state.received,
            oldest_ready_at=state.oldest_at,
            status="on" if on else "off",
            handler=activation.procedure if activation is not None else "",
            readers=readers,
            max_readers=activation.max_readers if activation is not None else 0,
            reason=self._readers.trouble(broker.name, name),
            full=_full(state),
            max_messages=queue.max_messages or 0,
            max_bytes=queue.max_bytes or 0,
            refused_at=None if state.room is None else state.room.refused_at,
            off_because="" if off is None else _why_off(off),
            is_poisoned=off is not None and bool(off.conversation_id),
            is_activation_off=is_activation_off,
            **{"unread": "" if readers or not on else self._unread(broker, state)} | held,
        )

    def _unread(self, broker: Broker, queue: QueueState) -> str:
        """Return why nothing receives the messages of a queue without running readers (MON-70).

        Empty if something does: a receive that waits, one whose transaction is open, or one within
        the last minute. A program that has connected only now has some seconds to begin."""
        oldest, now = queue.oldest_at, broker.clock.utc()
        if oldest is None or queue.taken or queue.line.is_expecting:
            return ""
        last, allowed = queue.read_at, UNREAD_AFTER
        if last is None:
            last, allowed = self._about.started_at, UNREAD_AT_FIRST
        if now - max(oldest, last) <= allowed:
            return ""
        activation = queue.queue.activation
        if activation is None:
            why = "no program receives them, and the queue has no activation"
        elif activation.enabled:
            why = "no reader runs"
        else:
            why = "no program receives them, and the activation of the queue is off"
        waited = show_duration(timedelta(seconds=(now - oldest) // SECOND))
        count = counted(queue.ready_count, "message waits", "messages wait")
        return f"{count}, the oldest for {waited}: {why}"

    async def _waiting(self) -> list[DestinationStatus]:
        """Return rows of waiting messages: one for each destination, even if no message waits, and
        one for each broker and reason of messages without a destination."""
        waiting: dict[tuple[str, str, str, str], list[_Unsent]] = {}
        for broker in list(self._brokers.values()):
            for count, live in enumerate(broker.endpoints.all(), 1):
                if count % _SLICE == 0:
                    await broker.clock.sleep_until(0)  # let other tasks run
                out = live.outgoing
                if out is None or not out.pending:
                    continue
                key, detail = self.explain(out)
                # A held dialog sends nothing, whatever destination it had before it ended.
                at = "" if out.held else out.route.address or ""
                group = (at, "", "", "") if at else ("", broker.name, key, detail)
                waiting.setdefault(group, []).append(_Unsent(broker.name, out, key, detail))
        rows = [self._destination(*group, unsent) for group, unsent in waiting.items()]
        shown = {row.address for row in rows}
        rows += [
            self._destination(one.address, "", "", "", [])
            for one in self._destinations.known()
            if one.address not in shown
        ]
        return sorted(rows, key=lambda row: (row.address, row.broker))

    def _destination(
        self, address: str, broker: str, key: str, detail: str, unsent: list[_Unsent]
    ) -> DestinationStatus:
        outs = [one.out for one in unsent]
        count = sum(out.pending for out in outs)
        if not address:
            since = [out.route.since for out in outs if out.route.since]
            tried = any(out.route.matches and not out.held for out in outs)
            endpoint = outs[0].live.endpoint
            return DestinationStatus(
                broker=broker,
                address=address,
                messages=count,
                state="delayed",
                status_key=key,
                detail=detail,
                text=status_text(key, detail),
                since=Instant(min(since)) if since else None,
                oldest_at=_oldest(outs),
                next_attempt_at=self._next_pass() if tried else None,
                failures=max(out.route.matches for out in outs),
                held_up=count,
                service=endpoint.far_service,
                dialog=show(endpoint.handle),
            )
        is_here = address == HERE
        status = None if is_here else self._destinations.status(address)
        worst = _worst(unsent)
        common = DestinationStatus(
            address=address,
            messages=count,
            oldest_at=_oldest(outs),
            repeats=max((out.window.attempts for out in outs), default=0),
        )
        if worst:
            endpoint, key, detail = worst[0].out.live.endpoint, worst[0].key, worst[0].detail
            is_of_peer = status is None or key != status.reason
            common = msgspec.structs.replace(
                common,
                broker=worst[0].broker,
                held_up=sum(one.out.pending for one in worst),
                service=endpoint.far_service if is_of_peer else "",
                dialog=show(endpoint.handle),
            )
        if status is None:
            text = status_text(key, detail) if key else ""
            return msgspec.structs.replace(
                common, state="online", status_key=key, detail=detail, text=text
            )
        key = key or status.reason or (Reason.AWAITING_ACK.value if count else "")
        detail = detail or status.detail
        return msgspec.structs.replace(
            common,
            state=str(status.state),
            status_key=key,
            detail=detail,
            text=status_text(key, detail) if key else "",
            since=status.since,
            next_attempt_at=status.suppressed_until,
            failures=status.failures,
            heard_at=self._destinations.last_heard_at(address),
        )

    def explain(self, out: Outgoing) -> tuple[str, str]:
        """Return status key and detail of one dialog's transmission (XMT-17, XMT-18)."""
        key, detail = self._transmitter.status(out)
        if out.route.address and key == "transport_unavailable":
            status = self._destinations.status(out.route.address)
            return status.reason or "not_attempted", status.detail or out.route.address
        return key, detail

    def attempts(self, broker: Broker, out: Outgoing) -> Attempts:
        """Return how often a dialog was transmitted, and the times of last and next (XMT-18)."""
        held_until = None
        if out.route.address is not None and out.route.address != HERE:
            held_until = self._destinations.status(out.route.address).suppressed_until
        next_pass = self._next_pass()
        return attempts(out, broker.clock, next_pass=next_pass, held_until=held_until)

    def _refused(self, name: str, reason: BrokerError) -> StoreStatus:
        state = "missing" if isinstance(reason, StoreMissing) else "refused"
        return msgspec.structs.replace(self._store(name), state=state, reason=reason.message)

    def _open_store(self, broker: Broker) -> StoreStatus:
        store, reason = self._store(broker.name), broker.store.identity.disabled_reason
        if (lost := broker.store.accepted_loss()) is not None:
            store = msgspec.structs.replace(
                store,
                loss=lost.loss,
                loss_accepted_at=lost.accepted_at,
                loss_file=str(loss_path(broker.store.path)),
            )
        if broker.is_full:
            text = "too little room on the disk: new messages are refused"
            return msgspec.structs.replace(store, state="full", reason=text)
        if waited := self._late(broker):
            wait = self._about.stores.wait_of(broker.name)
            text = f"a commit has waited {waited:.0f} s {wait}"
            return msgspec.structs.replace(store, state="slow", reason=text)
        if broker.enabled:
            return store
        return msgspec.structs.replace(store, state="disabled", reason=reason or "")

    def _store(self, name: str) -> StoreStatus:
        return self._about.stores.place_of(name)


def _oldest(outs: Iterable[Outgoing]) -> Instant | None:
    """Return when the oldest message in memory was sent; None = all are only in the store."""
    return min((at for out in outs if (at := out.oldest_at) is not None), default=None)


def _worst(unsent: Iterable[_Unsent]) -> list[_Unsent]:
    """Return the messages that are held up for the reason that holds up most messages."""
    by_reason: dict[tuple[str, str], list[_Unsent]] = {}
    for one in unsent:
        if one.key not in QUIET:
            by_reason.setdefault((one.key, one.detail), []).append(one)
    return max(
        by_reason.values(), key=lambda held: sum(one.out.pending for one in held), default=[]
    )


def _why_off(status: QueueChange) -> str:
    """Return why a queue was switched off (PBT-1)."""
    if not status.conversation_id:
        return f"{status.reason}, by {status.changed_by}"
    count = counted(status.rollbacks, "rollback")
    last = f", the last for {status.error}" if status.error else ""
    return f"{count} of conversation {show(status.conversation_id)}{last}"


def _full(queue: QueueState) -> str:
    """Return content, limits and refusals of a queue at its limit; empty = it has room (REL-42)."""
    room = queue.room
    if room is None or not queue.is_at_limit():
        return ""
    depth = queue.depth
    held = counted(depth.ready + depth.parked, "message")
    most = [counted(room.max_messages, "message")] if room.max_messages else []
    if room.max_bytes:
        held += f" of {show_size(queue.size)}"
        most.append(show_size(room.max_bytes))
    text = f"{held}, its limit is {' or '.join(most)}"
    if not room.refused:
        return text
    refused = counted(room.refused, "send or arrival was", "sends and arrivals were")
    return f"{text}; {refused} refused"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _public_grant(entry: Entry) -> PublicGrant:
    grant = entry.grant
    return PublicGrant(
        permission=grant.permission.value, securable=grant.on, origin=entry.origin.value
    )
