"""Contracts made of Python types (SDK-3)."""

from dataclasses import dataclass

import pytest

from brokerd.app.contract import END_OF_STREAM, Contract, is_end_of_stream
from brokerd.client.messages import ABSENT, Message
from brokerd.errors import InvalidArgument, NotInContract, UnexpectedMessage
from brokerd.objects.declarations import parse

pytestmark = pytest.mark.rule("SDK-3")


@dataclass
class Order:
    sku: str


@dataclass
class Packed:
    sku: str


@dataclass
class Note:
    text: str


orders = Contract(
    "orders/v1", initiator=[Order], target=[Packed], any={"Memo": Note, "Nudge": None}
)


def message(message_type: str, body: bytes | None = None) -> Message:
    ids = (b"h" * 16, b"c" * 16, b"g" * 16)
    return Message(*ids, 0, message_type, body, "s", "orders/v1", 1, 5, 0, 0, b"m" * 16, "N")


def test_it_says_what_a_file_of_objects_would_say() -> None:
    declared = parse(orders.objects())
    assert declared.contracts["orders/v1"].types == {
        "Order": "initiator",
        "Packed": "target",
        "Memo": "any",
        "Nudge": "any",
        END_OF_STREAM: "initiator",
    }
    empty = {name for name, one in declared.message_types.items() if one.validation == "empty"}
    assert empty == {"Nudge", END_OF_STREAM}


def test_what_both_sides_send_is_for_any() -> None:
    both = Contract("talk", initiator=[Note], target=[Note])
    assert both.types["Note"] == "any"


def test_a_value_becomes_its_message_type() -> None:
    assert orders.write(Order("A1")) == ("Order", b'{"sku":"A1"}')
    assert orders.write(Note("x"))[0] == "Memo"
    assert orders.write(None) == ("Nudge", ABSENT)
    with pytest.raises(NotInContract, match="no message type for int") as caught:
        orders.write(1)
    assert "Order" in caught.value.hint


def test_a_message_becomes_its_value() -> None:
    assert orders.read(message("Packed", b'{"sku":"A1"}')) == Packed("A1")
    with pytest.raises(UnexpectedMessage, match="no message type Other"):
        orders.read(message("Other"))
    with pytest.raises(ValueError, match="sku"):
        orders.read(message("Packed", b"{}"))


def test_what_the_initiator_may_send() -> None:
    assert orders.starts(Order("A1"))
    assert orders.starts(Note("x"))
    assert not orders.starts(Packed("A1"))


def test_the_default_contract_takes_what_it_is_given() -> None:
    default = Contract.default(Order)
    assert default.write(Order("A1")) == ("DEFAULT", b'{"sku":"A1"}')
    assert default.objects() == {"message_type": [], "contract": []}
    assert not default.streams
    assert orders.streams


def test_the_end_of_a_stream_is_known_by_its_type() -> None:
    assert is_end_of_stream(message(END_OF_STREAM))
    assert not is_end_of_stream(message("DEFAULT"))


@pytest.mark.parametrize(
    ("sides", "why"),
    [
        ({"target": [Packed]}, "could send nothing"),
        ({}, "could send nothing"),
        ({"initiator": {"A": Order}, "target": {"A": Packed}}, "stands for two types"),
        ({"initiator": [bytes]}, "gives no name"),
    ],
)
def test_what_cannot_be_a_contract(sides: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        Contract("bad", **sides)  # type: ignore[arg-type]  # on purpose
