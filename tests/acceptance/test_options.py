"""Every option of every object can be set on the command line, seen, and be taken back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd.cli import object_keys
from brokerd.cli.main import main
from tests.acceptance.appendix import OBJECTS
from tests.acceptance.one_process import Served

Capture = pytest.CaptureFixture[str]
HANDLER = "activation.handler=tests.integration.handlers:idle"

ROWS = [
    ("message-type", "validation", "validation=well_formed_json", "well_formed_json"),
    ("message-type", "require_body", "require_body=on", "on"),
    ("message-type", "validate_on_send", "validate_on_send=on", "on"),
    ("queue", "status", "status=off", "off"),
    ("queue", "retention", "retention=on", "on"),
    ("queue", "max_messages", "max_messages=7", 7),
    ("queue", "max_bytes", "max_bytes=9", "9B"),
    ("queue", "retention_limit.max_rows", "retention_limit.max_rows=7", 7),
    ("queue", "retention_limit.max_bytes", "retention_limit.max_bytes=9", 9),
    ("queue", "retention_limit.policy", "retention_limit.policy=drop_oldest", "drop_oldest"),
    ("queue", "receive_ageing", "receive_ageing=10s", "10s"),
    ("queue", "poison_handling", "poison_handling=off", "off"),
    ("queue", "poison_mode", "poison_mode=park", "park"),
    ("queue", "poison_threshold", "poison_threshold=7", 7),
    ("queue", "poison_disconnects", "poison_disconnects=7", 7),
    ("queue", "poison_backoff", "poison_backoff=2s", "2s"),
    ("queue", "poison_backoff_max", "poison_backoff_max=2min", "2min"),
    ("queue", "activation.status", "activation.status=off", "off"),
    ("queue", "activation.max_readers", "activation.max_readers=4", 4),
    ("queue", "activation.initial_readers", "activation.initial_readers=4", 4),
    ("queue", "activation.ramp_interval", "activation.ramp_interval=2s", "2s"),
    ("queue", "activation.spare", "activation.spare=off", "off"),
    ("queue", "activation.drain_wait", "activation.drain_wait=2s", "2s"),
    ("queue", "activation.run_as", "activation.run_as=clerk", "clerk"),
    ("service", "contracts", "contracts=talk,far", ["far", "talk"]),
    ("priority", "contract", "contract=private", "private"),
    ("priority", "local_service", "local_service=desk", "desk"),
    ("priority", "remote_service", "remote_service=anybody", "anybody"),
    ("priority", "level", "level=7", 7),
    ("route", "service", "service=far", "far"),
    ("instance-route", "service", "service=far", "far"),
]
NEEDED = {
    "message-type": ("validation=well_formed_xml",),
    "queue": (HANDLER, "retention_limit.max_rows=5", "retention_limit.max_bytes=5"),
    "service": ("queue=desk",),
    "route": ("address=TCP://127.0.0.1:9",),
    "instance-route": ("address=TCP://127.0.0.1:9",),
}
"""What an object of a kind is made with, so that its options mean something."""
DEFAULTS = {
    "validation": "none",
    "retention_limit.max_rows": None,
    "retention_limit.max_bytes": None,
}
"""Of what NEEDED says otherwise."""
NOT_TRIED = {
    "schema": "goes with a validation; see test_nouns",
    "types.NAME": "a contract cannot be altered (OBJ-25)",
    "retention_limit.archive": "goes with its policy",
    "activation.handler": "what an activation cannot be without",
    "activation.host": "goes with the three below: tests/integration/activation",
    "activation.command": "takes the place of the handler",
    "activation.memory": "only of readers that are processes",
    "activation.deadline": "tests/integration/activation",
    "queue": "what a service cannot be without",
    "service": "what a binding cannot be without",
    "address": "what a route cannot be without",
    "principal": "has to exist: tests/integration/admin/test_bindings",
    "anonymous": "of a binding, which needs a principal",
    "broker": "as the service of a route",
    "mirror": "goes with service and broker: tests/unit/test_objects",
    "lifetime": "is shown as an instant",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("o"), OBJECTS)
    served.start()
    yield served
    served.stop()


class Commands:
    """Runs commands that have to succeed."""

    def __init__(self, address: str, capsys: Capture) -> None:
        self.address = address
        self.capsys = capsys

    def run(self, *words: str) -> str:
        assert main([*words, "--address", self.address]) == 0, self.capsys.readouterr().err
        return self.capsys.readouterr().out

    def option(self, noun: str, name: str, key: str) -> Any:
        value: Any = json.loads(self.run(noun, "show", name, "--json"))
        for part in key.split("."):
            value = value.get(part) if value is not None else None
        return value


@pytest.fixture
def commands(served: Served, capsys: Capture) -> Commands:
    return Commands(served.address, capsys)


@pytest.mark.rule("CLP-81", "OBJ-39", "OBJ-45")
@pytest.mark.parametrize(
    ("noun", "key", "word", "shown"), ROWS, ids=[f"{r[0]} {r[2]}" for r in ROWS]
)
def test_an_option_is_set_and_taken_back(
    noun: str, key: str, word: str, shown: object, commands: Commands
) -> None:
    commands.run(noun, "create", "tried", *NEEDED.get(noun, ()))
    try:
        before = commands.option(noun, "tried", key)
        assert before != shown
        commands.run(noun, "alter", "tried", word)
        assert commands.option(noun, "tried", key) == shown
        assert "no change needed" in commands.run(noun, "alter", "tried", word)
        commands.run(noun, "alter", "tried", f"{key}=")
        assert commands.option(noun, "tried", key) == DEFAULTS.get(key, before)
        if noun == "queue":
            assert commands.option(noun, "tried", "activation.handler") is not None
    finally:
        commands.run(noun, "drop", "tried")


def test_every_key_is_tried_or_has_a_reason() -> None:
    tried = {(noun.replace("-", "_"), key) for noun, key, _, _ in ROWS}
    left = {
        (kind, key.name)
        for kind, those in object_keys.KEYS.items()
        if kind not in ("broker", "endpoint", "event_notification")
        for key in those
    } - tried
    assert {key for _, key in left} <= NOT_TRIED.keys()


@pytest.mark.rule("OBJ-45")
def test_activation_is_taken_from_a_queue(commands: Commands) -> None:
    commands.run("queue", "create", "tried", HANDLER, "activation.max_readers=3")
    for word in ("activation=drop", "activation="):
        commands.run("queue", "alter", "tried", HANDLER)
        assert commands.option("queue", "tried", "activation.handler") is not None
        commands.run("queue", "alter", "tried", word)
        assert commands.option("queue", "tried", "activation") is None
    commands.run("queue", "alter", "tried", HANDLER)
    assert commands.option("queue", "tried", "activation.status") == "off"
    commands.run("queue", "alter", "tried", "retention_limit.max_rows=3")
    commands.run("queue", "alter", "tried", "retention_limit=")
    assert commands.option("queue", "tried", "retention_limit") is None
    commands.run("queue", "drop", "tried")


@pytest.mark.rule("OBJ-55")
def test_the_options_of_a_broker(commands: Commands) -> None:
    def honors() -> object:
        (row,) = json.loads(commands.run("broker", "show", "third", "--json"))["rows"]
        return row["is_honor_broker_priority_on"]

    commands.run("broker", "alter", "third", "honor_priority=on")
    assert honors() is True
    commands.run("broker", "alter", "third", "honor_priority=")
    assert honors() is False


@pytest.mark.rule("OBJ-30")
@pytest.mark.parametrize(("noun", "verb"), [("contract", "drop"), ("message-type", "alter")])
def test_what_is_built_in_stays(noun: str, verb: str, served: Served, capsys: Capture) -> None:
    more = ["validation=empty"] if verb == "alter" else []
    assert main([noun, verb, "DEFAULT", *more, "--address", served.address]) == 65
    assert "'DEFAULT' is built in" in capsys.readouterr().err
