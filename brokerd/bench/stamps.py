"""The head of a body: the time at which it was sent. Pure.

Times are those of the machine's monotonic clock, which all processes share.
"""

STAMP = 8
"""Size of the stamp in bytes; it contains microseconds."""


def stamped(now: float, size: int) -> bytes:
    """Return a body of `size` bytes, at least `STAMP`, stamped with `now` (seconds)."""
    return int(now * 1e6).to_bytes(STAMP, "big") + bytes(size - STAMP)


def sent_at(body: bytes | None) -> float:
    """Return the time at which the body was sent, in seconds."""
    return int.from_bytes((body or bytes(STAMP))[:STAMP], "big") / 1e6
