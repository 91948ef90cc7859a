"""The form of the verbs of administration: what is checked before anybody acts on it."""

from typing import Any

import pytest

from brokerd.errors import BadRequest
from brokerd.protocol.admin_verbs import (
    ADMIN_VERBS,
    MOST_ROWS,
    POISON_VERBS,
    AlterEndpoint,
    Backup,
    CleanUpEndpoints,
    CleanUpOptions,
    ConfirmClock,
    CureQueue,
    Disable,
    DiscardGroup,
    DrainQueue,
    EditGroup,
    Enable,
    EndGroup,
    ErrorConversations,
    Exclusion,
    ExplainOptions,
    ExplainRoute,
    ForgetBroker,
    GrantPermission,
    HandOver,
    NewBroker,
    Ping,
    PingOptions,
    PurgeQueue,
    ReleaseGroup,
    RetryDestination,
    RevokePermission,
    View,
    ViewOptions,
    WhoCan,
)
from brokerd.protocol.client_verbs import parse_request
from brokerd.protocol.credential_verbs import (
    DropCertificate,
    InstallOptions,
    InstallPrincipal,
    MakeCertificates,
    OwnCertificates,
    ReplaceMasterKey,
    RevokePrincipal,
    RotateMasterKey,
    SwitchCertificates,
    SwitchOptions,
)

ID = bytes(range(16))


@pytest.mark.rule(
    "CLP-90", "CLP-91", "CLP-92", "CLP-93", "CLP-94", "CLP-95", "CLP-96", "CLP-97", "CLP-132"
)
@pytest.mark.rule("CLP-98", "CLP-117", "CLP-118", "CLP-131", "CLP-133")
@pytest.mark.parametrize(
    ("verb", "args", "parsed"),
    [
        ("view", ["queues"], View("queues", ViewOptions(limit=1000))),
        ("view", ["queues", {"limit": 10_000}], View("queues", ViewOptions(limit=MOST_ROWS))),
        (
            "view",
            ["queues", {"where": {}, "older_than": 0, "bodies": True}],
            View("queues", ViewOptions({}, 0.0, bodies=True)),
        ),
        (
            "view",
            ["queues", {"where": {"name": ["a", "b"]}, "limit": 5, "after": "x", "older_than": 2}],
            View("queues", ViewOptions({"name": ["a", "b"]}, 2.0, 5, "x")),
        ),
        ("enable", ["main"], Enable("main", Exclusion(force=False, wait=60.0))),
        ("disable", ["main", {"force": True}], Disable("main", Exclusion(force=True))),
        (
            "error_conversations",
            ["main", {"wait": 5}],
            ErrorConversations("main", Exclusion(wait=5.0)),
        ),
        ("new_broker", ["main", ID], NewBroker("main", ID)),
        ("new_broker", ["main", ID, {"force": True}], NewBroker("main", ID, Exclusion(force=True))),
        (
            "clean_up_endpoints",
            ["main", "why", {"older_than": 5, "service": "s", "far_service": "t", "batch": 10_000}],
            CleanUpEndpoints("main", "why", CleanUpOptions([], 5.0, "s", "t", MOST_ROWS)),
        ),
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
        ("drain_queue", ["main", "q"], DrainQueue("main", "q", 10.0)),
        ("drain_queue", ["main", "q", 0], DrainQueue("main", "q", 0.0)),
        ("purge_queue", ["main", "q", 7, "why"], PurgeQueue("main", "q", 7, "why", None, 250)),
        ("purge_queue", ["main", "q", 7, "why", 9, 1], PurgeQueue("main", "q", 7, "why", 9, 1)),
        ("confirm_clock", [], ConfirmClock()),
        ("hand_over", [], HandOver()),
        ("grant", ["send on a to b"], GrantPermission("send on a to b")),
        ("revoke", ["send on a to b"], RevokePermission("send on a to b")),
        ("who_can", [], WhoCan()),
        ("who_can", ["send", "a"], WhoCan("send", "a")),
        ("who_can", [None, None, "ann"], WhoCan(principal="ann")),
        ("explain_route", ["s"], ExplainRoute("s", ExplainOptions(hops=10))),
        (
            "explain_route",
            [None, {"handle": ID, "broker_id": ID, "reply": True}],
            ExplainRoute(None, ExplainOptions(ID, ID, reply=True)),
        ),
        (
            "explain_route",
            ["s", {"arriving": True, "hops": 255}],
            ExplainRoute("s", ExplainOptions(arriving=True, hops=255)),
        ),
        ("ping", ["s"], Ping("s", PingOptions(wait=10.0))),
        (
            "ping",
            ["s", {"broker_id": ID, "from_service": "t", "wait": 300}],
            Ping("s", PingOptions(ID, "t", 300.0)),
        ),
        ("install_principal", ["peer:west"], InstallPrincipal("peer:west")),
        (
            "install_principal",
            ["peer:west", {"certificates": [b"x"], "addresses": []}],
            InstallPrincipal("peer:west", InstallOptions([b"x"], [])),
        ),
        ("revoke_principal", ["client:c"], RevokePrincipal("client:c")),
        ("own_certificates", [], OwnCertificates()),
        ("make_certificates", [], MakeCertificates(("transport", "dialog"))),
        ("switch_certificates", [["dialog"]], SwitchCertificates(("dialog",))),
        ("drop_certificate", [bytes(32)], DropCertificate(bytes(32))),
        ("replace_master_key", [], ReplaceMasterKey()),
        ("rotate_master_key", [], RotateMasterKey()),
        ("own_certificates", [2.5], OwnCertificates(2.5)),
        (
            "switch_certificates",
            [["dialog"], {"wait": 600.0, "anyway": True}],
            SwitchCertificates(("dialog",), SwitchOptions(wait=600.0, anyway=True)),
        ),
        ("release_group", ["main", ID], ReleaseGroup("main", ID)),
        ("discard_group", ["main", ID, True, "why"], DiscardGroup("main", ID, True, "why")),
        ("end_group", ["main", ID, 1, "why"], EndGroup("main", ID, 1, "why")),
        ("edit_group", ["main", ID, None], EditGroup("main", ID, None)),
        ("edit_group", ["main", ID, b"x", "why", True], EditGroup("main", ID, b"x", "why", True)),
        ("cure_queue", ["main", "q", 1, "why"], CureQueue("main", "q", 1, "why")),
    ],
)
def test_what_is_of_the_form_is_taken(verb: str, args: list[Any], parsed: object) -> None:
    assert parse_request(None, verb, args) == parsed


