"""The form of the verbs of administration: what is checked before anybody acts on it."""

from typing import Any

import pytest

from brokerd.errors import BadRequest
from brokerd.protocol.admin_verbs import (
    MOST_ROWS,
    AlterEndpoint,
    Backup,
    CleanUpEndpoints,
    CleanUpOptions,
    Disable,
    Enable,
    ErrorConversations,
    Exclusion,
    ForgetBroker,
    NewBroker,
    RetryDestination,
    View,
    ViewOptions,
)
from brokerd.protocol.client_verbs import parse_request

ID = bytes(range(16))


@pytest.mark.rule(
    "CLP-90", "CLP-91", "CLP-92", "CLP-93", "CLP-94", "CLP-95", "CLP-96", "CLP-97", "CLP-132"
)
@pytest.mark.parametrize(
    ("verb", "args", "parsed"),
    [
        ("view", ["queues"], View("queues")),
        (
            "view",
            ["queues", {"where": {"name": ["a", "b"]}, "limit": 5, "after": "x", "older_than": 2}],
            View("queues", ViewOptions({"name": ["a", "b"]}, 2.0, 5, "x")),
        ),
        ("enable", ["main"], Enable("main")),
        ("disable", ["main", {"force": True}], Disable("main", Exclusion(force=True))),
        (
            "error_conversations",
            ["main", {"wait": 5}],
            ErrorConversations("main", Exclusion(wait=5.0)),
        ),
        ("new_broker", ["main", ID], NewBroker("main", ID)),
        (
            "clean_up_endpoints",
            ["main", "why", {"states": ["DI"], "dry_run": True, "after": 7}],
            CleanUpEndpoints("main", "why", CleanUpOptions(states=["DI"], dry_run=True, after=7)),
        ),
        ("backup", ["main", "/copy.db"], Backup("main", "/copy.db")),
        ("forget_broker", ["east"], ForgetBroker("east")),
        ("alter_endpoint", [{"port": 4032}], AlterEndpoint({"port": 4032})),
        ("retry_destination", [], RetryDestination()),
        ("retry_destination", ["tcp://a:1"], RetryDestination("tcp://a:1")),
    ],
)
def test_what_is_of_the_form_is_taken(verb: str, args: list[Any], parsed: object) -> None:
    assert parse_request(None, verb, args) == parsed


@pytest.mark.rule("CLP-90", "CLP-91", "CLP-93", "CLP-94", "CLP-95", "CLP-6")
@pytest.mark.parametrize(
    ("verb", "args", "said"),
    [
        ("view", [], "view"),
        ("view", ["queues", {"limit": 0}], "limit"),
        ("view", ["queues", {"limit": MOST_ROWS + 1}], "limit"),
        ("view", ["queues", {"colour": 1}], "colour"),
        ("view", ["queues", {"older_than": -1}], "older_than"),
        ("enable", [7], "broker"),
        ("disable", ["main", {"wait": -1}], "wait"),
        ("new_broker", ["main"], "new_broker"),
        ("new_broker", ["main", b"short"], "broker_id"),
        ("clean_up_endpoints", ["main", ""], "reason"),
        ("clean_up_endpoints", ["main"], "clean_up_endpoints"),
        ("backup", ["main", ""], "path"),
        ("forget_broker", [], "forget_broker"),
    ],
)
def test_what_is_not_is_refused_by_name(verb: str, args: list[Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        parse_request(None, verb, args)


@pytest.mark.rule("CLP-33")
@pytest.mark.parametrize("verb", ["view", "enable", "new_broker", "clean_up_endpoints", "backup"])
def test_administration_comes_without_a_transaction(verb: str) -> None:
    with pytest.raises(BadRequest, match="without a transaction"):
        parse_request(1, verb, ["main"])
