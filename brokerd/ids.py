"""Typed ids, and the source of fresh ones.

An id is sixteen bytes, also in the store and on the wire; `show` returns its text for display.
Nothing else in brokerd draws ids, so a seeded source makes a whole network repeatable (HK-1).
"""

import os
import uuid
from random import Random
from typing import NamedTuple, NewType, Protocol

BrokerId = NewType("BrokerId", bytes)
"""Identity of one broker on the whole network (OBJ-1)."""
InstanceId = NewType("InstanceId", bytes)
"""Permanent identity of one instance, used in arbitration (TRN-22)."""
BootId = NewType("BootId", bytes)
"""Identity of one run of a daemon, drawn at each start; in every log line and HELLO (HK-12)."""
Incarnation = NewType("Incarnation", bytes)
"""Identity of a store's history, drawn when it is created, restored or cloned (REL-15)."""
ConversationId = NewType("ConversationId", bytes)
"""Identity of a dialog, shared by both sides (DLP-1)."""
Handle = NewType("Handle", bytes)
"""Local name of one dialog endpoint (DLG-13)."""
GroupId = NewType("GroupId", bytes)
"""Identity of a conversation group, local to one side (GRP-1)."""
MessageId = NewType("MessageId", bytes)
ClientId = NewType("ClientId", bytes)
"""Identity of a client of the daemon, for commit tokens (REL-2)."""

EndpointKey = NewType("EndpointKey", int)
"""Row number of a dialog endpoint in its store."""
BodyKey = NewType("BodyKey", int)
"""Number of a body that is stored as pieces."""
QueueKey = NewType("QueueKey", int)
ServiceKey = NewType("ServiceKey", int)
NotificationKey = NewType("NotificationKey", int)
"""Row number of an event notification; a notification created again gets another."""

ID_SIZE = 16
LEAST_DIGITS = 4
"""Least number of hexadecimal digits of a shortened id."""


def secret_bytes(count: int) -> bytes:
    """Return unpredictable bytes for keys, from the operating system."""
    return os.urandom(count)


class Span(NamedTuple):
    """All ids that begin with the same digits."""

    low: bytes
    high: bytes


class IdSource(Protocol):
    """A source of fresh ids."""

    def fresh(self) -> bytes:
        """Return sixteen random bytes that were never returned before."""
        ...


class RandomIds:
    """Ids from the operating system, drawn 4 KiB at a time to save system calls."""

    def __init__(self) -> None:
        self._pool = b""
        self._at = 0

    def fresh(self) -> bytes:
        """Return sixteen random bytes."""
        at = self._at
        if at >= len(self._pool):
            self._pool = os.urandom(4096)
            at = 0
        self._at = at + ID_SIZE
        return self._pool[at : at + ID_SIZE]


class SeededIds:
    """Ids from a seed, for simulation and tests."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def fresh(self) -> bytes:
        """Return the next sixteen bytes of the seeded stream."""
        return self._rng.randbytes(ID_SIZE)


def show(value: bytes) -> str:
    """Return the usual text form of an id; raise `ValueError` unless it has sixteen bytes."""
    if len(value) != ID_SIZE:
        raise ValueError(f"an id has {ID_SIZE} bytes, not {len(value)}")
    text = value.hex()  # half the time of `uuid`; each dialog logs ids
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def parse(text: str) -> bytes:
    """Return the bytes of an id written as text; raise `ValueError` if the text is not an id."""
    return uuid.UUID(text).bytes


def is_beginning(text: str) -> bool:
    """Return whether a text is the beginning of an id, as `show` writes it, of enough digits."""
    digits = text.replace("-", "").lower()
    fits = LEAST_DIGITS <= len(digits) <= 2 * ID_SIZE
    return fits and set(digits) <= set("0123456789abcdef")


def parse_span(text: str) -> Span:
    """Return the ids that begin with a text; raise `ValueError` if it is no beginning of an id."""
    if not is_beginning(text):
        raise ValueError(f"{text[:64]!r} is not the beginning of an id")
    digits = text.replace("-", "")
    whole = 2 * ID_SIZE
    return Span(bytes.fromhex(digits.ljust(whole, "0")), bytes.fromhex(digits.ljust(whole, "f")))
