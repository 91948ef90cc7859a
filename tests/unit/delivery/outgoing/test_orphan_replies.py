"""Answers without an endpoint: how many wait, whatever a peer provokes."""

from typing import Any

import pytest

from brokerd.delivery.outgoing import orphan_replies
from brokerd.delivery.outgoing.orphan_replies import OrphanReplies
from brokerd.ids import BrokerId
from brokerd.protocol.frames import Hop
from brokerd.routing.classify import Remote
from tests.unit.delivery.passing import fragment

BROKER: Any = type("B", (), {"broker_id": BrokerId(b"b" * 16), "name": "b"})()


class Router:
    """Sends each answer to the address that is its service's name, as TRANSPORT does (RTE-62)."""

    def for_orphan_reply(self, _broker: Any, service: str, *_key: Any, **_more: Any) -> Remote:
        return Remote(service, "transport", 2, hops_used=1)


class Plain:
    """Dialogs without security."""

    def seal_answer(self, item: Any, _keys: object) -> Any:
        return item


class Log:
    is_on = False


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> OrphanReplies:
    monkeypatch.setattr(orphan_replies, "MOST_WAITING", 100)
    hop = Hop(b"", 10, 60_000, 0)
    return OrphanReplies(
        router=Router(),  # type: ignore[arg-type]
        security=Plain(),  # type: ignore[arg-type]
        hop=lambda _to: hop,
        ack_log=Log(),  # type: ignore[arg-type]
    )


def provoke(replies: OrphanReplies, address: str, number: int) -> None:
    item = fragment(number, from_service=address)
    replies.refuse(BROKER, item, 8408, "no such service")


def waiting(replies: OrphanReplies, address: str) -> int:
    return len(replies.dequeue(address, 1_000_000))


@pytest.mark.rule("REL-25", "SX-12")
def test_a_peer_that_names_ever_new_addresses_takes_bounded_memory(replies: OrphanReplies) -> None:
    for number in range(1000):
        provoke(replies, f"tcp://x:{number}", number)
    assert sum(waiting(replies, f"tcp://x:{number}") for number in range(1000)) == 100
    assert waiting(replies, "tcp://x:999") == 0  # taken above: nothing is kept of an address then
    assert replies._waiting == {}


@pytest.mark.rule("REL-25", "REL-23")
def test_a_destination_that_is_flooded_loses_its_own_answers(replies: OrphanReplies) -> None:
    for number in range(10):
        provoke(replies, "tcp://quiet:1", number)
    for number in range(1000):
        provoke(replies, "tcp://flooded:1", number)
    assert waiting(replies, "tcp://quiet:1") == 10
    assert waiting(replies, "tcp://flooded:1") == 90
