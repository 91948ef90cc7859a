"""Insisting: reads of the store that memory cannot do without.

Reads:  the store.      Calls: what it is given, again where the store was too slow to answer.
Never:  gives up: a read that is cut short (`Busy`) is for whoever can ask again later, and here
somebody waits who would never be called back, or supervised work would end and the daemon with it.
"""

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from brokerd.errors import Busy

P = ParamSpec("P")
T = TypeVar("T")


async def insist(read: Callable[P, Awaitable[T]], *args: P.args, **given: P.kwargs) -> T:
    """The answer of a read, however long that takes."""
    while True:
        try:
            return await read(*args, **given)
        except Busy:
            continue
