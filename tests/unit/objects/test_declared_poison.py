"""The keys `poison_...` of a queue as declared: what they mean, and what is wrong with them."""

import tomllib
from typing import Any

import pytest

from brokerd.errors import ObjectsRefused
from brokerd.model import Poison, PoisonMode, Queue
from brokerd.objects.declarations import parse
from brokerd.resources import config_dir

SECOND = 1_000_000


def declared(**queue: Any) -> Queue:
    return parse({"queue": [{"name": "desk", **queue}]}).queues["desk"]


@pytest.mark.rule("PSN-14", "PSN-15", "PBT-10")
def test_what_a_queue_does_that_says_nothing() -> None:
    queue = declared()
    assert queue.poison_handling
    assert (queue.poison.mode, queue.poison.limit) == (PoisonMode.DISABLE, 5)
    assert queue.poison.disconnects == 20
    assert declared(poison_mode="park").poison.limit == 8


@pytest.mark.rule("PSN-14", "PSN-15", "PBT-3", "PBT-10")
def test_each_key_is_read() -> None:
    queue = declared(
        poison_handling="off",
        poison_mode="park",
        poison_threshold=3,
        poison_disconnects=4,
        poison_backoff="2s",
        poison_backoff_max="1min",
    )
    assert not queue.poison_handling
    assert queue.poison == Poison(PoisonMode.PARK, 3, 4, 2 * SECOND, 60 * SECOND)
    assert queue.poison.limit == 3
    assert declared(poison_threshold=1, poison_disconnects=1_000_000).poison.limit == 1


@pytest.mark.rule("PSN-14", "PSN-15", "PBT-3")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("poison_mode", "forget"),
        ("poison_threshold", 0),
        ("poison_threshold", 1_000_001),
        ("poison_threshold", True),
        ("poison_disconnects", 0),
        ("poison_disconnects", "many"),
        ("poison_backoff", "0.5ms"),
        ("poison_backoff", "10min"),  # above the most it may become
        ("poison_backoff_max", "25h"),
        ("poison_backoff_max", "soon"),
    ],
)
def test_values_that_are_wrong_are_refused(key: str, value: object) -> None:
    with pytest.raises(ObjectsRefused) as caught:
        declared(**{key: value})
    assert key in str(caught.value)


@pytest.mark.rule("PBT-3")
@pytest.mark.parametrize(
    ("attempts", "seconds"), [(1, 1), (2, 2), (3, 4), (8, 128), (9, 256), (10, 300), (999_999, 300)]
)
def test_the_wait_doubles_up_to_five_minutes(attempts: int, seconds: int) -> None:
    assert declared().poison.backoff(attempts) == seconds * SECOND


@pytest.mark.rule("PBT-3")
def test_the_wait_is_settable() -> None:
    poison = declared(poison_backoff="3s", poison_backoff_max="10s").poison
    assert [poison.backoff(attempts) // SECOND for attempts in (1, 2, 3, 4)] == [3, 6, 10, 10]


@pytest.mark.rule("PSN-15")
@pytest.mark.parametrize("name", ["east", "west"])
def test_the_examples_park(name: str) -> None:
    text = (config_dir() / f"{name}.objects.toml").read_text()
    (queue,) = parse(tomllib.loads(text)).queues.values()
    assert queue.poison_handling
    assert queue.poison.mode is PoisonMode.PARK
