"""BROKERS frames: an instance names the brokers it delivers for to its neighbours (TRN-46).

Reads:  nothing; fields in, values out, and back.    Calls: nothing.
Never:  knows which other instances name a broker; `routing.duplicates` compares.
"""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from brokerd.ids import ID_SIZE, BrokerId

OPTION: Final = "brokers"
"""HELLO option of an instance that sends and accepts BROKERS frames."""
MOST_BROKERS: Final = 200
"""Most ids in one frame; the frame then fits the smallest frame limit that a peer may set."""


class BrokersHere(Struct, frozen=True):
    """All brokers of the sender whose delivery is on; the list replaces the previous one."""

    broker_ids: tuple[BrokerId, ...] = ()


def brokers_here(broker_ids: Iterable[BrokerId]) -> BrokersHere:
    """Return the frame that names these brokers, but only the `MOST_BROKERS` lowest ids."""
    return BrokersHere(tuple(sorted(broker_ids)[:MOST_BROKERS]))


def fields_of(frame: BrokersHere) -> tuple[object, ...]:
    """Return the fields of a BROKERS frame."""
    return (frame.broker_ids,)


def brokers_of(fields: tuple[Any, ...]) -> BrokersHere:
    """Return the BROKERS frame with these fields.

    Raises:
        ValueError, IndexError: malformed.
    """
    named = fields[0]
    if type(named) is not tuple or len(named) > MOST_BROKERS:
        raise ValueError(f"brokers are no array, or more than {MOST_BROKERS}")
    if any(type(one) is not bytes or len(one) != ID_SIZE for one in named):
        raise ValueError("an id has sixteen bytes")
    return BrokersHere(tuple(BrokerId(one) for one in named))
