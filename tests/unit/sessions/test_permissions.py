"""The permission table: every verb is in it, and on which broker each needs what (SX-3, SX-23)."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import AccessDenied
from brokerd.ids import QueueKey, ServiceKey
from brokerd.model import Activation, Queue, Service
from brokerd.objects.activation import KEYS
from brokerd.protocol import admin_verbs
from brokerd.protocol import client_frames as frames
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.frames import Kind as PeerFrame
from brokerd.security.grants import Rights, parse_grant, rights_of
from brokerd.sessions.permissions import (
    ANYONE,
    CLIENT_FRAMES,
    CONTROL,
    IN_TRANSACTIONS,
    OF_A_QUEUE,
    PEER_FRAMES,
    PROGRAM_KEYS,
    check,
)


def broker(name: str) -> Any:
    """Return what the table reads of a broker: its name, its queues and services."""
    runs = Activation("shop:handle")
    queues = {
        "runs": Queue(QueueKey(1), "runs", activation=runs),
        "rests": Queue(QueueKey(2), "rests"),
    }
    services = {
        "urn:runs": Service(ServiceKey(1), "urn:runs", "runs"),
        "urn:rests": Service(ServiceKey(2), "urn:rests", "rests"),
    }
    catalog = SimpleNamespace(queues=queues, services=services)
    return SimpleNamespace(name=name, store=SimpleNamespace(catalog=catalog))


OWN: Any = broker("own")
"""The broker of the client's session."""
BROKERS: Mapping[str, Any] = {"own": OWN, "far": broker("far")}
ID = bytes(16)
NEEDED = {
    "view": (["brokers"], {"own"}),
    "explain_route": (["urn:s"], {"own"}),
    "ping": (["urn:s"], {"own"}),
    "dialog_timeline": ([ID], {"own"}),
    "clean_up": ([ID, "why"], {"own"}),
    "enable": (["named"], {"named"}),
    "disable": (["named"], {"named"}),
    "error_conversations": (["named"], {"named"}),
    "new_broker": (["named", ID], {"named"}),
    "clean_up_endpoints": (["named", "why"], {"named"}),
    "backup": (["named", "/b/x.db"], {"named"}),
    "forget_broker": (["named"], {"named"}),
    "drain_queue": (["named", "q"], {"named"}),
    "purge_queue": (["named", "q", 1, "why"], {"named"}),
    "alter_endpoint": ([{}], {"msdb"}),
    "retry_destination": ([], {"msdb"}),
    "confirm_clock": ([], {"msdb"}),
    "hand_over": ([], {"msdb"}),
    "grant": (["connect on endpoint to public"], {"msdb"}),
    "revoke": (["send on a to eve"], {"msdb"}),
    "who_can": ([], {"msdb"}),
    "install_principal": (["peer:west"], {"msdb"}),
    "revoke_principal": (["peer:west"], {"msdb"}),
    "own_certificates": ([], {"msdb"}),
    "make_certificates": ([], {"msdb"}),
    "switch_certificates": ([["dialog"]], {"msdb"}),
    "drop_certificate": ([bytes(32)], {"msdb"}),
    "replace_master_key": ([], {"msdb"}),
    "rotate_master_key": ([], {"msdb"}),
    "invite_peer": ([], {"own", "msdb"}),
    "await_pairing": ([], {"msdb"}),
    "cancel_pairing": ([], {"msdb"}),
    "join_peer": (["CODE"], {"own", "msdb"}),
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
    ("view", ["grants"], {"msdb"}),
    ("create", ["instance_route", {"name": "r"}], {"msdb"}),
    ("alter", ["instance_route", {"name": "r"}], {"msdb"}),
    ("drop", ["instance_route", "r"], {"msdb"}),
    ("alter", ["broker", {"name": "own", "honor_priority": "on"}], {"own"}),
    ("apply", [{"broker": {"name": "far"}}], {"far"}),
    ("apply", [{"broker": [{"name": "own"}, {"name": "far"}]}], {"own", "far"}),
    ("apply", [{"instance_route": [{"name": "r", "address": "LOCAL"}]}], {"own", "msdb"}),
    ("view", ["audit"], {"msdb"}),
    ("view", ["certificates"], {"msdb"}),
    ("view", ["principals"], {"msdb"}),
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
            check(rights, OWN, asked, "eve", BROKERS)
        assert denied.value.message == (
            f"{verb} needs control permission on broker {lacking!r}, which eve does not have"
        )
    grants = [f"control on {one} to eve" for one in needed]
    check(rights_of(map(parse_grant, grants), ["eve"]), OWN, asked, "eve", BROKERS)


GIVEN = [
    ("execute on main to eve", ("execute on main to eve",)),
    ("execute on main to eve", ("execute on * to eve",)),
    ("execute on ma* to eve", ("execute on ma* to eve",)),
    ("control on main to ann", ("control on main to eve",)),
    ("receive on main/desk to ann", ("receive on main/* to eve",)),
    ("receive on main/* to ann", ("control on main to eve",)),
    ("send on urn:shop to ann", ("send on urn:* to eve",)),
    ("send on * to public", ("control on * to eve",)),
    ("connect on endpoint to public", ()),
]
"""Grants, and what a client needs beside CONTROL on `msdb` to make each."""
LACKED = [
    ("execute on main to eve", ("control on * to eve",)),
    ("execute on * to eve", ("control on * to eve", "execute on main to eve")),
    ("execute on ma*n to eve", ("execute on ma?n to eve",)),
    ("control on main to eve", ()),
    ("control on * to eve", ("control on ma* to eve",)),
    ("receive on main/desk to eve", ("control on other to eve",)),
    ("send on urn:shop to eve", ("control on main to eve",)),
]


@pytest.mark.rule("CLP-140", "SX-23")
@pytest.mark.parametrize(("text", "has"), GIVEN)
def test_what_a_client_has_it_can_grant(text: str, has: tuple[str, ...]) -> None:
    rights = rights_of(map(parse_grant, ("control on msdb to eve", *has)), ["eve"])
    check(rights, OWN, admin_verbs.GrantPermission(text), "eve", BROKERS)


@pytest.mark.rule("CLP-140", "SX-23")
@pytest.mark.parametrize(("text", "has"), LACKED)
def test_nobody_can_grant_what_they_lack(text: str, has: tuple[str, ...]) -> None:
    rights = rights_of(map(parse_grant, ("control on msdb to eve", *has)), ["eve"])
    with pytest.raises(AccessDenied, match="eve cannot grant"):
        check(rights, OWN, admin_verbs.GrantPermission(text), "eve", BROKERS)


@pytest.mark.rule("SX-3")
def test_a_verb_that_is_not_in_the_table_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CONTROL, wire.CleanUp)
    rights = rights_of([parse_grant("control on * to eve")], ["eve"])
    with pytest.raises(AccessDenied, match="clean_up is not for clients"):
        check(rights, OWN, wire.CleanUp(ID, "why"), "eve", BROKERS)


