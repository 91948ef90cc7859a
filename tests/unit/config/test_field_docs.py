"""Docstrings of fields, as the source has them."""

import enum

import msgspec

from brokerd.config.field_docs import field_docs


class Some(msgspec.Struct):
    """It has fields."""

    plain: int
    told: str = ""
    """What it is,
    on two lines."""

    def method(self) -> None:
        """Not a field."""

    last: int = 0


class Kind(enum.Enum):
    """It has members."""

    ONE = 1
    """The first."""
    TWO = 2


def test_a_field_has_the_text_below_it_as_one_line() -> None:
    assert field_docs(Some) == {"plain": "", "told": "What it is, on two lines.", "last": ""}


def test_members_of_an_enum_have_theirs() -> None:
    assert field_docs(Kind) == {"ONE": "The first.", "TWO": ""}
