"""What a grant says, and what it gives to whom."""

import pytest

from brokerd.clock import Instant
from brokerd.security.grants import (
    Entry,
    Grants,
    Origin,
    Permission,
    Rights,
    parse_grant,
    rights_of,
)

GRANTS = [
    parse_grant(text)
    for text in (
        "receive on main/desk to ann",
        "RECEIVE ON main/in* TO 1001",
        "send on urn:shop* to ann",
        "send on urn:news to public",
        "control on other to ann",
    )
]


@pytest.mark.rule("CLP-130")
@pytest.mark.parametrize(
    ("names", "queue", "allowed"),
    [
        (("ann",), "main/desk", True),
        (("ann",), "main/inbox", False),
        (("1001", "bob"), "main/inbox", True),
        (("1001", "bob"), "main/desk", False),
        (("ann",), "other/desk", True),
        ((), "main/desk", False),
    ],
)
def test_a_queue_is_received_from_by_whom_it_is_granted_to(
    names: tuple[str, ...], queue: str, allowed: bool
) -> None:
    broker, _, name = queue.partition("/")
    assert rights_of(GRANTS, names).may_receive(broker, name) is allowed


@pytest.mark.rule("CLP-130")
def test_what_public_has_everybody_has() -> None:
    ann, nobody = rights_of(GRANTS, ("ann",)), rights_of(GRANTS, ())
    assert ann.may_send("main", "urn:shop/2")
    assert ann.may_send("main", "urn:news")
    assert nobody.may_send("main", "urn:news")
    assert not nobody.may_send("main", "urn:shop/2")


@pytest.mark.rule("CLP-130", "DLG-23")
def test_control_of_a_broker_is_everything_there_and_nothing_elsewhere() -> None:
    ann = rights_of(GRANTS, ("ann",))
    assert ann.may_control("other")
    assert ann.may_send("other", "urn:whatever")
    assert not ann.may_control("main")
    assert rights_of(GRANTS, ("eve",)) == Rights(send=("urn:news",))


@pytest.mark.rule("CLP-130")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("receive main/desk to ann", "is not of the form"),
        ("read on main/desk to ann", "is not of the form"),
        ("receive on desk to ann", "of which broker"),
        ("control on main to", "is not of the form"),
        ("connect on main to public", "connect is granted on endpoint"),
        ("connect on endpoint to ann", "connect is granted to peer:NAME or public"),
        ("connect on endpoint to client:till", "send, receive, control, execute, but not connect"),
        ("control on main to peer:west", "connect, send, but not control"),
        ("execute on main to peer:west", "connect, send, but not execute"),
        ("send on urn:shop to group:ops", "is no principal"),
        ("send on urn:shop to peer:", "is no name for a peer"),
    ],
)
def test_a_grant_that_is_not_one_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_grant(text)


def entry(text: str) -> Entry:
    return Entry(
        grant=parse_grant(text), origin=Origin.ONLINE, granted_at=Instant(1), granted_by="ops"
    )


def granted(*texts: str, authenticates: bool = True) -> Grants:
    return Grants(map(parse_grant, texts), authenticates=authenticates)


@pytest.mark.rule("SX-23")
def test_control_is_not_execute_and_execute_is_nothing_without_control() -> None:
    rights = rights_of([parse_grant("control on main to ann")], ["ann"])
    assert rights.may_control("main")
    assert not rights.may_execute("main")
    rights = rights_of([parse_grant("execute on ma* to ann")], ["ann"])
    assert rights.may_execute("main")
    assert not rights.may_execute("other")
    assert not rights.may_control("main")
    assert not rights.may_receive("main", "desk")


@pytest.mark.rule("SEC-6", "SEC-7", "END-8")
def test_a_peer_connects_by_its_own_grant_or_by_that_of_public() -> None:
    grants = granted("connect on endpoint to peer:west")
    assert grants.may_connect("peer:west")
    assert not grants.may_connect("peer:east")
    assert not grants.may_connect(None)
    grants = granted("connect on endpoint to public")
    assert grants.may_connect("peer:east")
    assert grants.may_connect(None)
    assert not granted().may_connect("peer:west")
    assert not granted("send on * to peer:west").may_connect("peer:west")
    assert granted(authenticates=False).may_connect(None)


@pytest.mark.rule("SEC-50", "SEC-51", "SEC-52")
def test_a_dialog_of_another_instance_needs_send_and_only_send() -> None:
    grants = granted(
        "send on urn:shop* to peer:west",
        "send on urn:news to public",
        "control on * to public",
        "connect on endpoint to peer:east",
    )
    assert grants.may_deliver("peer:west", "urn:shop/2")
    assert grants.may_deliver("peer:west", "urn:news")
    assert not grants.may_deliver("peer:west", "urn:desk")
    assert not grants.may_deliver("peer:east", "urn:shop/2")
    assert grants.may_deliver(None, "urn:news")
    assert not grants.may_deliver(None, "urn:shop/2")


