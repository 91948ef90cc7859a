"""A body's hash holds it to its place."""

import pytest

from brokerd.ids import ConversationId
from brokerd.storage.hashes import body_hash, is_sound

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
    assert len(stored) == 16
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
