"""Host: a fingerprint of this machine, to detect stores copied to another machine (MAN-7).

Reads:  the machine id of the operating system.      Calls: nothing.
Never:  guesses from a host name, which changes with every container.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PLACES: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


def fingerprint(places: Sequence[Path] = PLACES) -> bytes | None:
    """Return sixteen bytes that no other machine has; None = the system has no machine id."""
    for place in places:
        try:
            text = place.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text and text != "uninitialized":
            return hashlib.sha256(b"brokerd host " + text.encode()).digest()[:16]
    return None
