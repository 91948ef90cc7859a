"""`brokerd endpoint`, `destination` and `connection`: what they ask for, and what they print."""

import json

import pytest

from brokerd.cli.main import main
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]


def run(daemon: SmallDaemon, *words: str) -> int:
    return main([*words, "--address", daemon.address])


def endpoint(**fields: object) -> dict[str, object]:
    row: dict[str, object] = {
        "name": "broker_endpoint",
        "state": "STARTED",
        "port": 4022,
        "listener_address": ["TCP://127.0.0.1:4022"],
        "is_listening": True,
        "listen_error": "",
    }
    return row | fields


@pytest.mark.rule("END-4", "CLP-96")
@pytest.mark.parametrize(
    ("word", "state"), [("start", "started"), ("stop", "stopped"), ("disable", "disabled")]
)
def test_the_endpoint_is_switched(
    daemon: SmallDaemon, capsys: Capture, word: str, state: str
) -> None:
    daemon.answers["alter_endpoint"] = endpoint(state=state.upper(), is_listening=False)
    assert run(daemon, "endpoint", word) == 0
    assert daemon.verbs("alter_endpoint") == [[{"state": state}]]
    said = capsys.readouterr().out
    assert said.startswith(f"broker endpoint {state.upper()}\n")
    assert ("wait in their stores" in said) == (state != "started")


@pytest.mark.rule("END-6", "CLP-96")
def test_what_is_altered_is_said_as_in_a_file(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["alter_endpoint"] = endpoint(listen_error="in use")
    words = ["listen=127.0.0.1,::1", "port=4032", "forwarding=true", "drain=2s"]
    assert run(daemon, "endpoint", "alter", *words) == 0
    said = {"listen": ["127.0.0.1", "::1"], "port": 4032, "forwarding": True, "drain": "2s"}
    assert daemon.verbs("alter_endpoint") == [[said]]
    told = capsys.readouterr().out
    assert "STARTED at TCP://127.0.0.1:4022" in told
    assert "in use" in told
    assert run(daemon, "endpoint", "alter") == 64
    assert "port=4032" in capsys.readouterr().err


@pytest.mark.rule("MON-5")
def test_the_endpoint_is_shown_or_said_not_to_be(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.views["endpoint"] = [endpoint()]
    assert run(daemon, "endpoint", "show", "--json") == 0
    assert json.loads(capsys.readouterr().out) == endpoint()
    assert run(daemon, "endpoint", "show") == 0
    assert "listener_address" in capsys.readouterr().out
    daemon.views["endpoint"] = []
    assert run(daemon, "endpoint", "show") == 67
    assert "no broker endpoint" in capsys.readouterr().err


@pytest.mark.rule("NBT-8", "CLP-97")
def test_one_destination_is_tried_or_all(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["retry_destination"] = {"destinations": 1}
    assert run(daemon, "destination", "retry", "TCP://east:4022") == 0
    assert "1 destination tried" in capsys.readouterr().out
    daemon.answers["retry_destination"] = {"destinations": 3}
    assert run(daemon, "destination", "retry", "all", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"destinations": 3}
    assert daemon.verbs("retry_destination") == [["TCP://east:4022"], [None]]


@pytest.mark.rule("MON-8", "MON-1")
def test_destinations_and_connections_are_listed(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.views["destinations"] = [
        {
            "address": "tcp://east:4022",
            "state": "suppressed",
            "suppressed_until": None,
            "pending_messages": 7,
            "dialogs": 2,
            "consecutive_failures": 3,
            "status_key": "connect_failed",
            "status_since": None,
            "last_error": "connect_failed: refused",
        }
    ]
    assert run(daemon, "destination", "ls", "--state", "suppressed") == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split()[:2] == ["tcp://east:4022", "suppressed"]
    assert row.endswith("connect_failed: refused")
    assert daemon.verbs("view")[-1][1]["where"] == {"state": ["suppressed"]}
    daemon.views["connections"] = []
    assert run(daemon, "connection", "ls", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"rows": [], "next": None}