@pytest.mark.rule("CLP-90", "CLP-91", "CLP-93", "CLP-94", "CLP-95", "CLP-117", "CLP-131", "CLP-6")
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
        ("drain_queue", ["main", "q", -1], "grace"),
        ("purge_queue", ["main", "q", 0, "why"], "code"),
        ("purge_queue", ["main", "q", 1, ""], "description"),
        ("purge_queue", ["main", "q", 1, "why", None, 1001], "batch"),
        ("confirm_clock", [1], "confirm_clock"),
        ("hand_over", [1], "hand_over"),
        ("grant", [], "grant"),
        ("grant", [""], "grant"),
        ("revoke", [7], "grant"),
        ("who_can", ["send", 7], "securable"),
        ("install_principal", [""], "name"),
        ("install_principal", ["peer:west", {"certificates": "x"}], "certificates"),
        ("install_principal", ["peer:west", {"certificates": [b""]}], "certificates"),
        ("install_principal", ["peer:west", {"certificates": [b"x"] * 17}], "certificates"),
        ("make_certificates", [[]], "purposes"),
        ("make_certificates", [["transport", "dialog", "dialog"]], "purposes"),
        ("switch_certificates", [["mail"]], "purposes"),
        ("switch_certificates", [["dialog"], {"wait": 601.0}], "wait"),
        ("own_certificates", [-1.0], "wait"),
        ("drop_certificate", [b"short"], "certificate_id"),
        ("explain_route", ["s", {"hops": 256}], "hops"),
        ("explain_route", ["s", {"handle": b"short"}], "handle"),
        ("ping", [None], "service"),
        ("ping", ["s", {"wait": 0}], "wait"),
        ("ping", ["s", {"wait": 301}], "wait"),
        ("clean_up_endpoints", ["main", "why", {"batch": 10_001}], "batch"),
        ("end_group", ["main", ID, 0, "why"], "code"),
        ("end_group", ["main", ID, 1, ""], "description"),
        ("cure_queue", ["main", "q", 0, "why"], "code"),
        ("edit_group", ["main", ID, "text"], "body"),
        ("release_group", ["main", b"short"], "group"),
        ("alter_endpoint", [], "alter_endpoint"),
        ("retry_destination", [7], "address"),
    ],
)
def test_what_is_not_is_refused_by_name(verb: str, args: list[Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        parse_request(None, verb, args)


@pytest.mark.rule("CLP-33")
@pytest.mark.parametrize("verb", sorted({*ADMIN_VERBS, *POISON_VERBS}))
def test_administration_comes_without_a_transaction(verb: str) -> None:
    with pytest.raises(BadRequest, match="without a transaction"):
        parse_request(1, verb, ["main"])
