"""`brokerd audit`: which entries it shows, how far it looks back, and with which times."""

import json
from typing import Any

import pytest

from brokerd.cli.main import main
from brokerd.clock import SECOND
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]
NOON = 1_700_000_000 * SECOND


def entry(number: int, **fields: object) -> dict[str, Any]:
    usual: dict[str, object] = {
        "audit_id": number,
        "event_time": NOON + number * SECOND,
        "action": "granted",
        "actor": "client 0a0b0c0d (pid 7, alice)",
        "subject": "peer:west",
        "outcome": "success",
        "detail": '{"grant": "send on a to peer:west", "why": null}',
    }
    return usual | fields


def run(daemon: SmallDaemon, *words: str) -> int:
    return main(["audit", *words, "--address", daemon.address])


@pytest.fixture
def audited(daemon: SmallDaemon) -> SmallDaemon:
    """A daemon with three entries, the newest first."""
    daemon.views["audit"] = [
        entry(3),
        entry(2, action="login", actor="peer:west", subject="endpoint", outcome="refused"),
        entry(1, actor=None, subject="main"),
    ]
    return daemon


def numbers(capsys: Capture) -> list[int]:
    return [one["audit_id"] for one in json.loads(capsys.readouterr().out)["rows"]]


@pytest.mark.rule("SEC-87", "SX-15")
def test_entries_are_shown_with_times_that_anybody_can_read(
    audited: SmallDaemon, capsys: Capture
) -> None:
    assert run(audited) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [
        "2023-11-14T22:13:23.000000Z",
        "2023-11-14T22:13:22.000000Z",
        "2023-11-14T22:13:21.000000Z",
    ]
    assert lines[2].endswith("grant=send on a to peer:west")
    assert "this instance" in lines[4]
    assert run(audited, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["next"] is None
    assert said["rows"][0]["event_time"] == "2023-11-14T22:13:23.000000Z"
    assert said["rows"][0]["detail"]["grant"] == "send on a to peer:west"
    assert audited.broker == "msdb"


@pytest.mark.rule("SEC-87")
@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("--since", "2023-11-14T22:13:22"), [3, 2]),
        (("--since", "2023-11-14T22:13:22+00:00"), [3, 2]),
        (("--since", "2023-11-14"), [3, 2, 1]),
        (("--since", "1h"), []),
        (("--principal", "peer:west"), [3, 2]),
        (("--principal", "alice"), [3]),
        (("--principal", "lice"), []),
        (("--limit", "1"), [3]),
    ],
)
def test_entries_are_chosen(
    audited: SmallDaemon, capsys: Capture, words: tuple[str, ...], left: list[int]
) -> None:
    assert run(audited, *words, "--json") == 0
    assert numbers(capsys) == left


@pytest.mark.rule("SEC-87")
def test_events_and_refusals_are_chosen_by_the_daemon(
    audited: SmallDaemon, capsys: Capture
) -> None:
    assert run(audited, "--event", "login", "--event", "granted", "--refused") == 0
    (asked,) = audited.verbs("view")
    assert asked[1]["where"] == {"action": ["login", "granted"], "outcome": "refused"}
    capsys.readouterr()
    assert run(audited, "--event", "logn") == 64
    assert 'did you mean "login"?' in capsys.readouterr().err
    assert run(audited, "--since", "yesterday") == 64
    err = capsys.readouterr().err
    assert "--since 'yesterday' is neither a time nor a duration" in err
    assert "fix: 2026-01-31T09:00" in err


@pytest.mark.rule("SEC-87")
def test_a_list_that_is_cut_goes_on_behind_its_last_entry(
    audited: SmallDaemon, capsys: Capture
) -> None:
    assert run(audited, "--limit", "2") == 0
    assert capsys.readouterr().out.endswith("there are more: --after 2\n")
    assert run(audited, "--after", "2") == 0
    assert audited.verbs("view")[-1][1]["after"] == "2"
