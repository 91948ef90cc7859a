"""The reason keys against the table of the specification."""

import re
from pathlib import Path

import pytest

from brokerd.routing.reasons import MEANING, DropReason, Reason, status_text

SPEC = Path(__file__).parents[3] / "docs" / "spec" / "network.md"


@pytest.mark.rule("XMT-19")
def test_the_keys_are_those_of_the_table() -> None:
    table = SPEC.read_text().split("| key | SSB | meaning |", 1)[1].split("\n\n", 1)[0]
    first_cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    keys = [key for cell in first_cells for key in re.findall(r"`(\w+)`", cell)]
    assert len(keys) > 30
    assert {str(reason) for reason in Reason} == set(keys)


@pytest.mark.rule("XMT-19")
def test_a_status_is_the_meaning_followed_by_the_detail() -> None:
    assert set(MEANING) == {*Reason, *DropReason}
    assert status_text(Reason.NO_ROUTE) == "nothing matches the service name and broker"
    told = status_text(Reason.CONNECT_FAILED, "tcp://x:4022, refused")
    assert told == "the TCP connection failed: tcp://x:4022, refused"
    assert status_text("something_else", "x") == "something_else: x"
