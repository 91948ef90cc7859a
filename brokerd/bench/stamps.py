"""The head of a body, which says when it was sent. Pure.

Times are those of the machine's monotonic clock, which all processes share.
"""

STAMP = 8
"""Bytes of it: microseconds."""


def stamped(now: float, size: int) -> bytes:
    """A body of `size` bytes, `STAMP` at least, sent at `now` (seconds)."""
    return int(now * 1e6).to_bytes(STAMP, "big") + bytes(size - STAMP)


def sent_at(body: bytes | None) -> float:
    """When it was sent, in seconds."""
    return int.from_bytes((body or bytes(STAMP))[:STAMP], "big") / 1e6
