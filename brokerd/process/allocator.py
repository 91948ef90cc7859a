"""Allocator: memory that a large body has left stays with the process, for the next one.

Reads:  nothing.      Calls: the allocator of the C library, where it is the one that knows this.
Never:  keeps more than `KEPT`, which is given back as soon as there is more.

Freed blocks of many megabytes go back to the system at once by default, and the next such block is
new: the kernel clears its pages one by one as they are touched. To copy 16 MiB takes 10 ms then,
with nothing else done meanwhile, and 1.5 ms where the pages are still there.
"""

import ctypes
from typing import Final

KEPT: Final = 64 * 1024 * 1024
"""Bytes at the end of memory in use that may be free."""
_LARGEST: Final = 32 * 1024 * 1024
"""Bytes from which on a block is mapped by itself all the same; the allocator takes no more."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed() -> bool:
    """Keep what large bodies leave; False = this C library has no such choice."""
    try:
        choose = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(choose(_TRIM_THRESHOLD, KEPT) and choose(_MMAP_THRESHOLD, _LARGEST))
