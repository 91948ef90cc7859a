"""Large bodies that are stored for a transaction."""

from brokerd.broker.kept_bodies import KeptBodies
from brokerd.ids import BodyKey

ONE, OTHER = BodyKey(1), BodyKey(2)


def test_each_message_takes_a_body_of_its_own() -> None:
    kept, body = KeptBodies(), b"the very same"
    for key in (ONE, OTHER):
        kept.add(body, key)
    assert kept.count(body) == 2
    assert kept.count(bytes(bytearray(body))) == 0, "an equal body is another one"
    assert [kept.claim(body) for _ in range(3)] == [ONE, OTHER, None]


def test_what_no_message_has_is_let_go_once() -> None:
    kept = KeptBodies()
    kept.add(b"a", ONE)
    kept.add(b"b", OTHER)
    kept.claim(b"a")
    assert kept.unused({ONE}) == [OTHER]
    assert kept.unused(()) == []
