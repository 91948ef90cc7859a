"""The security header: made by an initiator, read by the target, and by nobody else."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.clock import SECOND, Instant
from brokerd.errors import NoMasterKey
from brokerd.security.dialog_certificates import DialogCertificate, PrivateKeys
from brokerd.security.dialog_kinds import Kind
from brokerd.security.kept_keys import KeptKeys, unwrap
from brokerd.security.key_agreement import (
    KeyAgreement,
    Place,
    SecurityHeader,
    _context,
    read_header,
)
from brokerd.security.master_key import MasterKey
from brokerd.security.sealing import NotAuthentic, Secrets, new_secrets
from tests.unit.security.dialog_keys import CONVERSATION, NOW, PLACE, certificate, numbers

VECTOR = json.loads(
    (Path(__file__).parents[2] / "data/security/key_agreement.json").read_text("utf-8")
)
EAST, EAST_KEYS = certificate("east")
WEST, WEST_KEYS = certificate("west")
SECRETS = new_secrets(bytes(32), CONVERSATION, numbers("secrets"))


def make(*, anonymous: bool = False, agreement: KeyAgreement | None = None) -> bytes:
    """Return the header of a dialog from east to west."""
    return (agreement or KeyAgreement(numbers("headers"))).make_header(
        SECRETS,
        PLACE,
        sender=None if anonymous else (EAST, EAST_KEYS),
        receiver=WEST,
        now=NOW,
    )


def read(
    encoded: bytes,
    *,
    place: Place = PLACE,
    sender: DialogCertificate | None = EAST,
    keys: PrivateKeys = WEST_KEYS,
) -> Secrets:
    """Return the secrets of a header, as west reads it."""
    return KeyAgreement(numbers("west")).read_secrets(
        read_header(encoded), place, sender=sender, keys=keys
    )


@pytest.mark.rule("SEC-32", "SEC-33", "SX-5")
@pytest.mark.parametrize("kind", ["full", "anonymous"])
def test_known_keys_make_the_header_of_the_vector(kind: str) -> None:
    encoded = make(anonymous=kind == "anonymous")
    assert encoded.hex() == VECTOR[kind]
    assert read(encoded, sender=None if kind == "anonymous" else EAST) == SECRETS


@pytest.mark.rule("SEC-33", "SEC-29")
@pytest.mark.parametrize("anonymous", [False, True])
def test_no_flipped_bit_of_a_header_is_read(anonymous: bool) -> None:
    encoded = make(anonymous=anonymous)
    for at in range(len(encoded) * 8):
        flipped = bytearray(encoded)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(NotAuthentic):
            read(bytes(flipped), sender=None if anonymous else EAST)


@pytest.mark.rule("SEC-32", "SEC-33")
@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize(
    "field", ["conversation_id", "from_service", "to_service", "from_broker", "contract"]
)
def test_a_header_holds_for_one_dialog_only(field: str, anonymous: bool) -> None:
    value = getattr(PLACE, field)
    other = msgspec.structs.replace(PLACE, **{field: value[:-1] + value[:1]})
    with pytest.raises(NotAuthentic):
        read(make(anonymous=anonymous), place=other, sender=None if anonymous else EAST)


@pytest.mark.rule("SEC-19", "SX-7")
def test_only_the_named_receiver_reads_and_only_the_named_sender_counts() -> None:
    other, other_keys = certificate("other")
    with pytest.raises(NotAuthentic):
        read(make(), keys=other_keys)
    with pytest.raises(NotAuthentic):
        read(make(), sender=other)
    with pytest.raises(NotAuthentic):  # signed, but read as if it was not
        read(make(), sender=None)
    with pytest.raises(NotAuthentic):  # anonymous, but taken for east's
        read(make(anonymous=True), sender=EAST)


@pytest.mark.rule("SEC-33")
def test_a_signature_cannot_be_taken_off() -> None:
    header = read_header(make())
    bare = msgspec.structs.replace(header, sender=b"", signature=b"")
    with pytest.raises(NotAuthentic):
        read(msgspec.msgpack.encode(bare), sender=None)


@pytest.mark.rule("SEC-27", "SEC-32")
def test_a_key_exchange_key_serves_a_pair_for_four_hours() -> None:
    agreement = KeyAgreement(numbers("west"))

    def ephemeral(after: int, receiver: DialogCertificate = WEST) -> bytes:
        at = Instant(NOW + after * SECOND)
        made = agreement.make_header(SECRETS, PLACE, sender=None, receiver=receiver, now=at)
        return read_header(made).ephemeral

    first = ephemeral(0)
    assert ephemeral(4 * 3600 - 1) == first
    assert ephemeral(0, EAST) != first
    assert ephemeral(4 * 3600) != first
    anonymous, full = read_header(make(anonymous=True)), read_header(make(agreement=agreement))
    assert anonymous.ephemeral != full.ephemeral


@pytest.mark.rule("SEC-27", "SEC-33")
def test_the_initiator_is_proven_once_for_each_key_exchange_key() -> None:
    agreement, reader = KeyAgreement(numbers("headers")), KeyAgreement(numbers("west"))
    first, second = (read_header(make(agreement=agreement)) for _ in range(2))
    assert first.signature == second.signature
    assert first.wrapped != second.wrapped
    forged = msgspec.structs.replace(second, signature=bytes(64))
    for _ in range(2):  # before the key is known, and afterwards
        with pytest.raises(NotAuthentic):
            reader.read_secrets(forged, PLACE, sender=EAST, keys=WEST_KEYS)
        for one in (first, second):
            assert reader.read_secrets(one, PLACE, sender=EAST, keys=WEST_KEYS) == SECRETS


@pytest.mark.rule("SEC-33")
def test_a_known_key_exchange_key_is_not_taken_under_a_later_time() -> None:
    """A thief of the target's key could otherwise use what he has seen for ever."""
    reader = KeyAgreement(numbers("west"))
    first = read_header(make())
    assert reader.read_secrets(first, PLACE, sender=EAST, keys=WEST_KEYS) == SECRETS
    reused = reader._known[EAST.id + WEST.id + first.ephemeral].cipher  # what the thief can compute
    at = Instant(NOW + 24 * 3600 * SECOND)
    context = _context(PLACE, EAST.id, WEST.id, first.ephemeral, at, at)
    wrapped = bytes(12) + reused.encrypt(bytes(12), SECRETS.body + SECRETS.answers, context)
    later = msgspec.structs.replace(first, agreed_at=at, made_at=at, wrapped=wrapped)
    assert read_header(msgspec.msgpack.encode(later)) == later
    with pytest.raises(NotAuthentic):
        reader.read_secrets(later, PLACE, sender=EAST, keys=WEST_KEYS)


