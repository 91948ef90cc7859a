"""Arrival routes: one decision for a conversation, whoever asks (RTE-26, FWD-6)."""

from datetime import timedelta
from typing import Any

import pytest

from brokerd.delivery.peers.arrival_routes import ArrivalRouteOptions, ArrivalRoutes
from brokerd.protocol.frames import AckOnly, Hop
from brokerd.routing.choice import Choice
from brokerd.routing.classify import ArrivalKey, Arriving, Dropped, Local, Remote
from brokerd.routing.reasons import DropReason, Reason
from tests.unit.delivery.passing import ack, fragment

X: Any = Remote("tcp://x:4022", "r", 2, Choice("r", "tcp://x:4022"), ambiguous=True, hops_used=1)
Y: Any = Remote("tcp://y:4022", "s", 2, Choice("s", "tcp://y:4022"), ambiguous=True, hops_used=3)
HERE = Local(b"b" * 16, "r", 2)  # type: ignore[arg-type]


class ManualClock:
    """Stands until the test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Table:
    """Answers in turn, and keeps a choice that was made."""

    def __init__(self, *answers: Arriving) -> None:
        self.answers = list(answers)
        self.asked: list[ArrivalKey] = []

    def classify(self, key: ArrivalKey, previous: Choice | None) -> Arriving:
        self.asked.append(key)
        for one in self.answers:
            if previous is not None and getattr(one, "choice", None) == previous:
                return one
        return self.answers[(len(self.asked) - 1) % len(self.answers)]


def arrival_routes(
    table: Table, *, here: bool = False, most: int = 100, clock: ManualClock | None = None
) -> ArrivalRoutes:
    return ArrivalRoutes(
        table.classify,
        is_here=lambda _item: here,
        clock=clock or ManualClock(),  # type: ignore[arg-type]  # all that is read
        options=ArrivalRouteOptions(timedelta(minutes=5), most),
    )


@pytest.mark.rule("RTE-26")
def test_a_conversation_keeps_its_route() -> None:
    table = Table(X, Y)
    found = arrival_routes(table)
    assert found.for_item(fragment(1)).address == X.address
    assert found.for_item(fragment(2)).address == X.address
    assert found.arriving(fragment(3)) == X
    assert len(table.asked) == 1
    assert found.for_item(fragment(1, conversation=b"d" * 16)).address == Y.address


@pytest.mark.rule("RTE-26", "RTE-6")
def test_a_conversation_that_is_bound_or_routed_anew_keeps_its_choice() -> None:
    table = Table(X, Y)
    found = arrival_routes(table)
    assert found.for_item(fragment(1)).address == X.address
    assert found.for_item(fragment(2, hop=Hop(b"t" * 16, 10, 60_000, 0))).address == X.address
    found.clear()
    assert found.for_item(fragment(3)).address == X.address
    assert [one.broker_id for one in table.asked] == [None, b"t" * 16, None]


@pytest.mark.rule("FWD-6", "RTE-40", "RTE-43")
@pytest.mark.parametrize(("hops", "passes"), [(0, False), (2, False), (3, True)])
def test_an_item_needs_as_many_hops_as_its_route_has(hops: int, passes: bool) -> None:
    found = arrival_routes(Table(Y))
    item = fragment(1, hop=Hop(b"", hops, 60_000, 0))
    assert found.arriving(item) == (Y if passes else Dropped(DropReason.HOPS_EXHAUSTED))


@pytest.mark.rule("RTE-12", "RTE-51", "RTE-54")
@pytest.mark.parametrize(
    "reason",
    [
        Reason.BCN_PENDING,
        Reason.BCN_FAILED,
        Reason.MIRROR_INITIALISING,
        Reason.MIRROR_ERROR,
    ],
)
def test_what_lacks_an_answer_asks_for_it_each_time(reason: Reason) -> None:
    """Else nobody would be asked again after an answer that did not come."""
    table = Table(Dropped(reason))
    found = arrival_routes(table)
    for number in range(3):
        assert found.arriving(fragment(number)) == Dropped(reason)
    assert len(table.asked) == 3


def test_what_is_for_here_leaves_by_no_address() -> None:
    assert arrival_routes(Table(HERE)).for_item(fragment(1)).address is None
    assert arrival_routes(Table(Dropped(Reason.NO_ROUTE))).for_item(ack()).address is None


@pytest.mark.rule("RTE-32")
def test_a_dialog_that_has_its_end_here_stays_here() -> None:
    table = Table(X)
    found = arrival_routes(table, here=True)
    assert [found.for_item(fragment(n)).address for n in range(2)] == [None, None]
    assert len(table.asked) == 2  # it may be gone when the next one comes


@pytest.mark.rule("XMT-10")
def test_the_oldest_are_forgotten() -> None:
    table = Table(X)
    found = arrival_routes(table, most=2)
    ids = [bytes([n]) * 16 for n in (1, 2, 3)]
    for one in (*ids, *ids):
        assert isinstance(found.for_item(ack(conversation=one)), object)
    assert isinstance(ack(), AckOnly)
    assert len(table.asked) == 6


@pytest.mark.rule("XMT-10", "PER-12")
def test_what_nobody_asks_for_is_forgotten_after_its_time() -> None:
    table, clock = Table(X), ManualClock()
    found = arrival_routes(table, clock=clock)
    idle, busy = b"i" * 16, b"b" * 16
    found.for_item(ack(conversation=idle))
    for _ in range(31):
        found.for_item(ack(conversation=busy))
        clock.now += 10
        found.trim()
    assert len(table.asked) == 2
    found.for_item(ack(conversation=busy))
    assert len(table.asked) == 2
    found.for_item(ack(conversation=idle))
    assert len(table.asked) == 3


@pytest.mark.rule("XMT-10")
def test_no_more_is_noted_than_is_remembered() -> None:
    table = Table(X)
    found = arrival_routes(table, most=3)
    for number in range(20):
        found.for_item(ack(conversation=bytes([number]) * 16))
    assert len(found._used) == len(found._routes) == len(found._choices) == 3
    found.clear()
    assert found._used.keys() == found._choices.keys()
