"""Checker: reports the promises of brokerd that a recorded history breaks (reliability 7.1).

    python -m brokerd.testing.check HISTORY… [--store FILE …] [--drained]

Exit status 0: clean; 1: violations, each printed with the few events that show it; 2: unusable
history.

What to record. Every event has `op`, `kind`, `i` and `t` (see `history.Event`); all recorders of
a run share one clock that never goes back. `client` and `tx` identify a transaction uniquely in a
history; a verb that is its own transaction gets a number, too, and is recorded as the operations
that it consists of. An operation is recorded as `invoke` before it is sent, and as `ok`, `fail` or
`info` (outcome unknown) when its outcome is known. The SDK and the daemon may both record a run,
each with its own `node`.

- `begin`: client, tx. Optional.
- `send`: client, tx, uid; also dialog, side (of the sender), hash, seq. One event per message. The
  `invoke` suffices if the answer comes with that of the commit; `fail` if the verb was refused.
- `receive`: client, tx; also queue. One `invoke` per request, then, before the commit is requested,
  one `ok` per message with uid, dialog, side (of the receiver), hash, seq, group; an empty answer
  is one `ok` without uid, and so is a message of the system.
- `end`: client, tx; also dialog, side, reason.
- `savepoint`, `rollback_to`: client, tx, savepoint. An `ok` of `rollback_to` undoes everything
  requested between that savepoint and its own `invoke`.
- `commit`: client, tx; also token. `invoke`, then the answer; after an `info` a later `ok` or
  `fail` (learned by `tx_outcome`) decides.
- `rollback`: client, tx.
- `account`: uid, reason. A message given up for a reason that its sender can see.

Events for the further properties; a property without its events is not checked:

- CHK-6. `ended` (`ok`): client, tx, dialog, side (of the receiver), reason (the message type). An
  EndDialog or Error was received.
- CHK-7. `receive` with `broker`: the broker from which the message was received.
- CHK-8. `ack` and `fragment` (`info`): node (the sender), dialog, seq, and in `stored` the highest
  sequence that was durable at this node at that moment.
- CHK-9. `left` (`info`): node, reason. Work has been left undone, or counts do not balance.
- CHK-10. `receive` with `group`.
- CHK-11. `readers` (`info`): node, queue, seq (number of running readers), stored (number of
  allowed readers).
- CHK-12. `due` (`info`): dialog, reason (of the event), seq (time in microseconds before which the
  event is early), stored (time in microseconds after which it is late; optional).

A uid, such as `<writer>-<n>`, identifies one message of one dialog, and is never sent twice. `side`
is `initiator` or `target`. A transaction that never requested a commit has failed. Other operations
may be in the file, and are not checked.

Without stores, a message missing at the end of a direction may still be stored, and does not count
as lost. With stores, or with `--drained` (no message is stored), each committed send must be
accounted for: received, stored, or given up for a reason.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from brokerd.testing import order
from brokerd.testing.evidence import Index, Outcome, Receipt, Send, Stored, TxKey
from brokerd.testing.history import Event, HistoryUnusable, merge, read_events, show
from brokerd.testing.properties import FURTHER

CLEAN, VIOLATED, UNUSABLE = 0, 1, 2
_EXCERPT = 25


class Violation(msgspec.Struct, frozen=True):
    """A broken promise, with the events that show it."""

    rule: str
    text: str
    excerpt: tuple[Event, ...] = ()

    def show(self) -> str:
        """Return the violation and its events as text, one per line."""
        lines = [f"{self.rule}: {self.text}"]
        lines += [f"  {show(event)}" for event in self.excerpt[:_EXCERPT]]
        if len(self.excerpt) > _EXCERPT:
            lines.append(f"  and {len(self.excerpt) - _EXCERPT} more events")
        return "\n".join(lines)


def check(
    history: Iterable[Event],
    stores: Iterable[Stored] | None = None,
    accounted: Iterable[tuple[str, str]] = (),
) -> list[Violation]:
    """Return every violation of CHK-1 to CHK-12, in that order.

    `stores`: the messages that are stored at the end; None = unknown, empty = no messages.
    `accounted`: (uid, reason) of messages given up on purpose, in addition to those in the history
    and the stores. Raise `HistoryUnusable` if the history allows no conclusion.
    """
    index = Index(tuple(history), stores, accounted)
    violations = [found for prop in PROPERTIES for found in prop(index)]
    return violations + [
        Violation(found.rule, found.text, found.events) for prop in FURTHER for found in prop(index)
    ]


def no_phantom(index: Index) -> Iterator[Violation]:
    """Check CHK-1: each received uid was sent, with an equal hash, in a transaction that did not
    fail."""
    for uid, receipts in index.receipts.items():
        send = index.sends.get(uid)
        if send is None:
            yield _violation(index, "CHK-1", f"message {uid} was received but never sent", [uid])
            continue
        if send.failed or index.outcome(send.tx) is Outcome.FAILED:
            text = f"message {uid} was received, but the transaction that sent it failed"
            yield _violation(index, "CHK-1", text, [uid])
        for got in receipts:
            if (wrong := _difference(send, got)) is not None:
                yield _violation(index, "CHK-1", f"message {uid} arrived {wrong}", [uid])


def no_loss(index: Index) -> Iterator[Violation]:
    """Check CHK-2: the uid of a committed send is received, or in a store, or accounted."""
    for stream in order.streams(index):
        missing = _missing(index, stream)
        if missing:
            _must_see(index)
        for send in missing:
            text = f"message {send.uid} of {_name(stream)} is lost, {_part(send, stream)}"
            yield _violation(index, "CHK-2", text, [send.uid])


def no_duplicate(index: Index) -> Iterator[Violation]:
    """Check CHK-3: each uid has at most one committed receive."""
    for uid in index.receipts:
        taken = index.takers(uid, Outcome.COMMITTED)
        times = sum(got.count for got in taken)
        if times > 1:
            text = f"message {uid} was received and committed {times} times"
            yield _violation(index, "CHK-3", text, [uid])


def atomic(index: Index) -> Iterator[Violation]:
    """Check CHK-4: a transaction has all its effects or none, and comes after its causes."""
    yield from _contradictions(index)
    yield from _effects_of_failed(index)
    yield from _receives_undone(index)
    yield from _sends_partly_there(index)
    yield from _too_early(index)
    yield from _cycles(index)


def in_order(index: Index) -> Iterator[Violation]:
    """Check CHK-5: the received uids of a direction are a gapless prefix of its committed sends."""
    for stream in order.streams(index):
        name = _name(stream)
        for send, behind in order.gaps(index, stream):
            _must_see(index)
            text = f"message {behind.uid} of {name} was received without {send.uid} before it"
            yield _violation(index, "CHK-5", text, [send.uid, behind.uid])
        for before, offender in order.swaps(index, stream):
            text = f"message {offender.send.uid} of {name} was received before {before.send.uid}"
            yield _violation(index, "CHK-5", text, [before.send.uid, offender.send.uid])
        for a, b in order.misnumbered(index, stream):
            text = f"messages {a.uid} and {b.uid} of {name} have sequences {a.seq} and {b.seq}"
            yield _violation(index, "CHK-5", text, [a.uid, b.uid])


PROPERTIES: tuple[Callable[[Index], Iterator[Violation]], ...] = (
    no_phantom,
    no_loss,
    no_duplicate,
    atomic,
    in_order,
)


# CHK-1.


def _difference(send: Send, got: Receipt) -> str | None:
    if None not in (send.hash, got.hash) and send.hash != got.hash:
        return "with another body"
    if None not in (send.dialog, got.dialog) and send.dialog != got.dialog:
        return "in another dialog"
    if None not in (send.side, got.side) and send.side == got.side:
        return "at the side that sent it"
    return None


# CHK-2.


def _missing(index: Index, stream: order.Stream) -> list[Send]:
    if index.complete:
        return [
            send
            for send in stream.sends
            if not index.is_taken(send.uid) and not index.is_kept(send.uid)
        ]
    return [send for send, _ in order.gaps(index, stream) if not index.is_kept(send.uid)]


def _part(send: Send, stream: order.Stream) -> str:
    """Return, as text, the position of a lost message among those of its direction that arrived."""
    places = {found.uid: place for place, found in enumerate(stream.sends)}
    arrived = [places[found.send.uid] for found in stream.arrived]
    if not arrived:
        return "as nothing of this direction arrived"
    if places[send.uid] < min(arrived):
        return "before what arrived"
    return "after what arrived" if places[send.uid] > max(arrived) else "between what arrived"


def _must_see(index: Index) -> None:
    """Raise `HistoryUnusable` if a transaction may have received messages that are not recorded.

    In this case no message can be proven to be missing.
    """
    tx = index.blind()
    if tx is not None:
        raise HistoryUnusable(
            f"transaction {tx.key[1]} of client {tx.key[0]!r} may have committed, but the answer "
            "to its receive is not recorded; ask for it again, or receive before committing"
        )


# CHK-4.


def _contradictions(index: Index) -> Iterator[Violation]:
    for tx in index.transactions.values():
        denied = tx.commit_failed is not None or tx.rolled_back is not None
        if tx.committed_at is not None and denied:
            text = f"{_tx_name(tx.key)} was told both that it committed and that it did not"
            yield _violation(index, "CHK-4", text, [], [tx.key])
    for tx, why in index.torn:
        uids = [send.uid for send in tx.sends] + list(tx.receipts)
        text = f"{_tx_name(tx.key)} took effect in part: {why}"
        yield _violation(index, "CHK-4", text, uids, [tx.key])


def _effects_of_failed(index: Index) -> Iterator[Violation]:
    for send in index.sends.values():
        failed = send.failed or index.outcome(send.tx) is Outcome.FAILED
        if failed and index.is_seen(send.uid):
            text = f"{_tx_name(send.tx)} failed, yet its message {send.uid} is there"
            yield _violation(index, "CHK-4", text, [send.uid], [send.tx])


def _receives_undone(index: Index) -> Iterator[Violation]:
    for uid in index.receipts:
        for got in index.takers(uid, Outcome.COMMITTED):
            again = _handed_out_after(index, got)
            if uid in index.queued:
                text = f"{_tx_name(got.tx)} committed, yet message {uid} is still in a queue"
                yield _violation(index, "CHK-4", text, [uid])
            elif again is not None:
                text = f"{_tx_name(got.tx)} committed, yet {_tx_name(again.tx)} got {uid} after it"
                yield _violation(index, "CHK-4", text, [uid])


def _handed_out_after(index: Index, got: Receipt) -> Receipt | None:
    committed_at = index.transactions[got.tx].committed_at
    for other in index.receipts[got.uid]:
        if other.tx != got.tx and committed_at is not None and other.asked > committed_at:
            return other
    return None


def _sends_partly_there(index: Index) -> Iterator[Violation]:
    """Check that either all messages of a transaction were seen, or none.

    Only with stores can a message be proven to be nowhere; without stores, CHK-5 finds the gap.
    """
    if not index.complete:
        return
    for tx in index.transactions.values():
        sends = [send for send in tx.sends if index.is_sent(send)]
        there = [send.uid for send in sends if index.is_seen(send.uid)]
        gone = [send.uid for send in sends if not index.is_seen(send.uid)]
        if there and gone:
            text = f"{_tx_name(tx.key)} took effect in part: {there[0]} was seen, {gone[0]} was not"
            yield _violation(index, "CHK-4", text, [there[0], gone[0]], [tx.key])


def _too_early(index: Index) -> Iterator[Violation]:
    for uid, receipts in index.receipts.items():
        send = index.sends.get(uid)
        if send is None:
            continue
        asked = index.transactions[send.tx].commit_asked
        for got in receipts:
            if got.at < send.at:
                text = f"message {uid} was received before it was sent"
            elif asked is not None and got.at < asked:
                text = f"message {uid} was received before its transaction asked to commit"
            else:
                continue
            yield _violation(index, "CHK-4", text, [uid])


def _cycles(index: Index) -> Iterator[Violation]:
    """Check that no transactions form a cycle in which each received a message of the previous."""
    waits: dict[TxKey, list[TxKey]] = {}
    for uid, receipts in index.receipts.items():
        send = index.sends.get(uid)
        for got in receipts if send is not None else ():
            if send is not None and index.outcome(got.tx) is not Outcome.FAILED:
                waits.setdefault(send.tx, []).append(got.tx)
    circle = _find_circle(waits)
    if circle:
        names = " -> ".join(_tx_name(key) for key in [*circle, circle[0]])
        uids = [
            uid
            for uid, receipts in index.receipts.items()
            if uid in index.sends
            and index.sends[uid].tx in circle
            and any(got.tx in circle for got in receipts)
        ]
        yield _violation(index, "CHK-4", f"messages go round in a circle: {names}", uids, circle)


def _find_circle(waits: dict[TxKey, list[TxKey]]) -> list[TxKey]:
    """Return the first cycle found by a depth-first search; empty = no cycle."""
    # Iterative: a chain of transactions may be longer than Python's recursion limit.
    finished: set[TxKey] = set()
    for start in waits:
        path: list[TxKey] = []
        on_path: set[TxKey] = set()
        walk: list[tuple[TxKey, Iterator[TxKey]]] = []
        following: TxKey | None = start if start not in finished else None
        while following is not None or walk:
            if following is not None:
                path.append(following)
                on_path.add(following)
                walk.append((following, iter(waits.get(following, ()))))
            key, rest = walk[-1]
            following = next((found for found in rest if found not in finished), None)
            if following is None:
                walk.pop()
                finished.add(path.pop())
                on_path.discard(key)
            elif following in on_path:
                return path[path.index(following) :]
    return []


# Texts.


def _violation(
    index: Index, rule: str, text: str, uids: Sequence[str], keys: Iterable[TxKey] = ()
) -> Violation:
    return Violation(rule, text, index.excerpt(uids, keys))


def _name(stream: order.Stream) -> str:
    dialog, side = stream.direction
    return f"dialog {dialog or '?'} from its {side or 'sender'}"


def _tx_name(key: TxKey) -> str:
    return f"transaction {key[1]} of client {key[0]!r}"


# The command.


def main(arguments: Sequence[str] | None = None) -> int:
    """Check history files and print the violations; return the exit status."""
    parser = argparse.ArgumentParser(prog="brokerd.testing.check", description="Check histories.")
    parser.add_argument("history", nargs="+", type=Path, help="a history, one JSON event a line")
    parser.add_argument("--store", action="append", type=Path, help="what a store holds, as JSON")
    parser.add_argument("--drained", action="store_true", help="nothing is stored anywhere")
    options = parser.parse_args(arguments)
    try:
        histories = [read_events(path) for path in options.history]
        events = histories[0] if len(histories) == 1 else merge(histories)
        violations = check(events, _stores(options.store, drained=options.drained))
    except HistoryUnusable as error:
        sys.stderr.write(f"unusable: {error}\n")
        return UNUSABLE
    for found in violations:
        sys.stdout.write(found.show() + "\n")
    sys.stdout.write(f"{len(events)} events, {len(violations)} violations\n")
    return VIOLATED if violations else CLEAN


def _stores(paths: list[Path] | None, *, drained: bool) -> list[Stored] | None:
    if paths is None:
        return [] if drained else None
    return [_read_store(path) for path in paths]


def _read_store(path: Path) -> Stored:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Stored)
    except OSError as error:
        raise HistoryUnusable(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise HistoryUnusable(f"{path}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
