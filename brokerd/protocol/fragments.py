"""Cutting and joining messages (DLP-8, DLP-10). PURE.

The cut points follow from the fragment size stored with the message, so a fragment sent again is
the same bytes, whatever the setting is by then.
"""


def count(size: int, fragment_size: int) -> int:
    """How many fragments a body of `size` bytes makes; a body of none makes one."""
    return -(-size // fragment_size) if size > fragment_size else 1


def piece(body: bytes, fragment_size: int, fragment: int) -> bytes:
    """The bytes of one fragment of the body."""
    if fragment == 0 and len(body) <= fragment_size:
        return body
    return body[fragment * fragment_size : (fragment + 1) * fragment_size]
