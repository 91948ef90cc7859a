"""Credentials: who owns which certificate, and which one is used."""

import pytest

from brokerd.clock import SECOND, Instant
from brokerd.errors import InvalidArgument, ObjectNotFound
from brokerd.ids import InstanceId
from brokerd.security.certificates import Certificate, make_certificate
from brokerd.security.credentials import (
    Credentials,
    Installed,
    Kind,
    Principal,
    Purpose,
    principal_name,
)

NOW = Instant(1_800_000_000 * SECOND)
DAY = 86_400 * SECOND


def made(days: int = 90, *, at: Instant = NOW) -> Certificate:
    return make_certificate("west", now=at, days=days)[0]


def peer(name: str, *, instance: bytes | None = None, addresses: tuple[str, ...] = ()) -> Principal:
    return Principal(
        name=f"peer:{name}",
        kind=Kind.PEER,
        created_at=NOW,
        created_by="root",
        instance_id=None if instance is None else InstanceId(instance),
        addresses=addresses,
    )


def installed(
    certificate: Certificate,
    principal: str | None,
    purpose: Purpose = Purpose.TRANSPORT,
    *,
    is_active: bool = True,
) -> Installed:
    return Installed(
        certificate=certificate,
        purpose=purpose,
        principal=principal,
        installed_at=NOW,
        is_active=is_active,
    )


@pytest.mark.rule("SEC-4")
def test_the_owner_of_the_certificate_is_who_it_is_installed_for() -> None:
    west, east = made(), made()
    known = Credentials(
        [peer("west"), peer("east")], [installed(west, "peer:west"), installed(east, "peer:east")]
    )
    assert known.owner(west.encoded, Purpose.TRANSPORT, NOW).name == "peer:west"
    assert known.owner(east.encoded, Purpose.TRANSPORT, NOW).name == "peer:east"
    with pytest.raises(ObjectNotFound):
        known.owner(made().encoded, Purpose.TRANSPORT, NOW)
    with pytest.raises(ObjectNotFound):
        known.owner(west.encoded, Purpose.DIALOG, NOW)


@pytest.mark.rule("SEC-8")
def test_an_expired_certificate_proves_nobody() -> None:
    west = made(days=1)
    known = Credentials([peer("west")], [installed(west, "peer:west")])
    with pytest.raises(InvalidArgument, match="expired"):
        known.owner(west.encoded, Purpose.TRANSPORT, Instant(NOW + 2 * DAY))


@pytest.mark.rule("SEC-9")
def test_two_certificates_of_one_owner_are_valid_at_a_time() -> None:
    old, new = made(), made()
    known = Credentials([peer("west")], [installed(old, "peer:west"), installed(new, "peer:west")])
    assert {known.owner(one.encoded, Purpose.TRANSPORT, NOW).name for one in (old, new)} == {
        "peer:west"
    }
    known.remove_certificate(old.id)
    with pytest.raises(ObjectNotFound):
        known.owner(old.encoded, Purpose.TRANSPORT, NOW)


@pytest.mark.rule("SEC-21", "SEC-22")
def test_of_several_the_active_and_valid_one_that_expires_last_is_used() -> None:
    short, long, passive, future = made(10), made(20), made(30), made(40, at=Instant(NOW + DAY))
    for owner in (None, "peer:west"):
        known = Credentials(
            [peer("west")],
            [
                installed(short, owner, Purpose.DIALOG),
                installed(long, owner, Purpose.DIALOG),
                installed(passive, owner, Purpose.DIALOG, is_active=False),
                installed(future, owner, Purpose.DIALOG),
                installed(made(50), owner, Purpose.TRANSPORT),
            ],
        )
        best = (
            known.own(Purpose.DIALOG, NOW)
            if owner is None
            else known.of_principal(owner, Purpose.DIALOG, NOW)
        )
        assert best is not None
        assert best.certificate == long


@pytest.mark.rule("SEC-23")
def test_a_certificate_that_is_not_active_still_proves_its_owner() -> None:
    west = made()
    known = Credentials(
        [peer("west")], [installed(west, "peer:west", Purpose.DIALOG, is_active=False)]
    )
    assert known.owner(west.encoded, Purpose.DIALOG, NOW).name == "peer:west"


@pytest.mark.rule("SEC-55")
def test_an_instance_and_an_address_belong_to_one_principal() -> None:
    address = "tcp://west:4022"
    known = Credentials([peer("west", instance=b"W" * 16, addresses=(address,)), peer("east")])
    assert known.bound_to(InstanceId(b"W" * 16)) == known.principals["peer:west"]
    assert known.bound_to(InstanceId(b"E" * 16)) is None
    assert known.server_of(address) == known.principals["peer:west"]
    assert known.server_of("tcp://east:4022") is None


def test_removing_a_principal_removes_its_certificates_and_calls_the_watchers() -> None:
    west = made()
    known = Credentials([peer("west")], [installed(west, "peer:west"), installed(made(), None)])
    seen: list[int] = []
    known.watch(lambda: seen.append(known.version))
    known.remove_principal("peer:west")
    assert known.principals == {}
    assert [one.principal for one in known.certificates.values()] == [None]
    known.put(peer("west"))
    assert seen == [1, 2]


@pytest.mark.rule("SX-7")
@pytest.mark.parametrize("bad", ["", "a" * 65, "peer:west", "we st", "-west", "wést"])
def test_no_principal_can_be_named_like_another_kind(bad: str) -> None:
    assert principal_name(Kind.PEER, "west") == "peer:west"
    with pytest.raises(InvalidArgument, match="no name for a peer"):
        principal_name(Kind.PEER, bad)
