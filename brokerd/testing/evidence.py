"""Evidence: a history indexed by message and by transaction, with the outcomes it proves.

A transaction whose commit was answered has the outcome in the answer. One that never requested a
commit has failed. If the request got no answer, other events decide: if a message that the
transaction sent was seen anywhere, it committed; if a message that it received was delivered again,
it failed. If the stores are known, absence is evidence, too. A transaction that stays undecided may
have either outcome.

Reads:  events of `history`, and the messages stored at the end.
Never:  reports violations; `check` does.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto

import msgspec

from brokerd.testing.history import Event, HistoryUnusable, Kind

TxKey = tuple[str, int]
"""Key of a transaction: client and transaction number, unique in a history."""
Direction = tuple[str, str]
"""Direction of a dialog: the dialog and the side that sends."""


class Outcome(Enum):
    """The outcome of a transaction."""

    COMMITTED = auto()
    FAILED = auto()
    UNKNOWN = auto()


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The messages of one store at the end of a run; the JSON of a `--store` file."""

    store: str
    queued: tuple[str, ...] = ()
    """Uids of messages that a RECEIVE from this store could still return."""
    transmission: tuple[str, ...] = ()
    """Uids of messages that wait for the peer's acknowledgement; they may also have arrived."""
    accounted: tuple[tuple[str, str], ...] = ()
    """Uids of messages given up on purpose, each with the reason that its sender can see."""


class Send(msgspec.Struct, eq=False):
    """One sent message, as recorded by its sender."""

    uid: str
    tx: TxKey
    at: int
    """Place in the history of the first event about the message."""
    dialog: str | None
    side: str | None
    hash: str | None
    seq: int | None
    failed: bool = False

    @property
    def direction(self) -> Direction:
        """The direction to which the message belongs."""
        return self.dialog or "", self.side or ""


class Receipt(msgspec.Struct, eq=False):
    """One message received by one transaction."""

    uid: str
    tx: TxKey
    asked: int
    """Place in the history of the request that returned the message."""
    at: int
    """Place in the history of the answer with the message."""
    dialog: str | None
    side: str | None
    hash: str | None
    seq: int | None
    records: dict[str, int] = {}
    """How often each node recorded the receipt; records by different nodes are one receipt."""

    @property
    def count(self) -> int:
        """How often the transaction received the message."""
        return max(self.records.values())


class Transaction(msgspec.Struct, eq=False):
    """One transaction of one client."""

    key: TxKey
    events: list[Event] = []
    sends: list[Send] = []
    receipts: dict[str, Receipt] = {}
    commit_asked: int | None = None
    committed_at: int | None = None
    commit_failed: int | None = None
    rolled_back: int | None = None
    receive_asked: int | None = None
    receive_open: bool = False
    savepoints: dict[int, int] = {}
    """Place of each savepoint, by number."""
    undoing: dict[int, int] = {}
    """Place of the newest request to roll back to a savepoint, by number."""
    undone: list[tuple[int, int]] = []
    """Pairs of places between which all operations were undone."""

    def stated(self) -> Outcome:
        """Return the outcome that the transaction's own events prove."""
        if self.committed_at is not None:
            return Outcome.COMMITTED
        asked = self.commit_asked is not None
        if not asked or self.commit_failed is not None or self.rolled_back is not None:
            return Outcome.FAILED
        return Outcome.UNKNOWN