@pytest.mark.rule("SEC-50", "SEC-10")
@pytest.mark.parametrize(
    ("grants", "authenticates", "allowed"),
    [
        ((), False, True),
        ((), True, False),
        (("control on main to ann",), False, False),
        (("connect on endpoint to peer:west",), False, False),
        (("send on urn:shop to public",), False, True),
    ],
)
def test_only_an_open_endpoint_without_any_grant_admits_every_dialog(
    grants: tuple[str, ...], authenticates: bool, allowed: bool
) -> None:
    assert granted(*grants, authenticates=authenticates).may_deliver(None, "urn:shop") is allowed


@pytest.mark.rule("CLP-130", "SEC-50")
def test_revoking_the_last_grant_opens_nothing() -> None:
    grants = granted(authenticates=False)
    assert grants.rights(["ann"]) is None
    only = entry("send on urn:shop to ann")
    grants.add(only)
    assert grants.rights(["ann"]) == Rights(send=("urn:shop",))
    grants.remove(only.grant)
    assert grants.rights(["ann"]) == Rights()
    assert not grants.may_deliver(None, "urn:shop")
    after_a_start = granted(authenticates=False)
    after_a_start.load([], grants.audiences)
    assert after_a_start.rights(["ann"]) == Rights()
    assert not after_a_start.may_deliver(None, "urn:shop")


@pytest.mark.rule("CLP-130")
def test_grants_to_peers_do_not_limit_the_programs_of_this_machine() -> None:
    grants = granted("connect on endpoint to peer:west", "send on urn:shop to peer:west")
    assert grants.rights(["ann"]) is None
    assert not grants.lets_users_in
    grants.add(entry("send on urn:shop to client:till"))
    assert grants.rights(["ann"]) == Rights()
    assert not grants.lets_users_in
    grants.add(entry("send on urn:shop to ann"))
    assert grants.lets_users_in


@pytest.mark.rule("SX-3")
def test_an_answer_does_not_outlive_the_grant_it_came_from() -> None:
    grants, changes = granted(), list[int]()
    grants.watch(lambda: changes.append(len(grants.online)))
    west = entry("send on urn:shop to peer:west")
    assert not grants.may_deliver("peer:west", "urn:shop")
    grants.add(west)
    assert grants.may_deliver("peer:west", "urn:shop")
    grants.remove(west.grant)
    assert not grants.may_deliver("peer:west", "urn:shop")
    assert changes == [1, 0]


@pytest.mark.rule("CLP-130")
@pytest.mark.parametrize(
    ("permission", "on", "to"),
    [
        (Permission.SEND, "urn:shop", ["ann", "peer:west", "ops"]),
        (Permission.RECEIVE, "main/desk", ["bob", "ops"]),
        (Permission.RECEIVE, "other/desk", []),
        (Permission.CONTROL, "main", ["ops"]),
        (Permission.EXECUTE, "main", ["root2"]),
        (Permission.CONNECT, "endpoint", ["peer:west"]),
    ],
)
def test_who_can_lists_every_grant_that_gives_the_permission(
    permission: Permission, on: str, to: list[str]
) -> None:
    grants = granted("send on urn:* to ann", "receive on main/* to bob", "control on main to ops")
    grants.add(entry("send on urn:shop to peer:west"))
    grants.add(entry("connect on endpoint to peer:west"))
    grants.add(entry("execute on * to root2"))
    assert sorted(one.grant.to for one in grants.who_can(permission, on)) == sorted(to)


@pytest.mark.rule("CLP-130")
def test_a_principal_holds_its_own_grants_and_those_of_public() -> None:
    grants = granted("send on a to ann", "send on b to public")
    grants.add(entry("receive on main/desk to 1001"))
    assert [str(one.grant) for one in grants.held_by(["ann", "1001"])] == [
        "send on a to ann",
        "send on b to public",
        "receive on main/desk to 1001",
    ]
    assert [str(one.grant) for one in grants.open_to_public()] == ["send on b to public"]
    assert [one.origin for one in grants.held_by(["1001"])] == [Origin.SETTINGS, Origin.ONLINE]


@pytest.mark.rule("SX-3")
def test_rights_are_narrowed_when_one_grant_of_the_former_is_missing() -> None:
    ann = rights_of(GRANTS, ("ann",))
    assert ann.includes(rights_of(GRANTS, ("eve",)))
    assert not rights_of(GRANTS, ("eve",)).includes(ann)
    assert ann.includes(ann)
