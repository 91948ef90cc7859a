"""Properties: the promises other than the arrival of messages (CHK-6 to CHK-12).

Reads:  an `evidence.Index` and its events.
Never:  checks a property without its events; `check` lists the events of each property.
"""

from collections.abc import Iterator

import msgspec

from brokerd.model import END_DIALOG, ERROR
from brokerd.testing.evidence import Index, Outcome, TxKey
from brokerd.testing.history import Event, Kind


class Finding(msgspec.Struct, frozen=True):
    """A broken promise, and the events that show it."""

    rule: str
    text: str
    events: tuple[Event, ...]


def ends_once(index: Index) -> Iterator[Finding]:
    """Check CHK-6: a side receives the end of its dialog once, and no message after it."""
    ends: dict[tuple[str, str], Event] = {}
    for event in index.events_of("ended"):
        if not _committed(index, event):
            continue
        place = (event.dialog or "", event.side or "")
        before = ends.setdefault(place, event)
        if before is not event and not _overtaken(before, event):
            text = f"the {event.side} of dialog {event.dialog} was told twice that it is over"
            yield Finding("CHK-6", text, (before, event))
    for event in index.events_of("receive"):
        end = ends.get((event.dialog or "", event.side or ""))
        places = index.places
        if end is None or event.uid is None or places[id(event)] < places[id(end)]:
            continue
        if _committed(index, event) and (event.client, event.tx) != (end.client, end.tx):
            text = f"message {event.uid} was received after the end of dialog {event.dialog}"
            yield Finding("CHK-6", text, (end, event))


def _overtaken(error: Event, end: Event) -> bool:
    """Return whether one receive returned an Error and, after it, a waiting EndDialog (RCV-8).

    The Error comes from the end of a lifetime, or from a fault, after the far side had ended the
    dialog (DLG-T14, DLG-T15).
    """
    together = (error.client, error.tx) == (end.client, end.tx)
    return together and (error.reason, end.reason) == (ERROR, END_DIALOG)


def one_target(index: Index) -> Iterator[Finding]:
    """Check CHK-7: the target side of a dialog receives at one broker only."""
    found: dict[str, Event] = {}
    for event in index.events_of("receive"):
        if event.side != "target" or not event.dialog or not event.broker or event.uid is None:
            continue
        if not _committed(index, event):
            continue
        before = found.setdefault(event.dialog, event)
        if before.broker != event.broker:
            text = f"dialog {event.dialog} has targets at {before.broker} and at {event.broker}"
            yield Finding("CHK-7", text, (before, event))


def nothing_early(index: Index) -> Iterator[Finding]:
    """Check CHK-8: messages were durable when they were acknowledged or sent as fragments."""
    for op, what in (("ack", "acknowledged"), ("fragment", "sent on")):
        for event in index.events_of(op):
            if event.seq is not None and event.stored is not None and event.seq > event.stored:
                text = (
                    f"message {event.seq} of dialog {event.dialog} was {what} by {event.node},"
                    f" where only those up to {event.stored} were durable"
                )
                yield Finding("CHK-8", text, (event,))


def settled(index: Index) -> Iterator[Finding]:
    """Check CHK-9: no work is left at the end, and the counts balance."""
    for event in index.events_of("left"):
        yield Finding("CHK-9", f"{event.node}: {event.reason}", (event,))


def one_owner(index: Index) -> Iterator[Finding]:
    """Check CHK-10: no two committed transactions held one group at the same time.

    A transaction held a group at least from the answer with the first message of the group until it
    requested its commit.
    """
    held: dict[str, list[tuple[int, int, TxKey, Event]]] = {}
    for tx in index.transactions.values():
        if tx.commit_asked is None or index.outcome(tx.key) is not Outcome.COMMITTED:
            continue
        first: dict[str, Event] = {}
        for event in tx.events:
            taken = event.op == "receive" and event.uid in tx.receipts
            if taken and event.kind is Kind.OK and event.group:
                first.setdefault(event.group, event)
        for group, event in first.items():
            held.setdefault(group, []).append(
                (index.places[id(event)], tx.commit_asked, tx.key, event)
            )
    for group, spans in held.items():
        spans.sort(key=lambda span: span[:2])
        latest = spans[0]
        for span in spans[1:]:
            if span[0] < latest[1]:
                text = (
                    f"group {group} was held by transaction {latest[2][1]} of {latest[2][0]!r} and"
                    f" by transaction {span[2][1]} of {span[2][0]!r} at the same time"
                )
                yield Finding("CHK-10", text, (latest[3], span[3]))
            latest = max(latest, span, key=lambda one: one[1])


def not_too_many_readers(index: Index) -> Iterator[Finding]:
    """Check CHK-11: each queue has between 0 and `max_readers` readers."""
    for event in index.events_of("readers"):
        if event.seq is None or event.stored is None or 0 <= event.seq <= event.stored:
            continue
        text = f"{event.seq} readers of {event.queue} ran at {event.node}, {event.stored} may"
        yield Finding("CHK-11", text, (event,))


def on_time(index: Index) -> Iterator[Finding]:
    """Check CHK-12: no event happens early, or later than its recorded bound."""
    for event in index.events_of("due"):
        early = event.seq is not None and event.t < event.seq
        late = event.stored is not None and event.t > event.stored
        if early or late:
            when = "early" if early else "late"
            yield Finding("CHK-12", f"{event.reason} of dialog {event.dialog} is {when}", (event,))


FURTHER = (
    ends_once,
    one_target,
    nothing_early,
    settled,
    one_owner,
    not_too_many_readers,
    on_time,
)


def _committed(index: Index, event: Event) -> bool:
    """Return whether the event belongs to a committed transaction that did not undo it."""
    key = (event.client, event.tx)
    if event.kind is not Kind.OK or event.tx is None or key not in index.transactions:
        return False
    tx, place = index.transactions[event.client, event.tx], index.places[id(event)]
    undone = any(first < place < last for first, last in tx.undone)
    return index.outcome(tx.key) is Outcome.COMMITTED and not undone
