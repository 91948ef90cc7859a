"""Keys and numbers that are the same in each run, for the tests of dialog security."""

import hashlib

from brokerd.clock import SECOND, Instant
from brokerd.security.dialog_certificates import DialogCertificate, PrivateKeys, certify
from brokerd.security.key_agreement import Place
from brokerd.security.sealing import Random

NOW = Instant(1_790_000_000 * SECOND)
CONVERSATION = bytes(range(16))
PLACE = Place(CONVERSATION, "//a", "//b", bytes(range(16, 32)), "//c")


def numbers(seed: str) -> Random:
    """Return a source of numbers that only look random."""
    count = 0

    def draw(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{seed} {count}".encode()).digest(size)

    return draw


def certificate(name: str) -> tuple[DialogCertificate, PrivateKeys]:
    """Return the certificate of a name, and its keys."""
    private = numbers(name)(64)
    end = Instant(NOW + 10_000_000 * SECOND)
    return certify(name, private, NOW, end), PrivateKeys(private)
