"""docs/reference/verbs.md names every verb with its arguments, and every field of a message."""

import inspect
import re
from pathlib import Path

import pytest

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction

TEXT = (Path(__file__).parents[3] / "docs/reference/verbs.md").read_text()
VERBS = {
    name: " ".join(arguments.split())
    for name, arguments in re.findall(
        r"^### `(\w+)`\n\n```text\n\1\(([^`]*)\)\n```$", TEXT, re.MULTILINE
    )
}
NO_VERBS = {
    "act_for",
    "ask_commit",
    "commit",
    "is_open",
    "receive_alone",
    "rollback",
    "savepoint",
    "send_alone",
}
"""What a transaction has besides: its own ends, and what the SDK alone uses."""


def shown(method: object) -> str:
    """Its arguments as they are written, without types."""
    assert callable(method)
    parameters = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in inspect.signature(method).parameters.values()
        if one.name != "self"
    ]
    text = str(inspect.Signature(parameters))[1:-1]
    return text.replace("<_Mark.ABSENT: 'absent'>", "ABSENT")


@pytest.mark.rule("SDK-1")
def test_every_verb_is_documented_as_it_is() -> None:
    there = {name for name in vars(Transaction) if not name.startswith("_")} - NO_VERBS
    assert {name: shown(getattr(Transaction, name)) for name in there} == VERBS


@pytest.mark.rule("SDK-1")
def test_a_verb_of_a_session_takes_what_it_takes_in_a_transaction() -> None:
    for name in VERBS.keys() - {"receive"}:
        if hasattr(Session, name):
            assert shown(getattr(Session, name)) == VERBS[name]


@pytest.mark.rule("RCV-30", "RCV-36", "RCV-43")
def test_every_field_of_a_message_is_documented() -> None:
    table = TEXT.partition("| field | |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()]
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(Message.__struct_fields__)
