"""Secrecy: keeps what is in the daemon's memory and files from other programs (SX-1, SX-9).

Reads:  nothing.      Calls: `umask`, `setrlimit`, and `prctl` where it exists.
Never:  changes what child processes may do, except that they inherit the umask and the limit of 0
        bytes for core dumps.
"""

import ctypes
import os
import resource
from typing import Final

_UMASK: Final = 0o077
_PR_SET_DUMPABLE: Final = 4


def keep_private(*, core_dumps: bool) -> None:
    """Make new files private, and unless `core_dumps`, keep the memory of the process private.

    Private memory is in no core dump, and other processes of the same user, handlers among them,
    can neither trace this process nor read its memory; root still can.
    """
    os.umask(_UMASK)
    if core_dumps:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a pipe in core_pattern ignores it
    try:
        control = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return  # not Linux
    control(_PR_SET_DUMPABLE, 0, 0, 0, 0)
