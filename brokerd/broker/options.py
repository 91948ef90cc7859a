"""Options of a broker: its limits of memory, sizes and times.

Reads, calls: nothing.      Never:  knows a setting: `instance/stores.py` turns them into options.
"""

from datetime import timedelta

import msgspec

from brokerd.broker.outgoing import OutgoingOptions
from brokerd.broker.window import WindowOptions
from brokerd.protocol.dialog import REPLAY_GUARD


class BrokerOptions(msgspec.Struct, frozen=True):
    """Limits of one broker."""

    endpoints: int = 10_000_000
    """Dialog endpoints kept in memory (design D4); fewer if `transmitter.max_objects` is lower."""
    fragment_size: int = 32 * 1024
    max_message: int = 16 * 1024 * 1024
    large_body: int = 256 * 1024
    """Bytes from which a body is stored ahead of its message, in pieces of this size."""
    unfinished_bytes: int = 32 * 1024 * 1024
    """Bytes of stored fragments of incomplete messages that stay in memory (DSP-15)."""
    replay_guard: timedelta = REPLAY_GUARD
    """Time for which a closed target endpoint is remembered (DLP-55)."""
    check_aside: int = 16 * 1024
    """Bytes from which well-formedness is checked in the checking process (OBJ-18)."""
    default_lifetime: int = 2**31 - 1
    """The lifetime of a dialog that names none, in seconds (DLG-10)."""
    lock_timeout: float = 30.0
    """Seconds a verb waits for a group lock (GRP-11)."""
    max_bytes: int = 64 * 1024 * 1024
    """Bytes of bodies that one transaction may receive or send."""
    max_verbs: int = 10_000
    fast_paths: bool = True
    """Whether ordinary messages take the fast paths (`delivery.fastpath`)."""
    window: WindowOptions = WindowOptions()
    outgoing: OutgoingOptions = OutgoingOptions()
