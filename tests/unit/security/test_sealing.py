"""Sealing of bodies, acknowledgements and errors (SEC-34 to SEC-37)."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from brokerd.security.sealing import (
    AnswerKeys,
    NotAuthentic,
    SealingKeys,
    Secrets,
    answers_secret,
    derive,
    new_secrets,
)
from tests.unit.security.dialog_keys import CONVERSATION, numbers

VECTOR = json.loads((Path(__file__).parents[2] / "data/security/sealing.json").read_text("utf-8"))
SECRETS = new_secrets(bytes(32), CONVERSATION, numbers("secrets"))


def sides() -> tuple[SealingKeys, SealingKeys]:
    """Return the keys of both sides of one dialog."""
    return (
        SealingKeys(SECRETS, is_initiator=True, random=numbers("initiator")),
        SealingKeys(SECRETS, is_initiator=False, random=numbers("target")),
    )


@pytest.mark.rule("SEC-34", "SEC-35", "SX-5")
def test_known_keys_seal_as_the_vector_has_it() -> None:
    initiator, target = sides()
    assert SECRETS.body.hex() == VECTOR["body_secret"]
    assert SECRETS.answers.hex() == VECTOR["answers_secret"]
    assert initiator.key_id.hex() == VECTOR["key_id"]
    assert initiator.seal(b"header", 7, 2, b"body").hex() == VECTOR["sealed_by_initiator"]
    assert target.seal(b"header", 7, 2, b"body").hex() == VECTOR["sealed_by_target"]
    assert initiator.authenticate(b"ack").hex() == VECTOR["acknowledged_by_initiator"]
    assert target.authenticate(b"ack").hex() == VECTOR["acknowledged_by_target"]


@pytest.mark.rule("SEC-35")
def test_the_nonce_is_sequence_and_fragment() -> None:
    initiator, _ = sides()
    key = derive(SECRETS.body, b"brokerd dialog 1: bodies of the initiator", salt=initiator.key_id)
    nonce = (7).to_bytes(8, "big") + (2).to_bytes(4, "big")
    assert AESGCM(key).encrypt(nonce, b"body", b"header") == initiator.seal(
        b"header", 7, 2, b"body"
    )


@pytest.mark.rule("SEC-34", "SEC-35")
def test_each_side_opens_what_the_other_has_sealed_and_nothing_else() -> None:
    initiator, target = sides()
    sealed = initiator.seal(b"header", 7, 2, b"body")
    assert target.open(initiator.key_id, b"header", 7, 2, sealed) == b"body"
    for key_id, header, sequence, fragment in (
        (target.key_id, b"header", 7, 2),
        (initiator.key_id, b"Header", 7, 2),
        (initiator.key_id, b"header", 8, 2),
        (initiator.key_id, b"header", 7, 3),
    ):
        with pytest.raises(NotAuthentic):
            target.open(key_id, header, sequence, fragment, sealed)
    with pytest.raises(NotAuthentic):  # its own, sent back to it
        initiator.open(initiator.key_id, b"header", 7, 2, sealed)
    # What failed has not displaced the right key.
    assert target.open(initiator.key_id, b"header", 7, 2, sealed) == b"body"


@pytest.mark.rule("SEC-35")
def test_no_flipped_bit_is_opened() -> None:
    initiator, target = sides()
    sealed = initiator.seal(b"header", 0, 0, b"body")
    for at in range(len(sealed) * 8):
        flipped = bytearray(sealed)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(NotAuthentic):
            target.open(initiator.key_id, b"header", 0, 0, bytes(flipped))
    with pytest.raises(NotAuthentic):
        target.open(initiator.key_id, b"header", 0, 0, b"")


@pytest.mark.rule("SEC-34", "REL-15", "SX-5")
def test_each_load_of_a_dialog_seals_with_another_key() -> None:
    before, after = (SealingKeys(SECRETS, is_initiator=True, random=numbers(seed)) for seed in "ab")
    assert before.key_id != after.key_id
    assert before.seal(b"", 0, 0, b"body") != after.seal(b"", 0, 0, b"body")


@pytest.mark.rule("SEC-36")
def test_acknowledgements_count_only_from_the_far_side_of_the_same_dialog() -> None:
    initiator, target = sides()
    code = target.authenticate(b"ack")
    initiator.verify(b"ack", code)
    other = AnswerKeys(
        answers_secret(bytes(32), bytes(16)), is_initiator=True, random=numbers("other")
    )
    for keys, ack, given in (
        (target, b"ack", code),
        (initiator, b"Ack", code),
        (initiator, b"ack", code[:-1]),
        (initiator, b"ack", b""),
        (other, b"ack", code),
    ):
        with pytest.raises(NotAuthentic):
            keys.verify(ack, given)


@pytest.mark.rule("SEC-37")
def test_errors_count_only_from_the_far_side_of_the_same_dialog() -> None:
    initiator, target = sides()
    sealed = target.seal_error(b"header", b"error")
    assert initiator.open_error(b"header", sealed) == b"error"
    assert sealed != target.seal_error(b"header", b"error")
    for keys, header, given in (
        (target, b"header", sealed),
        (initiator, b"Header", sealed),
        (initiator, b"header", sealed[:-1]),
        (initiator, b"header", b"short"),
    ):
        with pytest.raises(NotAuthentic):
            keys.open_error(header, given)


@pytest.mark.rule("DLP-24")
def test_an_initiator_can_answer_for_a_dialog_that_it_has_forgotten() -> None:
    _, target = sides()
    again = AnswerKeys(
        answers_secret(bytes(32), CONVERSATION), is_initiator=True, random=numbers("again")
    )
    target.verify(b"ack", again.authenticate(b"ack"))
    again.verify(b"ack", target.authenticate(b"ack"))


@pytest.mark.rule("SEC-34")
def test_no_two_keys_of_a_dialog_are_the_same() -> None:
    same = Secrets(bytes(32), bytes(32))
    one, two = (SealingKeys(same, is_initiator=side, random=bytes) for side in (True, False))
    made = {one.seal(b"", 0, 0, b""), two.seal(b"", 0, 0, b"")}
    made |= {one.seal_error(b"", b"")[12:], two.seal_error(b"", b"")[12:]}
    assert len(made) == 4
    assert one.authenticate(b"") != two.authenticate(b"")
