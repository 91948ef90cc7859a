"""Waiting until a large structured body was looked into, on its way in and on its way out (OBJ-18).

Reads:  message types.      Calls: broker.inspection.
Never:  refuses anything: the checks do, where they always are, and find the verdict known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.broker.transactions import Transaction
from brokerd.delivery.arriving_dialogs import ArrivingDialog
from brokerd.model import MessageType
from brokerd.protocol.frames import Fragment

CHECK = "check"
"""What a send waits for while its body is looked into."""


def before_send(
    tx: Transaction, lives: Sequence[Live], message_type: str, body: bytes | None
) -> Blocked | None:
    """Wait for the verdict on a body that this side asks for (PBT-14), or that goes straight onto
    a queue of this broker (SND-14). The groups are locked: what comes later stays behind it."""
    broker = tx.broker
    kind = _unknown(tx, message_type, body)
    if kind is None or body is None:
        return None
    if message_type not in broker.checked_on_send and not any(_stays(tx, live) for live in lives):
        return None
    tx.inspected.append(body)
    return Blocked(CHECK, partial(broker.inspection.look, kind, body))


def before_sends(
    tx: Transaction, live: Live, messages: Iterable[tuple[str, bytes | None]]
) -> Blocked | None:
    """The same for many messages of one dialog: it waits once, until all were looked into."""
    if not _stays(tx, live):
        return None
    wanted: list[tuple[MessageType, bytes]] = []
    for message_type, body in messages:
        kind = _unknown(tx, message_type, body)
        if kind is not None and body is not None:
            wanted.append((kind, body))
    if not wanted:
        return None
    tx.inspected += [body for _, body in wanted]

    def look(resume: Resume) -> None:
        left = len(wanted)

        def looked() -> None:
            nonlocal left
            left -= 1
            if not left:
                resume()

        for kind, body in wanted:
            tx.broker.inspection.look(kind, body, looked)

    return Blocked(CHECK, look)


def _unknown(tx: Transaction, message_type: str, body: bytes | None) -> MessageType | None:
    """The type of a body that is to be looked into beside the loop, and was not yet."""
    inspection = tx.broker.inspection
    kind = tx.broker.message_types.get(message_type)
    if not body or kind is None or not inspection.concerns(kind, len(body)):
        return None
    return None if inspection.knows(kind, body) else kind


def _stays(tx: Transaction, live: Live) -> bool:
    endpoint = tx.view(live)
    return endpoint is not None and tx.broker.goes_direct(live, endpoint.send_sequence)


def joined(live: Live | None, run: list[Fragment]) -> bytes:
    """The body of the message that the run ends with; its first parts may be stored already."""
    last = run[-1]
    here = [item.body for item in run if item.sequence == last.sequence]
    stored = live.parts if live is not None and len(here) < last.fragments else ()
    return b"".join((*stored, *here))


def _completes(item: Fragment) -> bool:
    return not item.flags and item.fragment + 1 == item.fragments


def is_damaged(broker: Broker, live: Live | None, item: Fragment) -> bool:
    """Whether fragments of that message are stored, and are not the ones that came: its group will
    be parked, and nobody is told that the body is unfit (REL-6)."""
    if live is None or not broker.damaged_parts:
        return False
    endpoint = live.endpoint
    return item.sequence == endpoint.receive_sequence and endpoint.key in broker.damaged_parts


class Arriving:
    """Lets runs of arrivals through as far as their bodies are known to be fit, or need no look.

    What comes before a large body is stored first, and the dialog waits while that is looked into;
    other dialogs do not."""

    __slots__ = ("_is_here", "_resume")

    def __init__(
        self, *, is_here: Callable[[ArrivingDialog], bool], resume: Callable[[ArrivingDialog], None]
    ) -> None:
        self._is_here = is_here
        self._resume = resume

    def ready(self, one: ArrivingDialog, limit: int) -> int:
        """How many fragments of the run may be stored now; 0 = `resume` is called later."""
        arrivals, inspection = one.arrivals, one.broker.inspection
        assert arrivals is not None
        if one.inspecting is not None:
            sequence, body = one.inspecting
            first = arrivals.run[0]
            kind = one.broker.message_types.get(first.message_type)
            if first.sequence == sequence and kind is not None and inspection.knows(kind, body):
                return 1
            if one.inspecting_now:
                return 0
            self.forget(one)
        for at, item in enumerate(arrivals.run[:limit]):
            if not _completes(item) or is_damaged(one.broker, one.live, item):
                continue
            kind = one.broker.message_types.get(item.message_type)
            if kind is None or not kind.validation.is_structured:
                continue
            if item.fragments == 1 and not inspection.concerns(kind, len(item.body)):
                continue
            if at:
                return at
            body = item.body if item.fragments == 1 else joined(one.live, [item])
            if inspection.concerns(kind, len(body)):
                one.inspecting, one.inspecting_now = (item.sequence, body), True
                inspection.look(kind, body, partial(self._looked, one))
                return 0
        return limit

    def forget(self, one: ArrivingDialog) -> None:
        """What was looked into is stored, or not wanted any more."""
        if one.inspecting is not None:
            one.broker.inspection.forget(one.inspecting[1])
            one.inspecting = None

    def _looked(self, one: ArrivingDialog) -> None:
        one.inspecting_now = False
        if self._is_here(one) and one.arrivals is not None and one.arrivals.run:
            self._resume(one)
        else:
            self.forget(one)
