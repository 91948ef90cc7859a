"""Scripts for the tests of `brokerd.tsql`, and short ways to read them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from brokerd.tsql import tree
from brokerd.tsql.assessment import Entry
from brokerd.tsql.parser import parse
from brokerd.tsql.translation import Translation, translate

DATA = Path(__file__).parents[2] / "data" / "tsql"
S = TypeVar("S", bound=tree.Statement)


def statements(text: str) -> list[tree.Statement]:
    return list(parse("a.sql", text).statements)


def one(text: str, kind: type[S]) -> S:
    """Return the only statement of a text, which is of this kind."""
    (found,) = [each for each in statements(text) if not isinstance(each, tree.Read)]
    assert isinstance(found, kind), found
    return found


def translated(*texts: str) -> Translation:
    return translate([(f"{number}.sql", text) for number, text in enumerate(texts, start=1)])


def entries(*texts: str) -> list[Entry]:
    return translated(*texts).assessment.entries


def shop() -> Translation:
    names = ("shop.sql", "procedures.sql")
    return translate([(name, (DATA / name).read_text()) for name in names])


def calls(work: Callable[[], object]) -> int:
    """Return how many functions some work calls: a measure that no other process disturbs."""
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
