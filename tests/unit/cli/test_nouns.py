"""`brokerd queue` and its like: what the words say, and what is asked of the daemon."""

import json
from pathlib import Path
from typing import Any

import pytest

from brokerd.cli.main import main
from brokerd.cli.nouns import settings_of
from brokerd.errors import InUse, UsageError
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]


def run(daemon: SmallDaemon, *words: str) -> int:
    return main([*words, "--address", daemon.address])


def test_words_say_what_a_file_would_say(tmp_path: Path) -> None:
    schema = tmp_path / "s.json"
    schema.write_text("{}")
    words = (
        "status=off",
        "activation.handler=shop.app:work",
        "activation.max_readers=3",
        'types."orders/v1.Order"=initiator',
        "contracts=a,b/c",
        f"schema=@{schema}",
        "level=7",
    )
    assert settings_of(words) == {
        "status": "off",
        "activation": {"handler": "shop.app:work", "max_readers": 3},
        "types": {"orders/v1.Order": "initiator"},
        "contracts": ["a", "b/c"],
        "schema": "{}",
        "level": 7,
    }
    assert settings_of(('contracts=["a"]',)) == {"contracts": ["a"]}
    for word in ("status", "=off", "a b=c"):
        with pytest.raises(UsageError):
            settings_of((word,))


@pytest.mark.rule("CLP-81")
@pytest.mark.parametrize(
    ("words", "verb", "args"),
    [
        (
            ["queue", "create", "q", "status=off"],
            "create",
            ["queue", {"status": "off", "name": "q"}],
        ),
        (
            ["message-type", "alter", "t", "validation=empty", "--terminate-existing"],
            "alter",
            ["message_type", {"validation": "empty", "name": "t"}, True],
        ),
        (["service", "drop", "s"], "drop", ["service", "s", False]),
        (["priority", "drop", "p"], "drop", ["priority", "p", False]),
    ],
)
def test_each_noun_asks_its_verb(
    daemon: SmallDaemon, capsys: Capture, words: list[str], verb: str, args: list[Any]
) -> None:
    daemon.changes = [{"kind": "queue", "sentence": "something is changed"}]
    assert run(daemon, *words) == 0
    assert daemon.verbs(verb) == [args]
    assert capsys.readouterr().out == "something is changed\n"
    daemon.changes = []
    assert run(daemon, *words) == 0
    assert capsys.readouterr().out == "no change needed\n"


@pytest.mark.rule("CLP-80")
def test_ls_and_show(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.objects = [{"kind": "service", "name": "s", "queue": "q", "contracts": ["a", "b"]}]
    assert run(daemon, "service", "ls") == 0
    assert capsys.readouterr().out.splitlines() == [
        "services",
        "  name  queue  contracts",
        "  s     q      a, b",
    ]
    assert run(daemon, "service", "show", "s") == 0
    assert "queue: q" in capsys.readouterr().out
    assert run(daemon, "service", "ls", "--json") == 0
    assert '"kind": "service"' in capsys.readouterr().out
    assert run(daemon, "service", "show", "none") == 67
    assert "no service 'none'" in capsys.readouterr().err


@pytest.mark.rule("CLP-80", "VIEW-4")
def test_a_queue_is_shown_as_declared_and_as_it_stands(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.objects = [{"kind": "queue", "name": "q", "status": "on", "activation": {"a": 1}}]
    daemon.views["service_queues"] = [{"name": "q", "ready_count": 7}]
    assert run(daemon, "queue", "show", "q") == 0
    out = capsys.readouterr().out
    assert "activation: a=1" in out
    assert "ready_count  7" in out
    assert daemon.verbs("view") == [
        ["service_queues", {"limit": 1000, "bodies": False, "after": None, "where": {"name": "q"}}]
    ]
    assert run(daemon, "queue", "show", "q", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["now"]["ready_count"]) == ("on", 7)
    assert run(daemon, "queue", "show", "none") == 67


@pytest.mark.rule("OBJ-42")
def test_a_refusal_is_told_with_its_status(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.refuse = InUse("3 open dialogs need service s; nothing was changed", hint="end them")
    assert run(daemon, "service", "drop", "s") == 65
    assert capsys.readouterr().err.splitlines() == [
        "brokerd: 3 open dialogs need service s; nothing was changed",
        "  fix: end them",
    ]