@pytest.mark.rule("SEC-33")
@pytest.mark.parametrize(
    ("seconds", "is_read"), [(0, True), (4 * 3600 + 301, False), (-301, False)]
)
def test_a_key_exchange_key_is_taken_for_as_long_as_it_serves(seconds: int, is_read: bool) -> None:
    header = read_header(make())
    later = msgspec.structs.replace(header, made_at=Instant(header.made_at + seconds * SECOND))
    if is_read:
        assert read_header(msgspec.msgpack.encode(later)) == later
    else:
        with pytest.raises(NotAuthentic):
            read_header(msgspec.msgpack.encode(later))


@pytest.mark.rule("SEC-33")
@given(st.binary(max_size=600))
def test_anything_else_is_no_header(data: bytes) -> None:
    with pytest.raises(NotAuthentic):
        read_header(data)


@pytest.mark.rule("SEC-33")
def test_a_header_of_wrong_sizes_is_refused() -> None:
    good = read_header(make())
    for change in (
        {"version": 1},
        {"sender": b"x"},
        {"receiver": b""},
        {"ephemeral": bytes(31)},
        {"wrapped": good.wrapped + b"x"},
        {"signature": b""},
    ):
        other: SecurityHeader = msgspec.structs.replace(good, **change)
        with pytest.raises(NotAuthentic):
            read_header(msgspec.msgpack.encode(other))


@pytest.mark.rule("SEC-38")
def test_kept_keys_are_read_with_the_key_of_their_broker_for_their_own_dialog_only() -> None:
    kept = KeptKeys(Kind.FULL, SECRETS, "peer:west")
    key, other = (MasterKey(bytes([n]) * 32, numbers("master")) for n in (1, 2))
    wrapped = kept.wrap(key, CONVERSATION, is_initiator=True)
    assert SECRETS.body not in wrapped
    assert unwrap(wrapped, key, CONVERSATION, is_initiator=True) == kept
    for data, unwrapped_by, conversation, side in (
        (wrapped, other, CONVERSATION, True),
        (wrapped, key, bytes(16), True),
        (wrapped, key, CONVERSATION, False),
        (wrapped[:-1], key, CONVERSATION, True),
        (b"", key, CONVERSATION, True),
    ):
        with pytest.raises(NoMasterKey):
            unwrap(data, unwrapped_by, conversation, is_initiator=side)
