"""Dialogs behind the findings of a day, each with the commands to look at it. Pure.

Reads:  `Data`: dialogs that do not balance, the example of each failure, and groups held for long.
Never:  lists more than `SHOWN` dialogs of one kind, or one dialog twice among them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from spark_jobs.report.data import Data
from spark_jobs.report.groups import kept
from spark_jobs.report.status import pasted
from spark_jobs.report.words import counted, duration

SHOWN = 20

BOOKS = "books"
QUEUES = "queues"
FAILURES = "failures"
"""The kinds of dialogs; each is a section of the page and of its list of dialogs."""

TITLES = {
    BOOKS: "Do not balance",
    QUEUES: "Hold the group of a queue, or failed on it",
    FAILURES: "Failed",
}
_QUEUE_EVENTS = ("broker.parking", "broker.activation")


@dataclass(frozen=True, slots=True)
class Behind:
    """A dialog behind a finding."""

    conversation_id: str
    why: str
    where: str
    broker: str = ""
    """The broker of the instance; "" = not known."""

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that show the dialog, to be run where it is."""
        words = (self.conversation_id, *(("--broker", self.broker) if self.broker else ()))
        return tuple(pasted("brokerd", "dialog", verb, *words) for verb in ("show", "timeline"))


def behind(data: Data) -> Mapping[str, list[Behind]]:
    """Return the dialogs by kind; a kind without any is left out."""
    found = {
        BOOKS: _once(_books(data)),
        QUEUES: _once((*_held(data), *_failures(data, of_queues=True))),
        FAILURES: _once(_failures(data)),
    }
    return {kind: dialogs for kind, dialogs in found.items() if dialogs}


def _books(data: Data) -> Iterator[Behind]:
    for one in data.findings:
        where = f"{one.sender_at or '?'} → {one.receiver_at or '?'}"
        why = f"{one.finding}: {counted(one.messages, 'message')}"
        yield Behind(one.conversation_id, why, where)


def _held(data: Data) -> Iterator[Behind]:
    for one in kept(data):
        why = f"its group was held for {duration(one.held_us)} on queue {one.name}"
        yield Behind(one.conversation_id, why, one.instance, one.broker)


def _failures(data: Data, *, of_queues: bool = False) -> Iterator[Behind]:
    for one in sorted(data.failures, key=lambda failure: not failure.is_new):
        if not of_queues or one.event in _QUEUE_EVENTS:
            new = "new today: " if one.is_new else ""
            yield Behind(one.conversation_id, f"{new}{one.fingerprint}", one.instance, one.broker)


def _once(dialogs: Iterable[Behind]) -> list[Behind]:
    found: dict[str, Behind] = {}
    for one in dialogs:
        if one.conversation_id and len(found) < SHOWN:
            found.setdefault(one.conversation_id, one)
    return list(found.values())
