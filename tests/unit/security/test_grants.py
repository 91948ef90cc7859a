"""What a grant says, and what it gives to whom."""

import pytest

from brokerd.security.grants import Rights, parse_grant, rights_of

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
    ],
)
def test_a_grant_that_is_not_one_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_grant(text)
