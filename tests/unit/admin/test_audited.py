"""Every verb that changes something is audited, or there is a reason why it is not (SX-15)."""

from typing import Any

import pytest

from brokerd.admin.audited import AUDITED, begun, performed
from brokerd.protocol import admin_verbs as admin
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.client_verbs import parse_request
from brokerd.protocol.credential_verbs import CREDENTIAL_VERBS
from brokerd.protocol.pairing_verbs import PAIRING_VERBS
from brokerd.telemetry.audit import Action

ID = bytes(range(16))
READING = {admin.View, admin.ExplainRoute, admin.Ping, admin.DialogTimeline, admin.WhoCan}
BY_THEMSELVES = {
    *CREDENTIAL_VERBS.values(),
    *PAIRING_VERBS.values(),
    admin.GrantPermission,
    admin.RevokePermission,
    admin.OpenPage,
}
"""Their entries are made in the transactions that change something, or when a browser is let in."""
HARMLESS = {admin.RetryDestination}
SECRET = b"the body of a message"
ROWS: list[tuple[str, list[Any], str, dict[str, object]]] = [
    ("enable", ["east"], "east", {}),
    ("disable", ["east", {"force": True}], "east", {}),
    ("error_conversations", ["east"], "east", {}),
    ("new_broker", ["east", ID], "east", {"broker_id": "00010203-0405-0607-0809-0a0b0c0d0e0f"}),
    (
        "clean_up",
        [ID, "why"],
        "own",
        {"handle": "00010203-0405-0607-0809-0a0b0c0d0e0f", "reason": "why"},
    ),
    (
        "clean_up_endpoints",
        ["east", "why", {"states": ["DI"], "service": "s", "after": 7}],
        "east",
        {"reason": "why", "states": ["DI"], "service": "s"},
    ),
    ("backup", ["east", "/b/x.db"], "east", {"path": "/b/x.db"}),
    ("forget_broker", ["east"], "east", {}),
    ("drain_queue", ["east", "q"], "east/q", {}),
    (
        "purge_queue",
        ["east", "q", 7, "why"],
        "east/q",
        {"code": 7, "description": "why"},
    ),
    ("alter_endpoint", [{"port": 4032}], "endpoint", {"port": 4032}),
    ("confirm_clock", [], "clock", {}),
    ("hand_over", [], "stores", {}),
    ("release_group", ["east", ID], "east", {"group": "00010203-0405-0607-0809-0a0b0c0d0e0f"}),
    (
        "discard_group",
        ["east", ID, True, "why"],
        "east",
        {"group": "00010203-0405-0607-0809-0a0b0c0d0e0f", "everything": True, "reason": "why"},
    ),
    (
        "end_group",
        ["east", ID, 7, "text"],
        "east",
        {"group": "00010203-0405-0607-0809-0a0b0c0d0e0f", "code": 7, "description": "text"},
    ),
    (
        "edit_group",
        ["east", ID, SECRET],
        "east",
        {"group": "00010203-0405-0607-0809-0a0b0c0d0e0f"},
    ),
    ("cure_queue", ["east", "q", 7, "text"], "east/q", {}),
]


@pytest.mark.rule("SX-15")
def test_every_verb_of_administration_is_in_one_of_the_lists() -> None:
    every = {*admin.ADMIN_VERBS.values(), *admin.POISON_VERBS.values(), *PAIRING_VERBS.values()}
    lists: list[set[Any]] = [set(AUDITED) - {wire.CleanUp}, READING, BY_THEMSELVES, HARMLESS]
    assert set().union(*lists) == every
    assert sum(len(one) for one in lists) == len(every)


@pytest.mark.rule("SX-15", "SX-10")
@pytest.mark.parametrize(("verb", "args", "subject", "detail"), ROWS, ids=[r[0] for r in ROWS])
def test_an_entry_says_what_was_done_to_what(
    verb: str, args: list[Any], subject: str, detail: dict[str, object]
) -> None:
    done = performed(parse_request(None, verb, args), "own")
    assert done is not None
    assert (done.action, done.subject) == (Action(verb), subject)
    assert {name: value for name, value in done.detail.items() if value} == detail
    assert str(SECRET) not in str(done)


def test_every_verb_of_the_table_is_tried() -> None:
    assert {wire.NAMES[one] for one in AUDITED} == {verb for verb, *_ in ROWS}


@pytest.mark.rule("MAN-24", "SX-15")
def test_a_purge_of_three_batches_has_an_entry_at_its_beginning_and_one_at_its_end() -> None:
    entries = []
    for after, end, dialogs in ((None, 7, 7), (7, 9, 9), (9, None, 9)):
        verb = admin.PurgeQueue("east", "q", 7, "why", after)
        answer = {"dialogs": 2, "next": end, "total": {"dialogs": dialogs}}
        entries += [begun(verb, "own"), performed(verb, "own", answer)]
    assert [one.detail for one in entries if one is not None] == [
        {"code": 7, "description": "why", "phase": "begun"},
        {"code": 7, "description": "why", "phase": "done", "dialogs": 9},
    ]
    assert begun(admin.DrainQueue("east", "q"), "own") is None
