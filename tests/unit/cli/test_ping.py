"""`brokerd ping`: what it asks, prints and ends with (NBT-7)."""

from typing import Any

import pytest

from brokerd.cli.main import main
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]


def step(leg: str, instance: str, outcome: str, **more: str) -> dict[str, str]:
    usual = dict.fromkeys(("broker", "step", "route", "where", "reason", "detail"), "")
    return {**usual, "leg": leg, "instance": instance, "outcome": outcome, **more}


OUT = step("out", "west", "remote", broker="main", where="tcp://e:1", route="r", step="2")
THERE = step("out", "east", "local", where="main", step="5")
BACK = step("back", "east", "local", broker="main", where="main")
NO_WAY = step("back", "east", "delayed", broker="main", reason="no_route")
ANSWER: dict[str, Any] = {
    "service": "far",
    "from_service": "near",
    "steps": [OUT, THERE, BACK],
    "is_complete": True,
    "seconds": 0.25,
}


def ping(daemon: SmallDaemon, *words: str) -> int:
    return main(["ping", "far", *words, "--address", daemon.address])


@pytest.mark.rule("NBT-7", "CLP-131")
def test_each_step_has_a_line(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["ping"] = ANSWER
    assert ping(daemon, "--from", "near", "--wait", "3") == 0
    assert daemon.verbs("ping") == [
        ["far", {"from_service": "near", "broker_id": None, "wait": 3.0}]
    ]
    assert capsys.readouterr().out.splitlines() == [
        " out  west, broker 'main': remote to tcp://e:1, by route 'r' (step 2)",
        " out  east, routes of the instance: local to main (step 5)",
        "back  east, broker 'main': local to main",
        "'far' and back to 'near' in 0.250 s",
    ]


@pytest.mark.rule("NBT-7")
@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([OUT, THERE, NO_WAY], "it stops at east: nothing matches"),
        ([{**OUT, "detail": "who knows"}], "it stops at west: who knows"),
        ([OUT], "nothing was heard of it within 0.2 s, after west"),
    ],
)
def test_the_status_says_whether_it_came_back(
    daemon: SmallDaemon, capsys: Capture, steps: list[dict[str, str]], said: str
) -> None:
    daemon.answers["ping"] = {**ANSWER, "steps": steps, "is_complete": False}
    assert ping(daemon, "--from", "near") == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith(said)


@pytest.mark.rule("NBT-7")
def test_a_way_back_that_was_guessed_is_not_all_there_is_to_say(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.answers["ping"] = {**ANSWER, "steps": [OUT, THERE, NO_WAY], "is_complete": False}
    assert ping(daemon) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("it stops at east")
    assert "'near'" in lines[-1]
    assert "--from" in lines[-1]


def test_it_can_be_read_by_programs(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["ping"] = ANSWER
    assert ping(daemon, "--json") == 0
    assert '"is_complete":true' in capsys.readouterr().out.replace(" ", "").replace("\n", "")
