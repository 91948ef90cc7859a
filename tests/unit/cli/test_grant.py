"""`brokerd grant`, `revoke` and `who-can`: what they ask for, and what they print."""

import json

import pytest

from brokerd.cli.main import main
from brokerd.errors import AccessDenied
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]
TEXT = "send on urn:orders to peer:west"


def run(daemon: SmallDaemon, *words: str) -> int:
    return main([*words, "--address", daemon.address])


def row(**fields: object) -> dict[str, object]:
    values: dict[str, object] = {
        "permission": "send",
        "securable": "urn:orders",
        "principal": "peer:west",
        "origin": "online",
        "granted_at": 1_700_000_000_000_000,
        "granted_by": "client 1",
    }
    return values | fields


@pytest.mark.rule("CLP-140", "CLP-141")
@pytest.mark.parametrize("words", [(TEXT,), tuple(TEXT.split())])
@pytest.mark.parametrize("verb", ["grant", "revoke"])
def test_a_grant_is_one_word_or_several(
    daemon: SmallDaemon, capsys: Capture, verb: str, words: tuple[str, ...]
) -> None:
    daemon.answers[verb] = row(is_new=verb == "grant", notes=["look twice"])
    assert run(daemon, verb, *words) == 0
    assert daemon.verbs(verb) == [[TEXT]]
    out, err = capsys.readouterr()
    assert out == f"{'granted' if verb == 'grant' else 'revoked'}: {TEXT}\n"
    assert "look twice" in err
    assert run(daemon, verb, *words, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["principal"], said["notes"]) == ("peer:west", ["look twice"])
    assert said["granted_at"].startswith("2023-11-14T")
    assert run(daemon, verb) == 64
    assert TEXT in capsys.readouterr().err


@pytest.mark.rule("CLP-140")
def test_what_was_granted_before_is_said_to_be_and_where(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.answers["grant"] = row(origin="settings", granted_at=None, granted_by="", notes=[])
    assert run(daemon, "grant", TEXT) == 0
    assert capsys.readouterr().out == f"{TEXT} was granted already (settings)\n"


@pytest.mark.rule("CLP-142", "SEC-90")
@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), [None, None, None]),
        (("send", "on", "urn:orders"), ["send", "urn:orders", None]),
        (("send on urn:orders",), ["send", "urn:orders", None]),
        (("--principal", "alice"), [None, None, "alice"]),
    ],
)
def test_one_object_is_asked_about_or_one_principal_or_all(
    daemon: SmallDaemon, capsys: Capture, words: tuple[str, ...], asked: list[object]
) -> None:
    daemon.answers["who_can"] = {
        "grants": [row(), row(origin="settings", granted_at=None, granted_by="")],
        "notes": ["and root"],
    }
    assert run(daemon, "who-can", *words) == 0
    assert daemon.verbs("who_can") == [asked]
    out, err = capsys.readouterr()
    assert out.splitlines()[2].split()[:4] == ["send", "urn:orders", "peer:west", "online"]
    assert out.splitlines()[3].split() == [
        *TEXT.split()[:1],
        *TEXT.split()[2::2],
        "settings",
        "-",
        "-",
    ]
    assert "and root" in err
    assert run(daemon, "who-can", *words, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["next"], said["notes"]) == (None, ["and root"])
    assert [one["origin"] for one in said["rows"]] == [
        "online",
        "settings",
    ]


@pytest.mark.rule("CLP-142")
@pytest.mark.parametrize(
    "words", [("send",), ("send", "urn:orders"), ("send", "on", "a", "--principal", "b")]
)
def test_what_is_no_question_is_refused_with_one(
    daemon: SmallDaemon, capsys: Capture, words: tuple[str, ...]
) -> None:
    assert run(daemon, "who-can", *words) == 64
    assert "brokerd who-can send on SERVICE" in capsys.readouterr().err


@pytest.mark.rule("CLP-130")
def test_who_may_not_grant_is_told_who_may(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.refuse = AccessDenied("grant needs control permission on broker 'msdb'")
    assert run(daemon, "grant", TEXT) == 77
    assert "brokerd grant --help" in capsys.readouterr().err
