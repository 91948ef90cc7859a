"""Hand-over: the stores go to a daemon that waits for them, at an administrator's request (REL-58).

Reads:  who waits, from the server of the stores.      Calls: the daemon, which then stops in order.
Never:  stops a daemon for nothing: with no other one waiting, the request is refused.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from brokerd.errors import Busy, InvalidArgument
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION


class HandOver:
    """The hand-over of one instance's stores."""

    def __init__(self, *, log: Log) -> None:
        self._log = log
        self._waiting: Callable[[], Awaitable[Sequence[str]]] | None = None
        self._begin: Callable[[], None]

    def allow(
        self, waiting: Callable[[], Awaitable[Sequence[str]]], begin: Callable[[], None]
    ) -> None:
        """Let administrators hand over from now on.

        `waiting`: returns the machines of the daemons that wait. `begin`: begins to stop, so that
        one of them gets the stores; the present request is still answered.
        """
        self._waiting, self._begin = waiting, begin

    async def run(self, actor: str) -> Mapping[str, object]:
        """Begin to hand the stores over; return the machines of the daemons that wait for them.

        Raises:
            InvalidArgument: the stores are in files, which no other daemon can use.
            Busy: no other daemon waits.
        """
        if self._waiting is None:
            raise InvalidArgument(
                "the stores of this daemon are in files, and cannot be handed over",
                hint="only stores in PostgreSQL can; brokerd store copy moves them there",
            )
        waiting = await self._waiting()
        if not waiting:
            raise Busy(
                "no other daemon waits for these stores",
                hint="start one with the same store.url, and try again when its status says that "
                "it waits",
            )
        self._log.info(ADMINISTRATION, subclass="hand_over", by=actor, waiting=", ".join(waiting))
        self._begin()
        return {"waiting": list(waiting)}
