"""A body's hash holds it to its place."""

import pytest

from brokerd.ids import BodyKey, ConversationId
from brokerd.storage.hashes import (
    body_hash,
    is_large_sound,
    is_piece_sound,
    is_sound,
    large_hash,
    not_surely_sound,
    piece_hash,
)

HERE = ConversationId(b"c" * 16)


@pytest.mark.rule("REL-6")
@pytest.mark.parametrize(
    "place",
    [
        (ConversationId(b"d" * 16), True, 3, b"body"),
        (HERE, False, 3, b"body"),
        (HERE, True, 4, b"body"),
        (HERE, True, 3, b"bodY"),
        (HERE, True, -3, b"body"),
        (None, True, 3, b"body"),
        (HERE, True, 3, None),
    ],
)
def test_hash_is_of_one_body_in_one_place(place):
    stored = body_hash(HERE, True, 3, b"body")
    assert len(stored) == 8
    assert is_sound(HERE, True, 3, b"body", stored)
    conversation_id, from_initiator, sequence, body = place
    assert not is_sound(conversation_id, from_initiator, sequence, body, stored)


@pytest.mark.rule("REL-6")
def test_no_body_has_no_hash():
    assert is_sound(HERE, True, 3, None, None)
    assert not is_sound(HERE, True, 3, b"", None)


@pytest.mark.rule("REL-6")
def test_number_and_body_do_not_run_into_each_other():
    assert body_hash(HERE, True, 1, b"2.x") != body_hash(HERE, True, 12, b".x")


@pytest.mark.rule("REL-6")
@pytest.mark.parametrize("size", [16 * 1024 - 1, 16 * 1024, 100_000])
def test_bodies_of_any_size_are_hashed_whole(size):
    body = bytes(size)
    stored = body_hash(HERE, True, 3, body)
    assert is_sound(HERE, True, 3, body, stored)
    for at in (0, size // 2, size - 1):
        assert not is_sound(HERE, True, 3, body[:at] + b"x" + body[at + 1 :], stored)
    assert not is_sound(HERE, True, 3, body[:-1], stored)


@pytest.mark.rule("REL-33")
def test_hash_of_a_large_body_names_it_and_its_size():
    place = HERE, True, 3
    stored = large_hash(*place, BodyKey(7), 1000)
    assert is_large_sound(place, BodyKey(7), 1000, stored)
    assert not is_large_sound(place, BodyKey(7), 1001, stored)
    assert not is_large_sound(place, BodyKey(8), 1000, stored)
    assert not is_large_sound((HERE, True, 4), BodyKey(7), 1000, stored)


@pytest.mark.rule("REL-33")
def test_hash_of_a_piece_is_of_its_place_in_its_body():
    stored = piece_hash(BodyKey(7), 1, b"data")
    assert is_piece_sound(BodyKey(7), 1, b"data", stored)
    assert not is_piece_sound(BodyKey(7), 2, b"data", stored)
    assert not is_piece_sound(BodyKey(8), 1, b"data", stored)
    assert not is_piece_sound(BodyKey(7), 1, b"dat", stored)


# Written by BLAKE2b-128, as before revision 0016: the places of HERE, message 3, and of body 7.
OLD = bytes.fromhex("d189776407722ac7f086f1153d0b0a2f")
OLD_LARGE = bytes.fromhex("e6735506fd861f05a1cd7379cebf8560")
OLD_PIECE = bytes.fromhex("3f8f3c8e752d05a68c93c3e6a942016f")


@pytest.mark.rule("REL-6", "REL-29", "REL-33")
def test_what_an_older_version_wrote_is_sound_still():
    assert is_sound(HERE, True, 3, b"body", OLD)
    assert not is_sound(HERE, True, 3, b"bodY", OLD)
    assert not is_sound(HERE, False, 3, b"body", OLD)
    assert is_large_sound((HERE, True, 3), BodyKey(7), 1000, OLD_LARGE)
    assert not is_large_sound((HERE, True, 3), BodyKey(7), 1001, OLD_LARGE)
    assert is_piece_sound(BodyKey(7), 1, b"data", OLD_PIECE)
    assert not is_piece_sound(BodyKey(7), 2, b"data", OLD_PIECE)


@pytest.mark.rule("REL-6")
@pytest.mark.parametrize("is_outgoing", [True, False])
@pytest.mark.parametrize("is_initiator", [0, 1])
@pytest.mark.parametrize("sequence", [-2, -1, 0, 3, 2**62])
def test_a_page_is_looked_at_as_each_of_its_rows_is(is_outgoing, is_initiator, sequence):
    whose = HERE, bool(is_initiator) is is_outgoing, sequence
    body = bytes(20_000)
    bodies = [
        (body_hash(*whose, b"body"), b"body", HERE),
        (body_hash(*whose, b""), b"", HERE),
        (body_hash(*whose, body), body, HERE),
        (body_hash(*whose, b"bodY"), b"body", HERE),
        (body_hash(*whose, b"body"), b"body", None),
        (b"", b"body", HERE),
        (None, b"body", HERE),
        (None, None, HERE),
    ]
    between = (0,) * 7
    rows = [
        (7, sequence, *between, stored, body, 0, is_initiator, at) for stored, body, at in bodies
    ]
    unsure = not_surely_sound(rows, 1, is_outgoing=is_outgoing)
    assert unsure == [3, 4, 5, 6, 7]
    sound = [is_sound(row[-1], *whose[1:], row[10], row[9]) for row in rows]
    assert all(at in unsure or sound[at] for at in range(len(rows)))
    assert sound[7], "it has no body and needs no hash"
