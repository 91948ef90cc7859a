"""Codes of a pairing, their proofs, and who a far end may become."""

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import InstanceId
from brokerd.security.certificates import make_certificate
from brokerd.security.credentials import Credentials, Installed, Kind, Principal, Purpose
from brokerd.security.pairing import (
    LIFETIME,
    MOST_WRONG,
    Acquaintance,
    Code,
    Invitation,
    Phase,
    Side,
    choose_principal,
    outdated,
    prove,
    read_code,
)

NOW = Instant(1_800_000_000_000_000)
EAST, _ = make_certificate("east", now=NOW)
WEST, _ = make_certificate("west", now=NOW)
OTHER, _ = make_certificate("west", now=NOW)
SECRET = bytes(range(16))
CODE = Code("10.0.0.7", 4022, EAST.id[:16], SECRET)
HOSTS = ["10.0.0.7", "::1", "2001:db8::7", "east.example", "e", "x" * 253]


@pytest.mark.rule("SEC-60")
@pytest.mark.parametrize("host", HOSTS)
def test_a_code_says_what_it_was_made_of_however_it_is_copied(host: str) -> None:
    code = Code(host, 65535, EAST.id[:16], SECRET)
    text = code.text
    assert not set(text) & set("ILOU")
    for copied in (text, text.lower(), text.replace("-", ""), f"  {text.replace('-', ' ')}\n"):
        assert read_code(copied) == code
    assert read_code(text.replace("0", "o").replace("1", "l")) == code
    assert SECRET.hex() not in repr(code)
    assert str(SECRET) not in repr(code)


@pytest.mark.rule("SEC-60")
def test_every_wrong_letter_is_noticed() -> None:
    text = CODE.text
    rng = random.Random(1)
    for at, letter in enumerate(text):
        if letter == "-":
            continue
        wrong = rng.choice([one for one in "0123456789ABCDEFGHJKMNPQRSTVWXYZ" if one != letter])
        with pytest.raises(InvalidArgument, match=r"mistyped|no pairing code"):
            read_code(text[:at] + wrong + text[at + 1 :])
    for cut in (text[:-1], text[1:], text[:30], "", text + text, text[:-1] + "U", f"{text}\u00e9"):
        with pytest.raises(InvalidArgument, match=r"mistyped|no pairing code|not known here"):
            read_code(cut)


@pytest.mark.rule("SEC-60")
@given(st.text(alphabet=string.printable, max_size=1200))
def test_any_text_is_refused_in_words(text: str) -> None:
    with pytest.raises(InvalidArgument):
        read_code(text)


@pytest.mark.rule("SEC-60", "SEC-62")
def test_a_proof_is_of_one_side_one_code_and_both_certificates() -> None:
    made = {
        prove(secret, side, inviting=one, joining=two)
        for secret in (SECRET, SECRET[::-1])
        for side in Side
        for one in (EAST, WEST)
        for two in (EAST, WEST, OTHER)
    }
    assert len(made) == 2 * 2 * 2 * 3
    assert CODE.is_of(EAST)
    assert not CODE.is_of(WEST)


def invitation() -> Invitation:
    return Invitation(CODE, EAST, 100.0)


def right() -> bytes:
    return prove(SECRET, Side.JOINING, inviting=EAST, joining=WEST)


@pytest.mark.rule("SEC-60", "SEC-62")
def test_a_right_proof_is_answered_by_another_and_the_code_is_in_use() -> None:
    one = invitation()
    answer = one.attempt(right(), WEST, 101.0)
    assert answer == prove(SECRET, Side.INVITING, inviting=EAST, joining=WEST)
    assert answer != right()
    assert one.phase(101.0) is Phase.IN_USE
    assert one.attempt(right(), WEST, 101.0) is None
    one.failed()
    assert one.phase(102.0) is Phase.WAITING
    assert one.attempt(right(), WEST, 102.0) == answer
    one.succeeded()
    assert one.attempt(right(), WEST, 103.0) is None
    assert one.phase(1e9) is Phase.USED


@pytest.mark.rule("SEC-60", "SEC-62")
def test_a_code_dies_of_wrong_proofs_of_age_and_of_its_maker() -> None:
    guessed = invitation()
    for wrong in range(MOST_WRONG):
        assert guessed.phase(100.0) is Phase.WAITING
        proof = right() if wrong % 2 else bytes(32)
        assert guessed.attempt(proof, OTHER, 100.0) is None
    assert guessed.phase(100.0) is Phase.GUESSED
    assert guessed.attempt(right(), WEST, 100.0) is None
    old = invitation()
    assert old.attempt(right(), WEST, 100.0 + LIFETIME) is None
    assert old.phase(100.0 + LIFETIME) is Phase.EXPIRED
    cancelled = invitation()
    cancelled.cancel()
    assert cancelled.attempt(right(), WEST, 100.0) is None
    assert cancelled.phase(100.0) is Phase.CANCELLED


# Who the far end becomes.

ONE, TWO = InstanceId(b"1" * 16), InstanceId(b"2" * 16)


def said(**changed: object) -> Acquaintance:
    usual = {"name": "west", "instance_id": ONE, "address": "tcp://w:1", "certificate": WEST}
    return Acquaintance(**(usual | changed))  # type: ignore[arg-type]


def known(*, instance: InstanceId | None = ONE, addresses: tuple[str, ...] = ()) -> Credentials:
    peer = Principal(
        name="peer:west",
        kind=Kind.PEER,
        created_at=NOW,
        created_by="root",
        instance_id=instance,
        addresses=addresses,
    )
    installed = Installed(
        certificate=WEST, purpose=Purpose.TRANSPORT, principal="peer:west", installed_at=NOW
    )
    own = Installed(certificate=EAST, purpose=Purpose.TRANSPORT, principal=None, installed_at=NOW)
    return Credentials([peer], [installed, own])


@pytest.mark.rule("SEC-61")
def test_a_new_peer_has_the_name_that_it_says_or_that_was_chosen() -> None:
    assert choose_principal(Credentials(), said(), None) == ("peer:west", None)
    assert choose_principal(Credentials(), said(), "mill") == ("peer:mill", None)
    with pytest.raises(InvalidArgument, match="no name"):
        choose_principal(Credentials(), said(name="../west"), None)


@pytest.mark.rule("SEC-61")
def test_a_peer_that_comes_again_is_known_by_its_certificate_or_its_name() -> None:
    here = known()
    assert choose_principal(here, said(), None)[0] == "peer:west"
    assert choose_principal(here, said(name="mill"), None)[0] == "peer:west"
    assert choose_principal(here, said(certificate=OTHER), "west")[0] == "peer:west"
    assert outdated(here, "peer:west", OTHER.id) == (WEST.id,)
    assert outdated(here, "peer:west", WEST.id) == ()


@pytest.mark.rule("SEC-61")
@pytest.mark.parametrize(
    ("one", "name", "why"),
    [
        (said(certificate=OTHER), None, "another certificate"),
        (said(certificate=OTHER, instance_id=TWO), None, "another certificate"),
        (said(), "mill", "is peer:west here"),
        (said(instance_id=TWO), "mill", "installed here for peer:west"),
        (said(certificate=EAST, instance_id=TWO, name="e"), None, "for this instance"),
        (
            said(certificate=OTHER, instance_id=TWO, name="mill", address="tcp://west:1"),
            None,
            "is that of peer:west",
        ),
    ],
    ids=["instance", "name", "two names", "certificate", "own", "address"],
)
def test_nobody_takes_the_place_of_a_principal(
    one: Acquaintance, name: str | None, why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        choose_principal(known(addresses=("tcp://west:1",)), one, name)