@pytest.mark.rule("CLP-130", "CLP-39")
def test_a_session_with_msdb_declares_main() -> None:
    msdb = broker("msdb")
    rights = rights_of([parse_grant("control on msdb to eve")], ["eve"])
    with pytest.raises(AccessDenied, match="on broker 'main'"):
        check(rights, msdb, wire.Apply({"queue": [{"name": "q"}]}), "eve", BROKERS)


@pytest.mark.rule("SX-3")
def test_every_kind_of_frame_is_in_the_table() -> None:
    missing = set(PeerFrame) - PEER_FRAMES.keys()
    assert not missing, f"say in sessions/permissions.py who may send these: {missing}"
    requests = {frames.HELLO, frames.REQUEST, frames.PART_UP, frames.CANCEL, frames.PING}
    assert CLIENT_FRAMES.keys() == requests


HANDLER = {"handler": "shop:handle"}
PROGRAMS: list[tuple[str, list[Any], str]] = [
    ("create", ["queue", {"name": "q", "activation": HANDLER}], "own"),
    ("create", ["queue", {"name": "q", "activation": {"command": ["/bin/sh"]}}], "own"),
    ("alter", ["queue", {"name": "runs", "activation": {"run_as": None}}], "own"),
    ("alter", ["queue", {"name": "runs", "activation": {"host": "daemon"}}], "own"),
    ("create", ["service", {"name": "s", "queue": "runs"}], "own"),
    ("alter", ["service", {"name": "urn:rests", "queue": "runs"}], "own"),
    ("apply", [{"queue": [{"name": "q", "activation": HANDLER}]}], "own"),
    ("apply", [{"queue": [{"name": "runs", "activation": {"handler": "os:abort"}}]}], "own"),
    (
        "apply",
        [{"queue": [{"name": "runs"}], "service": [{"name": "s", "queue": "runs"}]}],
        "own",
    ),
    (
        "apply",
        [{"broker": {"name": "far"}, "queue": [{"name": "q", "activation": HANDLER}]}],
        "far",
    ),
    (
        "apply",
        [{"broker": {"name": "new"}, "queue": [{"name": "runs", "activation": HANDLER}]}],
        "new",
    ),
]
"""Requests that name a program, and the broker for which the daemon would run it."""
NO_PROGRAMS: list[tuple[str, list[Any]]] = [
    ("create", ["queue", {"name": "q"}]),
    ("create", ["service", {"name": "s", "queue": "rests"}]),
    ("create", ["contract", {"name": "c", "queue": "runs"}]),
    ("alter", ["queue", {"name": "runs", "activation": {"status": "off"}}]),
    ("alter", ["queue", {"name": "runs", "activation": {"max_readers": 3}}]),
    ("alter", ["queue", {"name": "runs", "activation": "drop"}]),
    ("alter", ["service", {"name": "urn:runs", "contracts": []}]),
    ("drop", ["queue", "runs"]),
    (
        "apply",
        [
            {
                "queue": [{"name": "runs", "activation": HANDLER | {"max_readers": 9}}],
                "service": [{"name": "urn:runs", "queue": "runs"}],
            }
        ],
    ),
    ("apply", [{"queue": [{"name": "q"}], "service": [{"name": "s", "queue": "q"}]}]),
]


