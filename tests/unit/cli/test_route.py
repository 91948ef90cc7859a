"""`brokerd route explain` and `test`: what they ask, print and end with."""

import pytest

from brokerd.cli.main import main
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]
FOUND = {
    "service": "far",
    "broker_id": None,
    "outcome": "remote",
    "where": "tcp://a:1",
    "reason": "",
    "route": "r",
    "hops_used": 0,
    "steps": [
        {"table": "own", "step": "2", "finding": "two of them", "routes": ["r", "s"]},
        {"table": "instance", "step": "C", "finding": "an address", "routes": []},
    ],
}


def run(daemon: SmallDaemon, *words: str) -> int:
    return main(["route", *words, "--address", daemon.address])


@pytest.mark.rule("CLP-98")
def test_every_step_is_printed_under_its_table(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["explain_route"] = FOUND
    assert run(daemon, "explain", "far", "--arriving", "--reply") == 0
    assert daemon.verbs("explain_route") == [
        ["far", {"handle": None, "broker_id": None, "arriving": True, "reply": True}]
    ]
    assert capsys.readouterr().out.splitlines() == [
        "routes of the broker:",
        "         2  two of them (r, s)",
        "routes of the instance:",
        "         C  an address",
        "'far' goes to tcp://a:1, by route 'r'",
    ]


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        ({"outcome": "local", "where": "main"}, 0, "'far' goes to broker 'main' here, by route"),
        ({"outcome": "delayed", "reason": "no_route"}, 1, "'far' waits: no_route: nothing match"),
        (
            {"outcome": "delayed", "reason": "no_route", "attempts": 3, "next_attempt_at": 10**15},
            1,
            "'far' waits: no_route: nothing matches the service name and broker; tried 3 times, "
            "next 2001-09-09",
        ),
        (
            {"outcome": "refused", "where": "b3", "reason": "service_not_in_broker"},
            1,
            "'far' is refused by broker 'b3', by route 'r', which has no such service",
        ),
        ({"outcome": "dropped", "reason": "over"}, 1, "'far' is dropped: over: over"),
    ],
)
def test_the_status_says_whether_it_goes_anywhere(
    daemon: SmallDaemon, capsys: Capture, found: dict[str, object], status: int, said: str
) -> None:
    daemon.answers["explain_route"] = FOUND | found
    assert run(daemon, "test", "far") == status
    assert capsys.readouterr().out.startswith(said)


def test_a_service_or_a_dialog_has_to_be_named(daemon: SmallDaemon, capsys: Capture) -> None:
    assert run(daemon, "test") == 64
    assert "--handle" in capsys.readouterr().err


def test_routes_are_added_and_removed_in_short_words_as_well(daemon: SmallDaemon) -> None:
    assert run(daemon, "add", "r", "service=far", "address=TCP://a:1") == 0
    assert run(daemon, "rm", "r") == 0
    assert [verb for verb, _ in daemon.asked] == ["create", "drop"]


@pytest.mark.rule("RTE-57", "RTE-65")
def test_the_list_says_when_a_route_expires(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["objects"] = [{"name": "r", "address": "TCP://a:1"}, {"name": "s"}]
    daemon.answers["view"] = {
        "rows": [
            {"name": "r", "lifetime": 1_000_000, "current_principal": "tcp://p:1"},
            {"name": "s", "lifetime": None, "current_principal": None},
        ],
        "next": None,
    }
    assert run(daemon, "ls") == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[-2:] for line in told if line[:1] in (["r"], ["s"])] == [
        ["tcp://p:1", "1970-01-01T00:00:01.000000Z"],
        ["-", "-"],
    ]
    assert run(daemon, "ls", "--json") == 0
    assert '"expires_at": "1970-01-01T00:00:01.000000Z"' in capsys.readouterr().out
