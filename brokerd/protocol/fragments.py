"""Cutting of message bodies into fragments (DLP-8, DLP-10). PURE.

The cut points follow from the fragment size stored with the message, so a retransmitted fragment
has the same bytes even if the setting has changed since.
"""


def count(size: int, fragment_size: int) -> int:
    """Return the number of fragments of a body of `size` bytes; an empty body has one."""
    return -(-size // fragment_size) if size > fragment_size else 1


def piece(body: bytes, fragment_size: int, fragment: int) -> bytes:
    """Return the bytes of one fragment of the body."""
    if fragment == 0 and len(body) <= fragment_size:
        return body
    return body[fragment * fragment_size : (fragment + 1) * fragment_size]
