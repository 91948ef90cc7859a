"""Order: the proven order of the messages of a direction, and arrivals out of order (CHK-5).

Two messages of a direction have a proven order if their sequence numbers are known, if one
transaction sent both, or if the transaction of one was confirmed before the other was requested.
Otherwise their order is open, so that an incomplete recording never gives a false violation.

Reads:  an `evidence.Index`.
"""

from collections.abc import Callable, Iterator

import msgspec

from brokerd.testing.evidence import Direction, Index, Outcome, Receipt, Send, TxKey


class Arrived(msgspec.Struct, frozen=True, eq=False):
    """A sent message with its committed receipt."""

    send: Send
    got: Receipt
    commit_asked: int
    """Place in the history of the receiving transaction's request to commit.

    Before this place, no other transaction may receive a later message of the direction.
    """


class Stream(msgspec.Struct, frozen=True, eq=False):
    """The committed sends of one direction, in order as far as their order is known."""

    direction: Direction
    sends: list[Send]
    arrived: list[Arrived]


def streams(index: Index) -> Iterator[Stream]:
    """Yield the directions with committed sends, in the order of their first event."""
    found: dict[Direction, list[Send]] = {}
    for send in index.sends.values():
        if index.is_sent(send):
            found.setdefault(send.direction, []).append(send)
    for direction, sends in found.items():
        for send in sends:
            _learn_sequence(index, send)
        if all(send.seq is not None for send in sends):
            sends.sort(key=lambda send: send.seq or 0)
        yield Stream(direction, sends, [made for send in sends if (made := _arrived(index, send))])


def gaps(index: Index, stream: Stream) -> Iterator[tuple[Send, Send]]:
    """Yield pairs of a send that was not received and a later send that was."""
    # To prove a gap, it suffices to check three messages: the one with the highest number, the
    # latest send, and the latest send of the missing message's own transaction.
    sends = [found.send for found in stream.arrived]
    numbered = [send for send in sends if send.seq is not None]
    by_number = max(numbered, key=lambda send: send.seq or 0, default=None)
    by_time = max(sends, key=lambda send: send.at, default=None)
    by_tx: dict[TxKey, Send] = {}
    for send in sends:
        if send.tx not in by_tx or by_tx[send.tx].at < send.at:
            by_tx[send.tx] = send
    for send in stream.sends:
        if index.is_taken(send.uid):
            continue
        for behind in (by_number, by_time, by_tx.get(send.tx)):
            if behind is not None and is_before(index, send, behind):
                yield send, behind
                break


def is_before(index: Index, a: Send, b: Send) -> bool:
    """Return whether `a` is proven to come before `b` in their direction."""
    if a.seq is not None and b.seq is not None:
        return a.seq < b.seq
    return _is_before_in_time(index, a, b)


def swaps(index: Index, stream: Stream) -> Iterator[tuple[Arrived, Arrived]]:
    """Yield pairs of messages received in the wrong order: (earlier message, offender)."""
    numbered = [found for found in stream.arrived if found.send.seq is not None]
    yield from _sweep(numbered, lambda found: found.send.seq, lambda found: found.send.seq)
    others = [found for found in stream.arrived if found.send.seq is None]
    by_tx: dict[TxKey, list[Arrived]] = {}
    for found in others:
        by_tx.setdefault(found.send.tx, []).append(found)
    for group in by_tx.values():
        yield from _sweep(group, lambda found: found.send.at, lambda found: found.send.at)
    yield from _sweep(
        others,
        lambda found: index.transactions[found.send.tx].committed_at,
        lambda found: found.send.at,
    )


def misnumbered(index: Index, stream: Stream) -> Iterator[tuple[Send, Send]]:
    """Yield pairs of sends with equal sequence numbers, or numbers that contradict their order."""
    numbered = [send for send in stream.sends if send.seq is not None]
    numbered.sort(key=lambda send: send.at)
    newest: dict[int, Send] = {}
    for send in numbered:
        if (same := newest.setdefault(send.seq or 0, send)) is not send:
            yield same, send
    # The highest number confirmed before a send was requested must be lower than its own.
    confirmed = sorted(
        (at, number, send)
        for number, send in enumerate(numbered)
        if (at := index.transactions[send.tx].committed_at) is not None
    )
    highest: Send | None = None
    place = 0
    for send in numbered:
        while place < len(confirmed) and confirmed[place][0] < send.at:
            other = confirmed[place][2]
            if highest is None or (other.seq or 0) > (highest.seq or 0):
                highest = other
            place += 1
        if highest is not None and (highest.seq or 0) > (send.seq or 0):
            yield highest, send
    yield from _misnumbered_within(numbered)


def _misnumbered_within(numbered: list[Send]) -> Iterator[tuple[Send, Send]]:
    last: dict[TxKey, Send] = {}
    for send in numbered:
        before = last.get(send.tx)
        if before is not None and (before.seq or 0) > (send.seq or 0):
            yield before, send
        last[send.tx] = send


def _is_before_in_time(index: Index, a: Send, b: Send) -> bool:
    if a.tx == b.tx:
        return a.at < b.at
    confirmed = index.transactions[a.tx].committed_at
    return confirmed is not None and confirmed < b.at


def _learn_sequence(index: Index, send: Send) -> None:
    """Set the sequence number of a send from a receipt, because senders rarely know it."""
    if send.seq is None:
        numbers = [got.seq for got in index.receipts.get(send.uid, ()) if got.seq is not None]
        send.seq = numbers[0] if numbers else None


def _arrived(index: Index, send: Send) -> Arrived | None:
    for got in index.takers(send.uid, Outcome.COMMITTED):
        asked = index.transactions[got.tx].commit_asked
        if asked is not None:
            return Arrived(send, got, asked)
    return None


def _sweep(
    arrived: list[Arrived],
    released: Callable[[Arrived], int | None],
    position: Callable[[Arrived], int | None],
) -> Iterator[tuple[Arrived, Arrived]]:
    """Yield pairs of messages received in the wrong order: (earlier message, offender).

    Message A is earlier than message B if `released(A)` is below `position(B)`. B is then an
    offender in either of two cases:

    - the same transaction received both, and B before A;
    - another transaction received A, and B was received before that one requested its commit.
    """
    earlier = sorted(
        (
            (at, number)
            for number, found in enumerate(arrived)
            if (at := released(found)) is not None
        )
    )
    later = sorted((position(found) or 0, number) for number, found in enumerate(arrived))
    latest_in: dict[TxKey, Arrived] = {}
    latest: list[Arrived] = []
    place = 0
    for at, number in later:
        while place < len(earlier) and earlier[place][0] < at:
            found = arrived[earlier[place][1]]
            known = latest_in.get(found.got.tx)
            if known is None or known.got.at < found.got.at:
                latest_in[found.got.tx] = found
            latest = _two_latest([*latest, found])
            place += 1
        offender = arrived[number]
        same = latest_in.get(offender.got.tx)
        if same is not None and same.got.at > offender.got.at:
            yield same, offender
            continue
        for before in latest:
            if before.got.tx != offender.got.tx and before.commit_asked > offender.got.at:
                yield before, offender
                break


def _two_latest(found: list[Arrived]) -> list[Arrived]:
    """Return the latest arrivals of two transactions, as one may be the offender's own.

    The latest are those whose transaction was the last to request its commit."""
    best: dict[TxKey, Arrived] = {}
    for one in found:
        best.setdefault(one.got.tx, one)
    return sorted(best.values(), key=lambda one: one.commit_asked)[-2:]
