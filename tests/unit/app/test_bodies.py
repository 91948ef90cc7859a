"""Bodies: what is written can be read, as the type that was named and no other (SDK-2)."""

import enum
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest

from brokerd.app.bodies import Kind, decode, encode, is_a, members, type_name
from brokerd.client.messages import ABSENT
from brokerd.errors import InvalidArgument

pytestmark = pytest.mark.rule("SDK-2")


@dataclass
class Line:
    sku: str
    qty: int = 1


class Order(msgspec.Struct):
    lines: list[Line]
    note: str | None = None


class Model:
    """What pydantic offers, without pydantic: it is found by these methods."""

    def __init__(self, sku: str) -> None:
        self.sku = sku

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.sku == self.sku

    __hash__ = None  # type: ignore[assignment]

    def model_dump_json(self) -> str:
        return msgspec.json.encode({"sku": self.sku}).decode()

    @classmethod
    def model_validate_json(cls, data: bytes) -> "Model":
        return cls(**msgspec.json.decode(data))


class Point(TypedDict):
    x: int


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "kind", "body"),
    [
        (Line("A1", 2), Line, b'{"sku":"A1","qty":2}'),
        (
            Order([Line("A1")]),
            Order,
            b'{"lines":[{"sku":"A1","qty":1}],"note":null}',
        ),
        (Model("A1"), Model, b'{"sku":"A1"}'),
        ({"x": 1}, Point, b'{"x":1}'),
        ([1, 2], list[int], b"[1,2]"),
        (Colour.RED, Colour, b'"red"'),
        ("\u00e4", str, '"\u00e4"'.encode()),
        (b"\x00raw", bytes, b"\x00raw"),
        (bytearray(b"raw"), bytes, b"raw"),
    ],
)
def test_written_and_read(value: object, kind: Kind, body: bytes) -> None:
    assert encode(value) == body
    assert decode(body, kind) == value


def test_none_is_no_body() -> None:
    assert encode(None) is ABSENT
    assert decode(None, None) is None
    assert decode(None, bytes) == b""
    with pytest.raises(ValueError, match="2 bytes came"):
        decode(b"no", None)


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (b'{"sku": 1}', Line, r"\$\.sku"),
        (b"{", Line, "truncated"),
        (b"", Line, "truncated"),
        (None, Order, "truncated"),
        (b'{"lines": [{"qty": 1}]}', Order, "sku"),
    ],
)
def test_what_cannot_be_read_says_where(body: bytes | None, kind: Kind, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode(body, kind)


def test_what_is_no_body() -> None:
    with pytest.raises(InvalidArgument, match="object cannot be a body"):
        encode(object())


def test_the_alternatives_of_a_union() -> None:
    assert members(Line | Order) == (Line, Order)
    assert members(Line | None) == (Line, type(None))
    assert members(Line) == (Line,)


def test_the_name_of_a_type_is_that_of_its_class() -> None:
    assert type_name(Line) == "Line"
    for nameless in (bytes, list[int], None, Line | Order):
        with pytest.raises(InvalidArgument, match="gives no name"):
            type_name(nameless)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (Line("A1"), Line, True),
        (Line("A1"), Order, False),
        (None, None, True),
        (b"", None, False),
        ([1], list[int], True),
        ({}, Point, False),
        (1, Any, True),
        (1, object, True),
    ],
)
def test_which_type_a_value_is_sent_as(value: object, kind: Kind, expected: bool) -> None:
    assert is_a(value, kind) is expected
