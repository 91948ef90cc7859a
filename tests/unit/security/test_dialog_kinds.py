"""The table of SEC-14, cell by cell, as the specification has it."""

import re
from itertools import product
from pathlib import Path

import pytest

from brokerd.security.bindings import Binding
from brokerd.security.dialog_kinds import Kind, decide

SPEC = Path(__file__).parents[3] / "docs/spec/network.md"
WORDS = {"fails": None, "none": Kind.NONE, "anonymous": Kind.ANONYMOUS, "full": Kind.FULL}
BINDINGS = [
    None,
    Binding("b", "//far", "peer:west", is_anonymous=True),
    Binding("b", "//far", "peer:west"),
]


def _cells() -> dict[tuple[bool, bool], list[Kind | None]]:
    """Return the rows of the specification's own table."""
    rows = re.findall(r"^\| (yes|no) \| (ON|OFF) \|(.*)\|$", SPEC.read_text("utf-8"), re.MULTILINE)
    return {
        (owner == "yes", encryption == "ON"): [WORDS[cell.strip()] for cell in cells.split("|")]
        for owner, encryption, cells in rows
    }


@pytest.mark.rule("SEC-14", "SEC-16", "SEC-19")
@pytest.mark.parametrize(
    ("owner", "encryption", "at"), list(product([True, False], [True, False], [0, 1, 2]))
)
def test_each_cell_is_that_of_the_specification(owner: bool, encryption: bool, at: int) -> None:
    wanted = _cells()[owner, encryption][at]
    assert decide(has_certificate=owner, encryption=encryption, binding=BINDINGS[at]) is wanted
