"""Counting by service pair has an end."""

from brokerd.broker.pairs import MAX_PAIRS, OTHERS, Pairs


def test_a_pair_is_one_object_as_long_as_the_broker_runs() -> None:
    pairs = Pairs()
    one = pairs.between("desk", "shop", "talk")
    assert pairs.between("desk", "shop", "talk") is one
    assert pairs.between("shop", "desk", "talk") is not one
    assert [(each.from_service, each.to_service) for each in pairs.all()] == [
        ("desk", "shop"),
        ("shop", "desk"),
    ]


def test_names_beyond_the_limit_are_counted_together() -> None:
    pairs = Pairs()
    known = pairs.between("desk", "0", "talk")
    others = [pairs.between("desk", str(number), "talk") for number in range(MAX_PAIRS + 10)][
        MAX_PAIRS:
    ]
    assert {id(one) for one in others} == {id(pairs.between("x", "y", "z"))}
    assert (others[0].from_service, others[0].to_service) == (OTHERS, OTHERS)
    assert pairs.between("desk", "0", "talk") is known
    assert len(list(pairs.all())) == MAX_PAIRS + 1
