"""BROKERS: which brokers an instance delivers for, told to its neighbours (TRN-46).

Reads:  nothing; fields in, values out, and back.    Calls: `protocol.wire`.
Never:  knows who else names a broker; `routing.duplicates` compares.
"""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from brokerd.ids import ID_SIZE, BrokerId

OPTION: Final = "brokers"
"""The option of a HELLO that says: I send BROKERS frames, and take them."""
MOST_BROKERS: Final = 200
"""Ids in one frame, which then fits the smallest frame that a peer may insist on."""


class BrokersHere(Struct, frozen=True):
    """All brokers of the speaker whose delivery is on; what it named before and not now is over."""

    broker_ids: tuple[BrokerId, ...] = ()


def brokers_here(broker_ids: Iterable[BrokerId]) -> BrokersHere:
    """Of more than can be named, the first by their ids are."""
    return BrokersHere(tuple(sorted(broker_ids)[:MOST_BROKERS]))


def fields_of(frame: BrokersHere) -> tuple[object, ...]:
    """What is written of it."""
    return (frame.broker_ids,)


def brokers_of(fields: tuple[Any, ...]) -> BrokersHere:
    """What was written so; `ValueError`, `IndexError` where it is malformed."""
    named = fields[0]
    if type(named) is not tuple or len(named) > MOST_BROKERS:
        raise ValueError(f"brokers are no array, or more than {MOST_BROKERS}")
    if any(type(one) is not bytes or len(one) != ID_SIZE for one in named):
        raise ValueError("an id has sixteen bytes")
    return BrokersHere(tuple(BrokerId(one) for one in named))