def all_but_execute(*more: str) -> Rights:
    return rights_of(map(parse_grant, ("control on * to eve", *more)), ["eve"])


@pytest.mark.rule("SX-23", "ACT-20", "OBJ-60")
@pytest.mark.parametrize(("verb", "args", "where"), PROGRAMS)
def test_a_verb_that_names_a_program_needs_execute_beside_control(
    verb: str, args: list[Any], where: str
) -> None:
    asked = wire.parse_verb(verb, args)
    other = "own" if where != "own" else "far"
    with pytest.raises(AccessDenied, match=f"execute permission on broker '{where}'") as denied:
        check(all_but_execute(f"execute on {other} to eve"), OWN, asked, "eve", BROKERS)
    assert f"{verb} names a program to run" in denied.value.message
    check(all_but_execute(f"execute on {where} to eve"), OWN, asked, "eve", BROKERS)


@pytest.mark.rule("SX-23")
@pytest.mark.parametrize(("verb", "args"), NO_PROGRAMS)
def test_a_verb_that_names_no_new_program_needs_only_control(verb: str, args: list[Any]) -> None:
    check(all_but_execute(), OWN, wire.parse_verb(verb, args), "eve", BROKERS)


HARMLESS = {"max_readers", "status", "memory", "deadline"} | {
    *("ramp_interval", "initial_readers", "drain_wait", "spare")
}


@pytest.mark.rule("SX-23")
def test_each_key_of_an_activation_is_known_to_name_a_program_or_not() -> None:
    assert set(KEYS) == PROGRAM_KEYS | HARMLESS
