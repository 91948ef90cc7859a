"""Hung sessions: a server process that stands still with a commit is given up (REL-89).

Reads:  how long each store's oldest changeset has waited; what its session waits for at the server.
Calls:  a look at the server, as soon as a commit is late.
Never:  gives up a commit that waits for a standby, a lock or a disk: that goes on by itself.
Wakes:  at each tick.
"""

from collections.abc import Awaitable, Callable, Mapping

from brokerd.broker.broker import Broker
from brokerd.errors import StoreFault


class HungSessions:
    """The brokers whose commits wait for a server process that stands still."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        late: Callable[[Broker], float],
        look: Callable[[], Awaitable[int]],
        hung_session: Callable[[str], int | None],
        after: float,
        fail: Callable[[str, StoreFault], None],
    ) -> None:
        """Create the watch.

        `late`: returns how long a commit has waited, if too long, else 0. `look`: looks at the
        server; `hung_session` then returns the process of a broker's commit if it stands still.
        `after`: seconds that such a commit may wait. `fail`: called with the broker and the fault.
        """
        self._brokers = brokers
        self._late = late
        self._look = look
        self._hung_session = hung_session
        self._after = after
        self._fail = fail
        self._seen: dict[str, int] = {}
        """The processes that stood still at the last check."""

    def check(self) -> int | Awaitable[int]:
        """Look at the server if a commit is late; fail at the second look that shows the same.

        The first one may be from a moment in which this process, not the server, stood still.
        """
        if any(map(self._late, self._brokers.values())):
            return self._check()
        self._seen.clear()
        return 0

    async def _check(self) -> int:
        changed = await self._look()
        found: dict[str, int] = {}
        for name, broker in self._brokers.items():
            waited, pid = self._late(broker), self._hung_session(name)
            if waited and pid is not None:
                found[name] = pid
                if waited > self._after and self._seen.get(name) == pid:
                    self._fail(name, _fault(name, pid, waited))
        self._seen = found
        return changed


def _fault(name: str, pid: int, waited: float) -> StoreFault:
    return StoreFault(
        f"a commit of broker {name} has waited {waited:.0f} s for server process {pid}, which "
        "stands still",
        hint="restart the server, or promote its standby; whether the commit was carried out, its "
        "token then shows",
    )
