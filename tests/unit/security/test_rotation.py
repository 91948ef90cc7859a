"""Which certificates of a neighbour are accepted over its connection (SEC-64, SEC-65)."""

import msgspec
import pytest

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import InstanceId
from brokerd.security.certificates import DAYS, Certificate, make_certificate
from brokerd.security.credentials import Credentials, Installed, Kind, Principal, Purpose
from brokerd.security.dialog_certificates import make_dialog_certificate
from brokerd.security.rotation import (
    LONGEST,
    MOST_KEPT,
    Changes,
    Ends,
    Offered,
    compare,
    prove,
    read_offered,
)

DAY = 24 * 3600 * 1_000_000
NOW = Instant(1_800_000_000_000_000)
WEST, EAST, NORTH = (InstanceId(bytes([number]) * 16) for number in (1, 2, 3))
ENDS = Ends(WEST, EAST, b"w" * 32, b"e" * 32)
TRANSPORT, DIALOG = Purpose.TRANSPORT, Purpose.DIALOG
MAKERS = {TRANSPORT: make_certificate, DIALOG: make_dialog_certificate}


def made(purpose: Purpose, *, day: int = 0, days: int = DAYS) -> Certificate:
    return MAKERS[purpose]("west", now=Instant(NOW + day * DAY), days=days)[0]


def credentials(*installed: Certificate, purpose: Purpose = TRANSPORT) -> Credentials:
    west = Principal(name="peer:west", kind=Kind.PEER, created_at=NOW, created_by="")
    return Credentials([west], [kept(one, purpose) for one in installed])


def kept(one: Certificate, purpose: Purpose = TRANSPORT, owner: str = "peer:west") -> Installed:
    return Installed(certificate=one, purpose=purpose, principal=owner, installed_at=NOW)


def compared(
    known: Credentials, shown_by: Certificate, *listed: Certificate, purpose: Purpose = TRANSPORT
) -> Changes:
    offered = [Offered(purpose, one) for one in listed]
    return compare(known, "peer:west", shown_by.id, offered, Instant(NOW + 100 * DAY))


@pytest.mark.rule("SEC-64")
@pytest.mark.parametrize("purpose", list(Purpose))
def test_only_who_has_the_key_can_show_a_certificate_and_only_to_whom_it_was_meant(
    purpose: Purpose,
) -> None:
    certificate, private = MAKERS[purpose]("west", now=NOW)
    one = Installed(certificate=certificate, purpose=purpose, principal=None, installed_at=NOW)
    proof = prove(one, private, ENDS)
    assert proof is not None
    found = read_offered(purpose, certificate.encoded, proof, ENDS)
    assert found == Offered(purpose, certificate)
    replace = msgspec.structs.replace
    for other in (
        replace(ENDS, sender=NORTH),
        replace(ENDS, receiver=NORTH),
        replace(ENDS, sender_certificate=b"n" * 32),
        replace(ENDS, receiver_certificate=b"n" * 32),
        Ends(EAST, WEST, ENDS.receiver_certificate, ENDS.sender_certificate),
    ):
        with pytest.raises(InvalidArgument, match="has not proven"):
            read_offered(purpose, certificate.encoded, proof, other)
    _, another = MAKERS[purpose]("west", now=NOW)
    forged = prove(one, another, ENDS)
    assert forged is not None
    with pytest.raises(InvalidArgument, match="has not proven"):
        read_offered(purpose, certificate.encoded, forged, ENDS)


ED25519, UNKNOWN_KIND = b"\x06\x03\x2b\x65\x70\x03", b"\x06\x03\x2b\x65\x01\x03"
"""The head of an Ed25519 key in a certificate, and that of a key of a kind that nobody knows."""


@pytest.mark.rule("SEC-64", "REL-32")
def test_a_key_of_a_kind_that_nobody_knows_is_refused() -> None:
    certificate, _ = make_certificate("west", now=NOW)
    odd = certificate.encoded.replace(ED25519, UNKNOWN_KIND)
    assert odd != certificate.encoded
    with pytest.raises(InvalidArgument, match="its key cannot be read"):
        read_offered(TRANSPORT, odd, bytes(64), ENDS)


@pytest.mark.rule("SEC-64")
def test_a_newer_certificate_is_installed_beside_the_one_in_use() -> None:
    old, new = made(TRANSPORT), made(TRANSPORT, day=90)
    found = compared(credentials(old), old, old, new)
    assert found.new == (Offered(TRANSPORT, new),)
    assert (found.gone, found.refusal) == ((), "")
    assert set(found.kept) == {old.id, new.id}


@pytest.mark.rule("SEC-65")
def test_an_older_one_that_was_removed_here_does_not_come_back() -> None:
    old, new = made(TRANSPORT), made(TRANSPORT, day=90)
    found = compared(credentials(new), new, old, new)
    assert (found.new, found.gone, found.kept) == ((), (), (new.id,))


@pytest.mark.rule("SEC-64", "SEC-65")
def test_what_its_owner_has_dropped_goes_but_not_by_the_word_of_the_old_one() -> None:
    old, new = made(TRANSPORT), made(TRANSPORT, day=90)
    known = credentials(old, new)
    assert compared(known, new, new).gone == (old.id,)
    assert compared(known, old, new).gone == ()
    assert compared(known, old, old).gone == ()
    assert compared(known, new).gone == ()
    keys = credentials(
        made(DIALOG), last := made(DIALOG, day=90), purpose=DIALOG
    )  # of dialogs, whatever the connection was opened with
    assert len(compared(keys, old, last, purpose=DIALOG).gone) == 1
    assert compared(keys, old, purpose=DIALOG).gone == ()


@pytest.mark.rule("SEC-65")
def test_what_is_refused_is_refused_with_a_reason() -> None:
    old = made(TRANSPORT)
    known = credentials(old)
    long = made(TRANSPORT, day=90, days=DAYS + 3 + 10)
    assert long.not_after - (NOW + 100 * DAY) > LONGEST
    later, over = made(TRANSPORT, day=102), made(TRANSPORT, day=1, days=2)
    for one, why in ((long, "valid for longer"), (later, "only from"), (over, "expired")):
        found = compared(known, old, old, one)
        assert (found.new, found.kept) == ((), (old.id,))
        assert why in found.refusal
    other = made(TRANSPORT, day=90)
    known.principals["peer:x"] = known.principals["peer:west"]
    known.put(kept(other, owner="peer:x"))
    found = compared(known, old, old, other)
    assert "belongs to another" in found.refusal
    assert found.kept == (old.id,)


@pytest.mark.rule("SEC-65")
def test_a_peer_has_only_so_many() -> None:
    first, *more = [made(TRANSPORT, day=number) for number in range(MOST_KEPT + 1)]
    found = compared(credentials(first), first, first, *more)
    assert len(found.new) == MOST_KEPT - 1
    assert "certificate drop" in found.refusal
