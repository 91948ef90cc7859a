"""Allocator: memory freed by a large body stays with the process, for the next large body.

Reads:  nothing.      Calls: `mallopt` of the C library, where it exists.
Never:  keeps more than `KEPT`; the allocator returns the excess to the system.

By default, freed blocks of many megabytes go back to the system at once, and the next such block is
new: the kernel clears its pages one by one as they are touched. Copying 16 MiB then takes 10 ms,
with nothing else done meanwhile, and 1.5 ms if the pages are still mapped.
"""

import ctypes
from typing import Final

KEPT: Final = 64 * 1024 * 1024
"""Bytes at the end of the heap that may stay free."""
_LARGEST: Final = 32 * 1024 * 1024
"""Bytes from which a block is still mapped by itself; the allocator accepts no larger value."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed() -> bool:
    """Keep the memory that large bodies leave; return False if the C library cannot."""
    try:
        choose = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(choose(_TRIM_THRESHOLD, KEPT) and choose(_MMAP_THRESHOLD, _LARGEST))
