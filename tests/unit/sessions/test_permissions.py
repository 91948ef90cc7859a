"""The permission table: every verb is in it, and on which broker each needs what (SX-3, SX-23)."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import AccessDenied
from brokerd.protocol import client_verbs as wire
from brokerd.security.grants import parse_grant, rights_of
from brokerd.sessions.permissions import ANYONE, CONTROL, IN_TRANSACTIONS, OF_A_QUEUE, check

OWN: Any = SimpleNamespace(name="own")
"""The broker of the client's session, of which only the name counts here."""
ID = bytes(16)
NEEDED = {
    "view": (["brokers"], {"own"}),
    "explain_route": (["urn:s"], {"own"}),
    "ping": (["urn:s"], {"own"}),
    "clean_up": ([ID, "why"], {"own"}),
    "enable": (["named"], {"named"}),
    "disable": (["named"], {"named"}),
    "error_conversations": (["named"], {"named"}),
    "new_broker": (["named", ID], {"named"}),
    "clean_up_endpoints": (["named", "why"], {"named"}),
    "backup": (["named", "/b/x.db"], {"named"}),
    "forget_broker": (["named"], {"named"}),
    "drain_queue": (["named", "q"], {"named"}),
    "alter_endpoint": ([{}], {"msdb"}),
    "retry_destination": ([], {"msdb"}),
    "confirm_clock": ([], {"msdb"}),
    "release_group": (["named", ID], {"named"}),
    "discard_group": (["named", ID], {"named"}),
    "end_group": (["named", ID, 1, "why"], {"named"}),
    "edit_group": (["named", ID, b""], {"named"}),
    "cure_queue": (["named", "q", 1, "why"], {"named"}),
    "create": (["queue", {"name": "q"}], {"own"}),
    "alter": (["queue", {"name": "q"}], {"own"}),
    "drop": (["queue", "q"], {"own"}),
    "apply": ([{"queue": [{"name": "q"}]}], {"own"}),
}
"""Verb to arguments and the brokers on which it then needs CONTROL."""
TO_OTHERS: list[tuple[str, list[Any], set[str]]] = [
    ("create", ["instance_route", {"name": "r"}], {"msdb"}),
    ("alter", ["instance_route", {"name": "r"}], {"msdb"}),
    ("drop", ["instance_route", "r"], {"msdb"}),
    ("alter", ["broker", {"name": "own", "honor_priority": "on"}], {"own"}),
    ("apply", [{"broker": {"name": "far"}}], {"far"}),
    ("apply", [{"broker": [{"name": "own"}, {"name": "far"}]}], {"own", "far"}),
    ("apply", [{"instance_route": [{"name": "r", "address": "LOCAL"}]}], {"own", "msdb"}),
    ("create", ["route", {"name": "r"}], {"own"}),
    ("alter", ["route", {"name": "r"}], {"own"}),
    ("drop", ["route", "r"], {"own"}),
    ("apply", [{"instance_route": []}], {"own", "msdb"}),
    (
        "apply",
        [{"broker": [{"name": "far"}], "instance_route": [{"name": "r", "address": "LOCAL"}]}],
        {"far", "msdb"},
    ),
]
ALL = [(verb, args, needed) for verb, (args, needed) in NEEDED.items()] + TO_OTHERS


@pytest.mark.rule("SX-3", "SX-23")
def test_every_verb_is_in_the_table_once() -> None:
    tables = [set(CONTROL), set(OF_A_QUEUE), set(ANYONE), set(IN_TRANSACTIONS)]
    known = set(wire.NAMES)
    missing = known.difference(*tables)
    assert not missing, f"say in sessions/permissions.py what these need: {missing}"
    assert sum(map(len, tables)) == len(known), "a verb is in two tables"
    assert {wire.NAMES[verb] for verb in CONTROL} == NEEDED.keys(), "add an example"


@pytest.mark.rule("SX-3", "SX-23", "CLP-130", "RTE-69")
@pytest.mark.parametrize(("verb", "args", "needed"), ALL)
def test_control_is_needed_on_each_broker_that_a_verb_changes(
    verb: str, args: list[Any], needed: set[str]
) -> None:
    asked = wire.parse_verb(verb, args)
    everything_else = ["receive on */* to eve", "send on * to eve", "control on elsewhere to eve"]
    for lacking in needed:
        others = {"own", "named", "far", "msdb"} - {lacking}
        grants = everything_else + [f"control on {one} to eve" for one in others]
        rights = rights_of(map(parse_grant, grants), ["eve"])
        with pytest.raises(AccessDenied) as denied:
            check(rights, OWN, asked, "eve")
        assert denied.value.message == (
            f"{verb} needs control permission on broker {lacking!r}, which eve does not have"
        )
    grants = [f"control on {one} to eve" for one in needed]
    check(rights_of(map(parse_grant, grants), ["eve"]), OWN, asked, "eve")


@pytest.mark.rule("SX-3")
def test_a_verb_that_is_not_in_the_table_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CONTROL, wire.CleanUp)
    rights = rights_of([parse_grant("control on * to eve")], ["eve"])
    with pytest.raises(AccessDenied, match="clean_up is not for clients"):
        check(rights, OWN, wire.CleanUp(ID, "why"), "eve")


@pytest.mark.rule("CLP-130", "CLP-39")
def test_a_session_with_msdb_declares_main() -> None:
    msdb: Any = SimpleNamespace(name="msdb")
    rights = rights_of([parse_grant("control on msdb to eve")], ["eve"])
    with pytest.raises(AccessDenied, match="on broker 'main'"):
        check(rights, msdb, wire.Apply({"queue": [{"name": "q"}]}), "eve")
