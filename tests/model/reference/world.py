"""World: the committed state of one broker, and what commits and time do to it.

PURE.  Every transition of the table (DLG-T1 to DLG-T30) that a broker by itself can see is one
branch here. Both sides of a dialog are in this broker, so DO is passed through (DLG-16).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.model.reference.catalog import ANY, INITIATOR, TARGET, Catalog
from tests.model.reference.state import (
    END,
    ERROR,
    ERROR_SEQUENCE,
    NO_HEADERS,
    RECEIVED,
    SENT,
    TIMER,
    TIMER_SEQUENCE,
    Begin,
    Done,
    End,
    Endpoint,
    Group,
    Headers,
    Message,
    Move,
    Received,
    Send,
    SetState,
    SetTimer,
    Transaction,
)

GONE = "gone"
CONTRACT_NOT_SUPPORTED = -8408
VALIDATION_FAILED = -8430
PEER_GONE = -8462
LIFETIME_EXCEEDED = -8489
SCHEMA_FAILED = (-9615, -9616)


class World:
    """Endpoints, groups and queues as they are committed."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.retains = dict(catalog.queues)
        """Which queues retain."""
        self.off: set[str] = set()
        """Queues that are switched off, which they are for a moment only: nothing is ended then."""
        self.tombstones: set[bytes | None] = set()
        """Handles of targets that were cleaned up (PBT-9), or are kept for repeats (DLG-33)."""
        self.kept: Callable[[bytes], bool] = lambda handle: False
        """Whether one of these is in fact kept."""
        self.real_id: Callable[[Group], bytes] = lambda group: group.id or b""
        """The id of a group that nobody has seen yet, too."""
        self.endpoints: list[Endpoint] = []
        self.now = 0.0
        self.joined_at: float | None = None
        """When what is applied now was asked for, if it became durable later only."""
        self._ranks = 0
        self._tied = False
        self._new: list[Message] = []

    # What can be asked.

    def find(self, handle: bytes) -> Endpoint | None:
        """The endpoint with this handle."""
        return next((one for one in self.endpoints if one.handle == handle), None)

    def groups(self) -> list[Group]:
        """All groups, in the order in which their first endpoints came."""
        return list(dict.fromkeys(one.group for one in self.endpoints))

    def on_queue(self, queue: str) -> Iterator[Endpoint]:
        """The endpoints of the services of a queue."""
        return (one for one in self.endpoints if one.queue == queue)

    # Commit.

    def apply(self, transaction: Transaction) -> list[Message]:
        """Step what a transaction did, in order, onto the endpoints as they now stand.

        Messages of different conversations have no order among them, even in one transaction
        (SND-6). Returns the new ones, which are not marked durable.
        """
        self._new = []
        with self.in_any_order():
            for done in transaction.done:
                self._step(done)
        present = self.groups()
        for group in transaction.locked:
            if group not in present:
                group.state = None
        for message in self._new:
            message.durable = False
        return self._new

    def _step(self, done: Done) -> None:
        match done:
            case Begin(endpoint):
                endpoint.dialog.initiator = endpoint
                self.endpoints.append(endpoint)
            case Send(endpoint, message_type, body, headers):
                self._send(endpoint, message_type, body, headers)
            case End(endpoint, error):
                self._end(endpoint, error)
            case Move(endpoint, group):
                endpoint.group = group
            case SetTimer(endpoint, name, due_at):
                endpoint.timers.pop(name, None)
                endpoint.overdue.pop(name, None)
                if due_at is not None and endpoint.state != GONE:
                    endpoint.timers[name] = due_at
                    if due_at <= self.now:
                        endpoint.overdue[name] = self._ranks
            case Received(message):
                self._received(message)
            case SetState(group, state):
                group.state = state

    def _received(self, message: Message) -> None:
        endpoint = message.endpoint
        endpoint.messages.remove(message)
        message.taker = None
        if self.retains[endpoint.queue]:
            message.status = RECEIVED  # RCV-14
            endpoint.retained.append(message)

    def _send(
        self, sender: Endpoint, message_type: str, body: bytes | None, headers: Headers
    ) -> None:
        sequence = sender.next_sequence
        sender.next_sequence += 1
        if self.retains[sender.queue]:
            copied = self._message(sender, sequence, message_type, body, headers)
            copied.status = SENT  # RCV-35
            sender.retained.append(copied)
        if sender.state in ("DI", "ER"):
            sender.frozen.append(sequence)  # DLG-46, DLG-26
            return
        assert sender.state in ("SO", "CO"), sender.state
        sender.state = "CO"  # DLG-T2, DLG-T8
        self._deliver(sender, sequence, message_type, body or None, headers)

    def _deliver(
        self,
        sender: Endpoint,
        sequence: int,
        message_type: str,
        body: bytes | None,
        headers: Headers,
    ) -> None:
        """Direct delivery: the checks of the receiving side, then its queue (SND-14, SND-16)."""
        receiver = sender.peer
        if self._must_wait(sender):
            sender.waiting.append((sequence, message_type, body, headers))
            return
        if receiver is None and (sender.dialog.accepted or not sender.is_initiator):
            self._fail(sender, PEER_GONE)  # DLG-T25, DLG-T28
            return
        if receiver is None:
            code = self._unacceptable(sender, message_type, body)
            if code is not None:  # DLG-T6: no endpoint is left; only the initiator learns of it
                self._fail(sender, code)
                return
            receiver = self._accept(sender)
        assert receiver.state == "CO", receiver.state
        if not self.catalog.accepts(message_type, body):  # DLG-43
            self._fail(sender, VALIDATION_FAILED, *SCHEMA_FAILED)
            self._fail(receiver)
            return
        receiver.messages.append(self._message(receiver, sequence, message_type, body, headers))

    def _must_wait(self, sender: Endpoint) -> bool:
        """Whether a send waits in the transmission queue, behind others or by itself (SND-18)."""
        if sender.waiting:
            return True
        if sender.peer is not None:
            return sender.peer.queue in self.off
        begins = sender.is_initiator and not sender.dialog.accepted
        return begins and self.catalog.services[sender.far_service].queue in self.off

    def switch_on(self, queue: str, arrived: Callable[[Endpoint, int], bool]) -> None:
        """What waited for the queue is delivered, each conversation in its order (SND-18).

        `arrived`: whether a message was in fact delivered to that endpoint. Where one side of a
        dialog sent what is refused, it decides whether the other side's came before that."""
        self.off.discard(queue)

        def turn(sender: Endpoint) -> int:
            if any(not self.catalog.accepts(kind, body) for _, kind, body, _ in sender.waiting):
                return 1
            there = sender.peer
            came = there is not None and any(arrived(there, one) for one, *_ in sender.waiting)
            return 0 if came else 2

        with self.in_any_order():
            for sender in sorted(self.endpoints, key=turn):
                waiting, sender.waiting = sender.waiting, []
                for sequence, message_type, body, headers in waiting:
                    if sender.state == "CO":
                        self._deliver(sender, sequence, message_type, body, headers)
                    if sender.state != "CO":  # refused: it stays, with all behind it (DLG-26)
                        sender.frozen.append(sequence)

    def _unacceptable(self, sender: Endpoint, message_type: str, body: bytes | None) -> int | None:
        service = self.catalog.services[sender.far_service]
        if sender.dialog.contract not in service.contracts:
            return CONTRACT_NOT_SUPPORTED  # OBJ-34
        if not self.catalog.accepts(message_type, body):
            return VALIDATION_FAILED
        if sender.dialog.expires_at <= self.now:  # before its transaction was committed
            return LIFETIME_EXCEEDED
        return None

    def _accept(self, sender: Endpoint) -> Endpoint:
        """Message 0 makes the target's endpoint and its group (DLG-T5, GRP-2)."""
        service, contract = sender.far_service, sender.dialog.contract
        receiver = Endpoint(
            dialog=sender.dialog,
            is_initiator=False,
            service=service,
            far_service=sender.service,
            queue=self.catalog.services[service].queue,
            group=Group(service),
            level=self.catalog.level(contract, service, sender.service),
            state="CO",
        )
        sender.dialog.target = receiver
        sender.dialog.accepted = True
        self.endpoints.append(receiver)
        return receiver

    def _end(self, ender: Endpoint, error: int | None) -> None:
        if ender.state == "CO":  # DLG-T10, DLG-T11 and at once DLG-T18 (DLG-16)
            peer = ender.peer
            assert peer is None or peer.state == "CO", peer.state
            if peer is None:
                pass  # it was cleaned up; a repeated end is acknowledged (DLG-T28)
            elif error is None:
                peer.state = "DI"  # DLG-T12
                peer.messages.append(self._message(peer, ender.next_sequence, END, None))
            else:
                self._fail(peer, error)  # DLG-T13
        self._remove(ender)  # DLG-T3, DLG-T16, DLG-T17, DLG-T23, DLG-33

    def clean_up(self, endpoint: Endpoint) -> None:
        """The endpoint goes in whatever state, and its peer is not told (DLG-T27)."""
        if not endpoint.is_initiator:
            self.tombstones.add(endpoint.handle)
        self._remove(endpoint)

    def _remove(self, endpoint: Endpoint) -> None:
        if not endpoint.is_initiator and endpoint.peer is not None and endpoint.peer.frozen:
            self.tombstones.add(endpoint.handle)  # what its peer still holds may come (DLG-33)
        endpoint.state = GONE
        endpoint.messages.clear()
        endpoint.retained.clear()
        endpoint.timers.clear()
        endpoint.frozen.clear()
        self.endpoints.remove(endpoint)
        if endpoint.is_initiator:
            endpoint.dialog.initiator = None
        else:
            endpoint.dialog.target = None

    def _fail(self, endpoint: Endpoint, *codes: int) -> None:
        endpoint.state = "ER"
        message = self._message(endpoint, ERROR_SEQUENCE, ERROR, None)
        message.codes = codes
        endpoint.messages.append(message)

    def _message(
        self,
        endpoint: Endpoint,
        sequence: int,
        message_type: str,
        body: bytes | None,
        headers: Headers = NO_HEADERS,
    ) -> Message:
        rank = self._rank()
        made = Message(
            endpoint=endpoint,
            sequence=sequence,
            message_type=message_type,
            body=body,
            headers=headers,
            validation=self.catalog.validation(message_type),
            rank=rank,
            first_rank=rank,
            earliest=self.now if self.joined_at is None else self.joined_at,
        )
        self._new.append(made)
        return made

    def _rank(self) -> int:
        if not self._tied:
            self._ranks += 1
        return self._ranks

    @contextmanager
    def in_any_order(self) -> Iterator[None]:
        """What is enqueued within the block may be in any order."""
        self._rank()
        tied, self._tied = self._tied, True
        yield
        self._tied = tied

    # Time.

    def deadlines(self) -> list[float]:
        """When something happens by itself."""
        found = [due_at for one in self.endpoints for due_at in one.timers.values()]
        return found + [one.dialog.expires_at for one in self.endpoints if one.state in _LIVING]

    def pass_time(self, until: float) -> None:
        """Let due whatever is due by then, in order."""
        while True:
            due_at = min(self.deadlines(), default=until + 1)
            if due_at > until:
                break
            self.now = max(self.now, due_at)
            with self.in_any_order():
                for endpoint in list(self.endpoints):
                    self._due(endpoint, due_at)
        self.now = until

    def _due(self, endpoint: Endpoint, now: float) -> None:
        for name, due_at in list(endpoint.timers.items()):
            if due_at <= now:
                del endpoint.timers[name]
                message = self._message(endpoint, TIMER_SEQUENCE, TIMER, None)  # DLG-36
                message.timer_name = name
                message.first_rank = endpoint.overdue.pop(name, message.rank)
                endpoint.messages.append(message)
        if endpoint.state in _LIVING and endpoint.dialog.expires_at <= now:
            self._fail(endpoint, LIFETIME_EXCEEDED)  # DLG-T14


_LIVING = ("SO", "CO", "DI")


def may_send(allowed: str | None, side: str) -> str | None:
    """Why this side may not send a type that the contract allows to `allowed`, or None."""
    assert side in (INITIATOR, TARGET)
    if allowed is None:
        return "not_in_contract"
    return None if allowed in (ANY, side) else "wrong_direction"
