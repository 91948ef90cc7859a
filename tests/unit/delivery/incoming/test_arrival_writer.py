"""What becomes of arrivals whose dialog is gone, or may not begin."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.delivery.incoming import arrival_writer
from brokerd.delivery.incoming.arrival_writer import ArrivalWriter
from brokerd.delivery.incoming.buffer import Arrivals
from brokerd.protocol import dialog
from brokerd.protocol.transitions import State
from tests.unit.protocol.endpoints import NOW, endpoint, fragment


def something(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


class Answers:
    """Keeps what it is asked to say."""

    def __init__(self) -> None:
        self.acknowledged: list[object] = []
        self.refused: list[object] = []

    def acknowledge(self, _broker: object, item: object, **_way: object) -> None:
        self.acknowledged.append(item)

    def refuse(self, _broker: object, item: object, *_why: object, **_way: object) -> None:
        self.refused.append(item)


class Books:
    """Counts."""

    def __init__(self) -> None:
        self.stored = 0
        self.dropped: Counter[str] = Counter()

    def undeliverable(self, *_about: object, counted: str) -> None:
        self.dropped[counted] += 1

    def drop(self, items: Iterable[object], reason: str) -> int:
        many = len(list(items))
        self.dropped[reason] += many
        return many


class Rounds:
    """Nothing is durable here."""

    def for_broker(self, _broker: object) -> None:
        """None is open."""

    def finish_all(self, *, urgent: bool) -> None:
        """Nothing to hand over."""


class Gone:
    """A dialog endpoint that memory does not hold any more."""

    gone = True
    keys = None


def writer(
    answers: Any, *, books: Any = None, memory: Any = None, changesets: Any = None
) -> ArrivalWriter:
    nothing: Any = SimpleNamespace(known={}, release=lambda _one: None, read_more=lambda: None)
    none_open: Any = Rounds()
    return ArrivalWriter(
        dialogs=nothing,
        changesets=changesets or none_open,
        transmitter=nothing,
        answers=answers,
        counters=books,
        memory=memory or something(check=lambda: None),
        early=something(update=lambda _one: None),
        openings=something(stored=lambda *_about: None),
        clock=something(utc=lambda: 0),
        security=nothing,
        admission=something(admits=lambda *_about: True),
        batch=2,
        notices=nothing,
        retries=3,
        most_dialogs=0,
    )


@pytest.mark.rule("REL-4", "DLP-15", "CHK-8")
@pytest.mark.parametrize(("gone_at_join", "acknowledged"), [(True, ["last"]), (False, [])])
def test_an_end_that_is_not_durable_lets_nothing_before_it_be_acknowledged_whole(
    gone_at_join: bool, acknowledged: list[object]
) -> None:
    """An Error overtakes fragments whose commit is under way: when that is through, the endpoint is
    gone in memory, yet still in the store until the commit of the Error is through as well."""
    answers: Any = Answers()
    live: Any = Gone()
    one: Any = SimpleNamespace(
        arrivals=SimpleNamespace(stored=lambda _taken: None, run=[]), broker=None, neighbour=None
    )
    batches: Any = [(one, live, ["first", "last"], 2)]
    writer(answers).durable(batches, [live] if gone_at_join else [])
    assert answers.acknowledged == acknowledged


@pytest.mark.rule("NBT-15", "DSP-10", "DSP-13")
def test_what_waits_behind_a_refused_opening_is_dropped_in_the_books_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five parts of a message 0 that may not open a dialog; a batch takes two of them."""
    monkeypatch.setattr(arrival_writer, "refuse_opening", lambda *_about: (-8489, "it is over"))
    arrivals = Arrivals(0, 0)
    parts = [fragment(0, fragment=number, fragments=6, body=b"x") for number in range(5)]
    for part in parts:
        arrivals.append(part)
    arrivals.keep_early(fragment(1, body=b"y"), 0)
    answers, books = Answers(), Books()
    memory = SimpleNamespace(size=arrivals.size, check=lambda: None)
    broker = SimpleNamespace(services={}, is_full=False, broker_id=b"")
    one: Any = SimpleNamespace(
        key=0,
        keys=None,
        principal=None,
        live=None,
        arrivals=arrivals,
        broker=broker,
        inspected={},
        neighbour=None,
        failures=0,
    )

    async def run() -> None:
        made = writer(answers, books=books, memory=memory)
        made.schedule(one)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert answers.refused == [parts[0]]
    assert books.dropped == {"refused": 6}
    assert memory.size == 0
    assert arrivals.nothing_waits


class Stepping:
    """An open changeset that steps endpoints, and records nothing else."""

    def for_broker(self, _broker: object) -> "Stepping":
        """This one."""
        return self

    def step(self, live: Any, event: dialog.Event) -> dialog.Step:
        """The endpoint after the event."""
        outcome = dialog.step(live.endpoint, event, now=NOW)
        live.endpoint = outcome.endpoint
        return outcome


@pytest.mark.rule("DLP-36", "DSP-10")
def test_fragments_that_an_error_has_passed_are_all_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts of message 6 waited for their turn when the Error of the other side came."""
    run = [fragment(6, fragment=number, fragments=40, body=b"x") for number in (38, 39)]
    live: Any = something(
        endpoint=endpoint(initiator=False, state=State.ERROR, receive_sequence=11)
    )
    broker: Any = something(options=something(replay_guard=dialog.REPLAY_GUARD))
    books = Books()
    made = writer(None, books=books, changesets=Stepping())
    refused: list[object] = []
    monkeypatch.setattr(ArrivalWriter, "refuse", lambda *_about: refused.append(_about))
    assert made._receive(broker, live, run) == []
    assert books.dropped == {"over": 2}
    assert len(refused) == 1
