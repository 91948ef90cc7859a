"""Verdict: the evidence of a run for the checker, besides the events of its clients.

Reads:  the history, the stores.      Calls: the history, for messages given up on purpose.
Never:  checks the history, except for false warnings of lost messages: the checker does.
"""

from collections.abc import Callable, Container, Iterable
from typing import Final

from brokerd.protocol.headers import body_of
from brokerd.testing.evidence import Stored
from brokerd.testing.history import Event, History, Kind
from tests.engine.simulation.nodes import Node
from tests.engine.simulation.recording import uids_in

_PAGE: Final = 10_000


def account(history: History, is_loose: Callable[[str], bool], undone: Container[str]) -> None:
    """Account for the committed messages of loose dialogs, which need not have been received.

    `undone`: uids whose send was undone by a savepoint.
    """
    done = committed(history.events)
    for event in history.events:
        loose = event.dialog is not None and is_loose(event.dialog) and event.uid not in undone
        if event.op == "send" and loose and (event.client, event.tx) in done:
            history.add("account", Kind.OK, uid=event.uid, reason="ended early")


def false_alarms(
    events: tuple[Event, ...], warned: Iterable[tuple[str | None, str]], undone: Container[str]
) -> list[str]:
    """Return the warnings of lost messages that are wrong, one sentence each.

    `warned` has dialogs, each with the side that sent. A warning is certainly wrong only if every
    message of that side was received."""
    done = committed(events)
    received = {event.uid for event in events if event.op == "receive"}
    found = []
    for dialog, side in warned:
        sent = {
            event.uid
            for event in events
            if event.op == "send" and (event.dialog, event.side) == (dialog, side)
            if (event.client, event.tx) in done and event.uid not in undone
        }
        if sent and sent <= received:
            found.append(f"the {side} of {dialog} is said to have lost messages, and all arrived")
    return found


async def stored(node: Node, left: Callable[[str, str], None]) -> Stored:
    """Return the messages in the store of a node; call `left` if some of them wait to be sent."""
    store = node.broker.store
    queued = [
        body_of(row.body)
        for state in node.broker.queues.values()
        for row in (await store.messages.browse(state.queue.key, _PAGE, _PAGE * _PAGE)).rows
    ]
    outgoing = (await store.outgoing.listed(_PAGE, _PAGE * _PAGE)).rows
    waiting = [body_of(row.body) for row in outgoing]
    if waiting:
        left(node.name, f"{len(waiting)} messages are in the transmission queue")
    return Stored(
        store=node.name,
        queued=tuple(uid for one in queued for uid in uids_in(one)),
        transmission=tuple(uid for one in waiting for uid in uids_in(one)),
    )


def committed(events: tuple[Event, ...]) -> set[tuple[str, int | None]]:
    """Return the transactions that committed, by their answers or by what others saw.

    A transaction whose commit was requested and not answered counts as committed if one of its
    messages arrived, or if it was the last to receive each message it received.
    """
    taken: dict[str, tuple[str, int | None]] = {}
    for event in events:
        if event.op == "receive" and event.uid is not None:
            taken[event.uid] = (event.client, event.tx)  # the latest
    failed = {
        (event.client, event.tx)
        for event in events
        if event.op == "rollback" or (event.op == "commit" and event.kind is Kind.FAIL)
    }
    done = {
        (event.client, event.tx)
        for event in events
        if event.op == "commit" and event.kind is Kind.OK
    }
    asked = {(event.client, event.tx) for event in events if event.op == "commit"}
    seen = {
        (event.client, event.tx) for event in events if event.op == "send" and event.uid in taken
    }
    handed_out_again = {
        (event.client, event.tx)
        for event in events
        if event.op == "receive" and event.uid is not None
        if taken[event.uid] != (event.client, event.tx)
    }
    kept = set(taken.values()) - handed_out_again
    return done | ((seen | kept) & (asked - failed))
