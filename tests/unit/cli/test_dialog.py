"""`brokerd dialog`: what is done to one by its handle, and what is asked of a daemon for it."""

import json

import pytest

from brokerd.cli.main import main
from brokerd.errors import ConversationNotFound
from brokerd.ids import show
from tests.unit.cli.conftest import ID, SmallDaemon

Capture = pytest.CaptureFixture[str]
HANDLE = show(ID)


def run(daemon: SmallDaemon, *words: str) -> int:
    return main(["dialog", *words, "--address", daemon.address])


def test_status_says_why_it_waits(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.transmission = {
        "status_key": "no_route",
        "transmission_status": "nothing matches the service name and broker: urn:far",
        "status_since": 1_700_000_000_000_000,
        "attempts": 0,
        "next_attempt_at": None,
        "pending": 3,
        "destination": None,
    }
    assert run(daemon, "status", HANDLE) == 0
    shown = capsys.readouterr().out
    assert "no_route: nothing matches" in shown
    assert "3 unacknowledged" in shown
    assert "2023-11-14" in shown
    assert f"what helps: brokerd doctor --address {daemon.address}" in shown
    assert run(daemon, "status", HANDLE, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["conversation_handle"], answer["status_key"]) == (HANDLE, "no_route")


def test_status_of_a_dialog_that_waits_for_nothing(daemon: SmallDaemon, capsys: Capture) -> None:
    assert run(daemon, "status", HANDLE) == 0
    assert "nothing waits" in capsys.readouterr().out


def test_end_and_its_forms(daemon: SmallDaemon, capsys: Capture) -> None:
    assert run(daemon, "end", HANDLE) == 0
    assert run(daemon, "end", HANDLE, "--error", "7", "--description", "enough") == 0
    assert daemon.committed == [["end", [ID, None, None]], ["end", [ID, 7, "enough"]]]
    assert run(daemon, "end", HANDLE, "--cleanup", "--reason", "the far site is gone") == 0
    assert run(daemon, "end", HANDLE, "--cleanup", "--reason", "again", "--tell-peer") == 0
    assert daemon.verbs("clean_up") == [
        [ID, "the far site is gone", False],
        [ID, "again", True],
    ]
    assert f"removed {HANDLE}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("end", "nonsense"),
        ("end", HANDLE, "--cleanup"),
        ("end", HANDLE, "--reason", "no"),
        ("end", HANDLE, "--tell-peer"),
        ("end", HANDLE, "--cleanup", "--reason", "x", "--error", "3"),
        ("timer", HANDLE),
        ("timer", HANDLE, "5", "--cancel"),
        ("timer", HANDLE, "0"),
    ],
)
def test_wrong_words_ask_nothing(daemon: SmallDaemon, words: tuple[str, ...]) -> None:
    assert run(daemon, *words) == 64
    assert daemon.asked == []


def test_timer_sets_and_cancels(daemon: SmallDaemon, capsys: Capture) -> None:
    assert run(daemon, "timer", HANDLE, "1.5", "--name", "soon") == 0
    assert run(daemon, "timer", HANDLE, "--cancel") == 0
    assert daemon.committed == [
        ["set_timer", [ID, 1500, "soon"]],
        ["set_timer", [ID, None, None]],
    ]
    assert "1.5 s" in capsys.readouterr().out


def test_an_unknown_handle_has_its_exit_status(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.refuse = ConversationNotFound("no conversation is open here")
    assert run(daemon, "status", HANDLE) == 67
    assert "no conversation" in capsys.readouterr().err
