"""`brokerd queue` and its like: what the words say, and what is asked of the daemon."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from brokerd.cli import object_keys
from brokerd.cli.main import main
from brokerd.cli.object_commands import settings_of
from brokerd.errors import InUse, UsageError
from brokerd.objects import forms
from brokerd.objects.declared import BROKER_OPTIONS
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]


def run(daemon: SmallDaemon, *words: str) -> int:
    return main([*words, "--address", daemon.address])


def test_words_say_what_a_file_would_say(tmp_path: Path) -> None:
    schema = tmp_path / "s.json"
    schema.write_text("{}")
    said = settings_of(
        "queue",
        ("status=off", "activation.handler=shop.app:work", "activation.max_readers=3"),
    )
    assert said == {
        "status": "off",
        "activation": {"handler": "shop.app:work", "max_readers": 3},
    }
    types = {"orders/v1.Order": "initiator"}
    assert settings_of("contract", ('types."orders/v1.Order"=initiator',)) == {"types": types}
    assert settings_of("service", ("contracts=a,b/c",)) == {"contracts": ["a", "b/c"]}
    assert settings_of("service", ('contracts=["a"]',)) == {"contracts": ["a"]}
    assert settings_of("message_type", (f"schema=@{schema}",)) == {"schema": "{}"}
    assert settings_of("priority", ("level=7",)) == {"level": 7}
    assert settings_of("priority", ("contract=",)) == {"contract": None}
    assert settings_of("queue", ("activation.max_readers=",)) == {
        "activation": {"max_readers": None}
    }
    assert settings_of("queue", ("activation=drop",)) == {"activation": "drop"}


def test_a_value_from_a_file_that_is_no_text_is_refused_with_the_way_to_one(tmp_path: Path) -> None:
    schema = tmp_path / "s.xsd"
    schema.write_bytes("<schema/>".encode("utf-16"))
    with pytest.raises(UsageError, match=r"schema: .*s\.xsd is not a text in UTF-8"):
        settings_of("message_type", (f"schema=@{schema}",))


@pytest.mark.parametrize(
    ("kind", "word", "said"),
    [
        ("queue", "status", "is no KEY=VALUE"),
        ("queue", "=off", "is no KEY=VALUE"),
        ("queue", "a b=c", "'a b' is no key"),
        ("queue", "name=x", "name: the name is the first word"),
        ("queue", "kind=foo", "kind: there is no such key"),
        ("queue", "stauts=on", 'did you mean "status"?'),
        ("queue", "activation.readers=1", 'did you mean "activation.max_readers"?'),
        ("queue", "receive_ageing=2026-01-01", "is a date, which no key takes"),
        ("priority", "level=12:00:00", "is a date, which no key takes"),
    ],
)
def test_words_that_say_nothing_are_refused_with_the_keys_there_are(
    kind: str, word: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        settings_of(kind, (word,))
    assert said in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.hint


@pytest.mark.rule("OBJ-23")
@pytest.mark.parametrize(
    ("kind", "words", "twice"),
    [
        ("contract", ("types.A=any", "types.B=any", "types.A=target"), "A"),
        ("contract", ("types.A=any", "types={A = 'any'}"), "A"),
        ("queue", ("status=off", "status=on"), "status"),
        ("queue", ("activation=drop", "activation.status=on"), "activation"),
    ],
)
def test_what_is_said_twice_is_refused(kind: str, words: tuple[str, ...], twice: str) -> None:
    with pytest.raises(UsageError, match=f"(?m)^{twice} is said twice$"):
        settings_of(kind, words)


def test_the_keys_are_those_of_a_file_of_objects() -> None:
    for kind, of_file in forms.KEYS.items():
        told = {key.name.partition(".")[0] for key in object_keys.KEYS[kind.value]}
        assert told == set(of_file) - {"name"}, kind
    assert {key.name for key in object_keys.KEYS["broker"]} == set(BROKER_OPTIONS)


def test_the_help_has_the_keys_with_their_defaults(capsys: Capture) -> None:
    for noun in ("queue", "message-type", "contract", "service", "priority", "route"):
        for verb in ("create", "alter"):
            assert main([noun, verb, "--help"]) == 0
            out = capsys.readouterr().out
            for key in object_keys.KEYS[noun.replace("-", "_")]:
                assert f"  {key.name} " in out
                assert key.default in out
            assert "@FILE" in out


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
    daemon.views["queue_monitors"] = [{"queue_id": "q", "state": "NOTIFIED"}]
    once = {"at": 1_700_000_000_000_000, "text": "started reader 3: 412 groups ready", "times": 1}
    often = {**once, "text": "no further reader", "times": 9, "last_at": 1_700_000_001_000_000}
    daemon.views["activation_decisions"] = [once, often]
    waits = {
        "conversation_group_id": "11",
        "state": "waiting",
        "retry_at": 4_000_000_000_000_000,
        "rollback_streak": 2,
        "park_reason": None,
        "last_error": "ValueError: no stock",
    }
    parks = {**waits, "conversation_group_id": "22", "state": "parked", "park_reason": "ask Ann"}
    daemon.views["parked_groups"] = [waits, parks]
    assert run(daemon, "queue", "show", "q") == 0
    out = capsys.readouterr().out
    assert "activation: a=1" in out
    assert "ready_count  7" in out
    assert "NOTIFIED" in out
    assert "2023-11-14T22:13:20.000000Z  started reader 3: 412 groups ready\n" in out
    assert "no further reader (9 times, last 2023-11-14T22:13:21.000000Z)\n" in out
    where = [args[1]["where"] for args in daemon.verbs("view")]
    of_queue = {"queue_id": "q", "broker_name": "main"}
    assert where == [{"name": "q"}, of_queue, {"queue": "q"}, of_queue]
    assert re.search(
        r"11  next attempt in \d+d, 2 rollbacks, last error: ValueError: no stock", out
    )
    assert "22  parked: ask Ann, 2 rollbacks, last error: ValueError: no stock\n" in out
    assert run(daemon, "queue", "show", "q", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["now"]["ready_count"]) == ("on", 7)
    assert told["monitor"]["state"] == "NOTIFIED"
    assert [one["state"] for one in told["groups"]] == ["waiting", "parked"]
    assert [one["text"] for one in told["decisions"]] == [once["text"], often["text"]]
    assert run(daemon, "queue", "show", "none") == 67


@pytest.mark.rule("VIEW-15")
def test_a_queue_is_shown_with_its_latest_twenty_decisions(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.objects = [{"kind": "queue", "name": "q", "status": "on"}]
    daemon.views["activation_decisions"] = [
        {"at": 1_700_000_000_000_000, "text": f"decision {number}.", "times": 1}
        for number in range(100)
    ]
    assert run(daemon, "queue", "show", "q") == 0
    shown = [int(one) for one in re.findall(r"decision (\d+)\.", capsys.readouterr().out)]
    assert shown == list(range(80, 100))
    assert run(daemon, "queue", "show", "q", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["decisions"]) == 100


@pytest.mark.rule("PBT-25", "CLP-118")
def test_a_queue_is_drained(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["drain_queue"] = {"ended": 2, "stopped": 1, "left": 0}
    assert run(daemon, "queue", "drain", "q", "--grace", "2") == 0
    assert capsys.readouterr().out == "queue q is drained: 2 readers ended, 1 was ended\n"
    assert daemon.verbs("drain_queue") == [["main", "q", 2.0]]
    assert run(daemon, "queue", "drain", "q", "--json") == 0
    told = {"ended": 2, "stopped": 1, "left": 0, "activation": "on"}
    assert json.loads(capsys.readouterr().out) == told


@pytest.mark.rule("PBT-25", "CLP-118")
@pytest.mark.parametrize(
    ("activation", "why"),
    [
        ("none", "it has no activation, and programs that read it by themselves read on"),
        ("off", "its activation was off already, and none of its readers runs"),
        ("on", "none ran; its activation is off now"),
    ],
)
def test_that_there_is_nothing_to_drain_is_said(
    daemon: SmallDaemon, capsys: Capture, activation: str, why: str
) -> None:
    nothing = {"ended": 0, "stopped": 0, "left": 0, "activation": activation}
    daemon.answers["drain_queue"] = nothing
    assert run(daemon, "queue", "drain", "q") == 0
    assert capsys.readouterr().out == f"queue q has no readers to drain: {why}\n"


@pytest.mark.rule("OBJ-42")
def test_a_refusal_is_told_with_its_status(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.refuse = InUse("3 open dialogs need service s; nothing was changed", hint="end them")
    assert run(daemon, "service", "drop", "s") == 65
    assert capsys.readouterr().err.splitlines() == [
        "brokerd: 3 open dialogs need service s; nothing was changed",
        "  fix: end them",
    ]
