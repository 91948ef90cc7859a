"""Ids may be shortened, wherever a command takes one; tables show them short on a terminal."""

import json

import pytest

from brokerd.cli.main import main
from brokerd.cli.output import fitted, painted
from brokerd.ids import Span, is_beginning, parse, parse_span
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]
ONE = "01234567-89ab-cdef-0123-456789abcdef"
OTHER = "01234568-89ab-cdef-0123-456789abcdef"


@pytest.mark.rule("MON-76")
def test_the_first_digits_stand_for_all_ids_that_begin_so() -> None:
    span = parse_span("0123-4")
    assert span == Span(bytes.fromhex("01234" + "0" * 27), bytes.fromhex("01234" + "f" * 27))
    assert span.low <= parse(ONE) <= span.high
    assert parse_span(ONE) == Span(parse(ONE), parse(ONE))
    assert [is_beginning(text) for text in ("0123", "ABCD", "012", "01g3", "", ONE + "0")] == [
        *(True, True, False, False, False, False)
    ]
    with pytest.raises(ValueError, match="is not the beginning of an id"):
        parse_span("xyz")


@pytest.mark.rule("MON-76")
def test_a_command_finds_the_one_id_that_begins_so(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.views["conversation_endpoints"] = [{"conversation_handle": ONE}]
    assert main(["dialog", "end", "01234567-89", "--address", daemon.address]) == 0
    ((_, options),) = daemon.verbs("view")
    assert options["where"] == {"conversation_handle": "01234567-89*"}
    assert capsys.readouterr().out == f"ended {ONE}\n"
    assert daemon.committed


@pytest.mark.rule("MON-76")
def test_of_several_ids_none_is_taken(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.views["conversation_endpoints"] = [{"conversation_handle": one} for one in (ONE, OTHER)]
    at = ("--address", daemon.address)
    assert main(["dialog", "end", "0123", *at]) == 64
    told = capsys.readouterr().err
    assert f"2 ids begin with '0123': {ONE}, {OTHER}" in told
    daemon.views["conversation_endpoints"] = []
    assert main(["dialog", "end", "0123", *at]) == 67
    assert main(["dialog", "end", "012", *at]) == 64
    assert "the first 4 digits or more are enough" in capsys.readouterr().err
    assert daemon.committed == []


@pytest.mark.rule("MON-77")
def test_a_table_fits_a_terminal() -> None:
    ids = [[ONE, "3", "-", "0"], [OTHER, "4", "-", ""]]
    columns = ["handle", "count", "parked", "kept"]
    assert fitted(columns, ids, 80) == (
        columns,
        [["01234567", "3", "-", "0"], ["01234568", "4", "-", ""]],
        [],
    )
    assert fitted(columns, ids, 20)[0] == ["handle", "count"]
    assert fitted(columns, ids, 20)[2] == ["parked", "kept"]
    alike = [[f"01234567-89ab-cdef-0123-45678900000{n}"] for n in range(2)]
    assert fitted(["id"], alike, 80)[1] == alike
    assert fitted(["a"], [], 80) == (["a"], [], [])


@pytest.mark.rule("MON-77")
def test_without_a_terminal_nothing_has_a_colour(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.status = {"now": 0, "queues": [{"name": "q", "status": "off"}]}
    assert painted("x", "red") == "x"
    assert main(["status", "--address", daemon.address]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["status", "--json", "--address", daemon.address]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == ["queue q is off, 0 messages in it"]