class Index:
    """A history indexed by uid and by transaction, with outcomes decided as far as possible."""

    def __init__(
        self,
        events: Sequence[Event],
        stores: Iterable[Stored] | None = None,
        accounted: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Index the events and decide outcomes.

        `stores`: the messages that are stored at the end; None = unknown, empty = no messages.
        `accounted`: (uid, reason) of messages given up on purpose.
        """
        self.transactions: dict[TxKey, Transaction] = {}
        self.sends: dict[str, Send] = {}
        self.receipts: dict[str, list[Receipt]] = {}
        self.queued: dict[str, str] = {}
        self.in_transmission: dict[str, str] = {}
        self.accounted: dict[str, str] = {}
        self.complete = stores is not None
        self.torn: list[tuple[Transaction, str]] = []
        """Transactions with evidence for both outcomes, and this evidence as text."""
        self.places: dict[int, int] = {}
        """Place in the history of each event, by the id of the event object."""
        self._by_op: dict[str, list[Event]] = {}
        self._about: dict[str, list[Event]] = {}
        self._outcomes: dict[TxKey, Outcome] = {}
        for at, event in enumerate(events):
            self.places[id(event)] = at
            self._by_op.setdefault(event.op, []).append(event)
            self._read(at, event)
        for stored in stores or ():
            self._read_store(stored)
        self.accounted.update((uid, reason) for uid, reason in accounted if reason)
        for tx in self.transactions.values():
            self._outcomes[tx.key] = tx.stated()
        self._open = [tx for tx in self.transactions.values() if tx.stated() is Outcome.UNKNOWN]
        self._decide()

    # Questions.

    def outcome(self, key: TxKey) -> Outcome:
        """Return the outcome of a transaction, by its answers or by evidence."""
        return self._outcomes[key]

    def events_of(self, op: str) -> list[Event]:
        """Return the events of one operation, in the order of the history."""
        return self._by_op.get(op, [])

    def is_sent(self, send: Send) -> bool:
        """Return whether the send is an effect of a committed transaction."""
        return not send.failed and self.outcome(send.tx) is Outcome.COMMITTED

    def is_seen(self, uid: str) -> bool:
        """Return whether the message was ever received, is in a store, or is accounted for."""
        return uid in self.receipts or self.is_kept(uid)

    def is_kept(self, uid: str) -> bool:
        """Return whether the message is in a store or accounted for."""
        return uid in self.queued or uid in self.in_transmission or uid in self.accounted

    def takers(self, uid: str, outcome: Outcome) -> list[Receipt]:
        """Return the receipts of a message by transactions with this outcome."""
        return [got for got in self.receipts.get(uid, ()) if self.outcome(got.tx) is outcome]

    def is_taken(self, uid: str) -> bool:
        """Return whether a transaction that did not fail has received the message."""
        return any(self.outcome(got.tx) is not Outcome.FAILED for got in self.receipts.get(uid, ()))

    def blind(self) -> Transaction | None:
        """Return a transaction that may have received unrecorded messages, or None."""
        for tx in self.transactions.values():
            if tx.receive_open and self.outcome(tx.key) is not Outcome.FAILED:
                return tx
        return None

    def excerpt(self, uids: Iterable[str] = (), keys: Iterable[TxKey] = ()) -> tuple[Event, ...]:
        """Return all events about the messages `uids`; of their transactions, and of the
        transactions `keys`, also the events without a uid."""
        found = {id(event): event for uid in uids for event in self._about.get(uid, ())}
        touched = {(event.client, event.tx) for event in found.values() if event.tx is not None}
        for key in touched | set(keys):
            for event in self.transactions[key].events:
                if event.uid is None:
                    found[id(event)] = event
        return tuple(sorted(found.values(), key=lambda event: (event.t, event.i)))

    # Reading.

    def _read(self, at: int, event: Event) -> None:
        match event.op:
            case "begin":
                self._transaction(at, event)
            case "send":
                self._read_send(at, event)
            case "receive":
                self._read_receive(at, event)
            case "end" | "ended":
                self._transaction(at, event)
            case "commit" | "rollback":
                self._read_outcome(at, event)
            case "savepoint" | "rollback_to":
                self._read_savepoint(at, event)
            case "account" if event.uid is not None and event.reason:
                self.accounted[event.uid] = event.reason
                self._about.setdefault(event.uid, []).append(event)
            case _:
                pass

    def _transaction(self, at: int, event: Event) -> Transaction:
        if event.tx is None:
            raise HistoryUnusable(f"event {at}: {event.op} names no transaction")
        key = (event.client, event.tx)
        tx = self.transactions.get(key)
        if tx is None:
            tx = self.transactions[key] = Transaction(key)
        tx.events.append(event)
        return tx

    def _read_send(self, at: int, event: Event) -> None:
        tx = self._transaction(at, event)
        if event.uid is None:
            raise HistoryUnusable(f"event {at}: send names no uid")
        self._about.setdefault(event.uid, []).append(event)
        send = self.sends.get(event.uid)
        if send is None:
            send = Send(event.uid, tx.key, at, event.dialog, event.side, event.hash, event.seq)
            self.sends[event.uid] = send
            tx.sends.append(send)
        elif send.tx != tx.key:
            raise HistoryUnusable(f"event {at}: uid {event.uid} is sent by two transactions")
        if send.seq is None:
            send.seq = event.seq
        send.failed = send.failed or event.kind is Kind.FAIL

    def _read_receive(self, at: int, event: Event) -> None:
        tx = self._transaction(at, event)
        if event.kind is Kind.INVOKE:
            tx.receive_asked, tx.receive_open = at, True
            return
        tx.receive_open = event.kind is Kind.INFO
        if event.kind is not Kind.OK or event.uid is None:
            return
        self._about.setdefault(event.uid, []).append(event)
        got = tx.receipts.get(event.uid)
        if got is None:
            asked = at if tx.receive_asked is None else tx.receive_asked
            got = Receipt(
                event.uid, tx.key, asked, at, event.dialog, event.side, event.hash, event.seq
            )
            tx.receipts[event.uid] = got
            self.receipts.setdefault(event.uid, []).append(got)
        got.records[event.node] = got.records.get(event.node, 0) + 1

    def _read_outcome(self, at: int, event: Event) -> None:
        tx = self._transaction(at, event)
        if event.op == "commit" and tx.commit_asked is None:
            tx.commit_asked = at
        match event.op, event.kind:
            case "commit", Kind.OK:
                tx.committed_at = at if tx.committed_at is None else tx.committed_at
            case "commit", Kind.FAIL:
                tx.commit_failed = at
            case "rollback", Kind.OK:
                tx.rolled_back = at
            case _:
                pass

    def _read_savepoint(self, at: int, event: Event) -> None:
        tx = self._transaction(at, event)
        if event.savepoint is None:
            raise HistoryUnusable(f"event {at}: {event.op} names no savepoint")
        if event.op == "savepoint":
            tx.savepoints.setdefault(event.savepoint, at)
        elif event.kind is Kind.INVOKE:
            tx.undoing[event.savepoint] = at
        elif event.kind is Kind.OK:
            first = tx.savepoints.get(event.savepoint)
            if first is None:
                raise HistoryUnusable(f"event {at}: savepoint {event.savepoint} was never set")
            self._undo(tx, first, tx.undoing.get(event.savepoint, at))

    def _undo(self, tx: Transaction, first: int, last: int) -> None:
        """Undo the operations of a transaction between two places.

        Its sends become failed. Its receipts move to an artificial transaction without a commit,
        which therefore counts as failed.
        """
        tx.undone.append((first, last))
        for send in tx.sends:
            if first < send.at < last:
                send.failed = True
        undone = [got for got in tx.receipts.values() if first < got.asked < last]
        if undone:
            key = (f"{tx.key[0]}, undone at {last}", tx.key[1])
            self.transactions[key] = Transaction(key)
            for got in undone:
                del tx.receipts[got.uid]
                got.tx = key

    def _read_store(self, stored: Stored) -> None:
        self.queued.update((uid, stored.store) for uid in stored.queued)
        self.in_transmission.update((uid, stored.store) for uid in stored.transmission)
        self.accounted.update((uid, reason) for uid, reason in stored.accounted if reason)

    # Deciding.

    def _decide(self) -> None:
        """Decide outcomes until no outcome changes: one outcome may be evidence for another.

        Sightings are evaluated first; absence counts only when no sighting decides further.
        """
        while self._decide_some(absence=False) or (
            self.complete and self._decide_some(absence=True)
        ):
            pass

    def _decide_some(self, *, absence: bool) -> bool:
        """Decide all transactions by sightings, or one by absence; return whether any was decided.

        After one decision by absence, the sightings have to be evaluated again, because the
        decision may be a new sighting.
        """
        before = len(self._open)
        for tx in self._open:
            self._outcomes[tx.key] = found = self._weigh(tx, absence=absence)
            if absence and found is not Outcome.UNKNOWN:
                break
        self._open = [tx for tx in self._open if self.outcome(tx.key) is Outcome.UNKNOWN]
        return len(self._open) < before

    def _weigh(self, tx: Transaction, *, absence: bool) -> Outcome:
        if absence:
            committed, failed = self._cannot_have_failed(tx), self._cannot_have_committed(tx)
        else:
            committed, failed = self._seen_committed(tx), self._seen_failed(tx)
        # Evidence for both outcomes is itself a violation (CHK-4): the transaction then counts as
        # committed, so that the other properties see its effects.
        if committed is not None and failed is not None:
            self.torn.append((tx, f"{committed}, but {failed}"))
        if committed is not None:
            return Outcome.COMMITTED
        return Outcome.UNKNOWN if failed is None else Outcome.FAILED

    def _seen_committed(self, tx: Transaction) -> str | None:
        for send in tx.sends:
            if self.is_seen(send.uid):
                return f"its message {send.uid} was seen"
        return None

    def _seen_failed(self, tx: Transaction) -> str | None:
        for uid, got in tx.receipts.items():
            if uid in self.queued:
                return f"message {uid}, which it received, is still in a queue"
            for other in self.receipts[uid]:
                if other.tx != tx.key and self._takes_back(got, other):
                    return f"message {uid}, which it received, was handed out again"
        return None

    def _cannot_have_failed(self, tx: Transaction) -> str | None:
        for uid in tx.receipts:
            if self._was_sent(uid) and not self.is_kept(uid) and self._is_last(tx, uid):
                return f"message {uid}, which it received, is nowhere else"
        return None

    def _cannot_have_committed(self, tx: Transaction) -> str | None:
        for send in tx.sends:
            if not send.failed and not self.is_seen(send.uid):
                return f"its message {send.uid} is nowhere"
        return None

    def _takes_back(self, got: Receipt, other: Receipt) -> bool:
        """Return whether the other receipt proves that the first was rolled back.

        It does if the other receive was requested after the first was answered. If the two receives
        overlap, the order of the answers proves nothing, but only one of the transactions can have
        committed.
        """
        return other.asked > got.at or self.outcome(other.tx) is Outcome.COMMITTED

    def _was_sent(self, uid: str) -> bool:
        send = self.sends.get(uid)
        return send is not None and self.is_sent(send)

    def _is_last(self, tx: Transaction, uid: str) -> bool:
        """Return whether no other transaction can have kept the message."""
        return all(
            got.tx == tx.key or self.outcome(got.tx) is Outcome.FAILED for got in self.receipts[uid]
        )
