"""What subscribers are told: one JSON object with the same first fields."""

import orjson
import pytest

from brokerd.clock import Instant
from brokerd.events.payload import make_event, owed_again
from brokerd.ids import BrokerId, show

AT = Instant(1_700_000_000_000_000)
ID = BrokerId(b"b" * 16)


@pytest.mark.rule("ACT-38", "EVT-3")
def test_common_fields_come_first_then_those_of_the_event() -> None:
    made = make_event(
        "QUEUE_ACTIVATION",
        instance="east",
        broker="main",
        broker_id=ID,
        queue="shop_q",
        at=AT,
        facts={"ready_messages": 3, "oldest_ready_at": None, "exc_info": ValueError("secret")},
    )
    assert list(orjson.loads(made.body).items()) == [
        ("event", "QUEUE_ACTIVATION"),
        ("posted_at", "2023-11-14T22:13:20.000000Z"),
        ("instance", "east"),
        ("broker", "main"),
        ("broker_id", show(ID)),
        ("queue", "shop_q"),
        ("ready_messages", 3),
        ("oldest_ready_at", None),
    ]
    assert (made.name, made.queue, made.subject) == ("QUEUE_ACTIVATION", "shop_q", "main/shop_q")


def test_what_json_does_not_know_is_written_as_text() -> None:
    made = make_event(
        "X", instance="i", broker="b", broker_id=None, queue=None, at=AT,
        facts={"id": b"c" * 16, "raw": b"\1", "many": {"b", "a"}, "other": ValueError("v")},
    )  # fmt: skip
    told = orjson.loads(made.body)
    assert (told["id"], told["raw"]) == (show(b"c" * 16), "01")
    assert (told["many"], told["other"]) == (["a", "b"], "v")
    assert "queue" not in told


@pytest.mark.rule("PBT-15")
def test_an_event_is_known_again_by_its_message() -> None:
    made = make_event(
        "DROP_QUEUE", instance="i", broker="b", broker_id=None, queue="q", at=AT, facts={}
    )
    again = owed_again(7, made.body)
    assert again is not None
    assert again == (7, "DROP_QUEUE", made.subject, made.body)
    assert owed_again(1, b"no json") is None
    assert owed_again(1, b"[]") is None
