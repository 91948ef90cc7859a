"""`brokerd event`: what it asks of a daemon, and what it prints."""

import json

import pytest

from brokerd.cli.main import main
from brokerd.process.exit_statuses import USAGE
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]
ROW = {
    "name": "watch",
    "scope": "queue",
    "queue": "shop_q",
    "events": ["BROKER_QUEUE_DISABLED", "QUEUE_STATUS_CHANGED"],
    "service_name": "ops",
    "status": "backing_off",
    "failures": 2,
    "last_error": "-8408: not accepted",
    "undelivered": 3,
    "last_sent_at": 1_700_000_000_000_000,
}


def run(daemon: SmallDaemon, *words: str) -> int:
    return main(["event", *words, "--address", daemon.address])


@pytest.mark.rule("EVT-1")
def test_create_asks_for_what_was_said_and_nothing_else(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.changes = [{"action": "create", "sentence": "event notification watch is created"}]
    assert run(daemon, "create", "watch", "TRC_BROKER", "DROP_QUEUE", "--service", "ops") == 0
    assert capsys.readouterr().out == "event notification watch is created\n"
    words = ["one", "QUEUE_ACTIVATION", "--service", "ops", "--queue", "q", "--fan-in", "--json"]
    assert run(daemon, "create", *words, "--target-broker", "GUID") == 0
    assert json.loads(capsys.readouterr().out) == {"rows": daemon.changes, "next": None}
    assert (
        run(daemon, "create", "far", "DROP_QUEUE", "--service", "ops", "--scope", "instance") == 0
    )
    plain, queue, instance = (args for _kind, args in daemon.verbs("create"))
    assert plain == {"name": "watch", "events": ["TRC_BROKER", "DROP_QUEUE"], "service": "ops"}
    assert queue == {
        "name": "one",
        "events": ["QUEUE_ACTIVATION"],
        "service": "ops",
        "queue": "q",
        "broker": "GUID",
        "fan_in": "on",
    }
    assert instance["scope"] == "instance"
    assert {kind for kind, _ in daemon.verbs("create")} == {"event_notification"}


def test_create_needs_an_event_and_a_service(daemon: SmallDaemon) -> None:
    assert run(daemon, "create", "watch", "--service", "ops") == USAGE
    assert run(daemon, "create", "watch", "DROP_QUEUE") == USAGE
    assert daemon.verbs("create") == []


def test_drop_names_it(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.changes = [{"action": "drop", "sentence": "event notification watch is dropped"}]
    assert run(daemon, "drop", "watch") == 0
    assert capsys.readouterr().out == "event notification watch is dropped\n"
    assert daemon.verbs("drop")[0][:2] == ["event_notification", "watch"]


@pytest.mark.rule("VIEW-11")
def test_ls_shows_who_is_told_of_what_and_whether_it_arrives(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    fine = {**ROW, "queue": None, "scope": "broker", "failures": 0, "status": "open"}
    fine["last_error"] = ""
    daemon.views["event_notifications"] = [ROW, {**fine, "last_sent_at": None}]
    assert run(daemon, "ls") == 0
    lines = capsys.readouterr().out.splitlines()
    told = "watch  queue   shop_q  BROKER_QUEUE_DISABLED, QUEUE_STATUS_CHANGED  ops"
    assert told in lines[2]
    assert "backing_off  2         -8408: not accepted  3" in lines[2]
    assert "-8408" not in lines[3]
    assert run(daemon, "ls", "--json", "--service", "ops") == 0
    assert json.loads(capsys.readouterr().out)["rows"][0] == {
        **ROW,
        "last_sent_at": "2023-11-14T22:13:20.000000Z",
    }
    assert daemon.verbs("view")[-1][1]["where"] == {"service_name": "ops"}
    daemon.views["event_notifications"] = [ROW]
    assert run(daemon, "show", "watch") == 0
    assert "2023-11-14T22:13:20" in capsys.readouterr().out
