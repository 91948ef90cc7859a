"""Server facts: what is known of the database server that has the stores, for reports.

PURE.   Reads: nothing.      Calls: nothing.
"""

import msgspec


class SessionWait(msgspec.Struct, frozen=True, kw_only=True):
    """The wait of a session of the server that has a statement."""

    pid: int
    text: str
    is_hung: bool
    """Whether its process stands still, and will not carry the statement out."""
    is_for_standby: bool
    """Whether its commit waits until a standby has it."""


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A database server, as it was when it was last looked at."""

    server: str
    """The servers and the database, without user and password."""
    version: str = ""
    standbys: tuple[str, ...] = ()
    """Names of the synchronous standbys that are connected now."""
    wanted_standbys: str = ""
    """The server's `synchronous_standby_names`; empty = a commit waits for no standby."""
    sees_standbys: bool = True
    """Whether the server shows the daemon's role which standbys are connected."""
    former: tuple[str, ...] = ()
    """Other servers that take changes, and were the primary before or are of another system, each
    with the reason."""
    newer: tuple[str, ...] = ()
    """Other servers that take changes, in a later history than the one that has the stores."""
    waits: dict[str, SessionWait] = {}
    """The wait of the session that writes each schema, if it has a statement."""
    sizes: dict[str, int] = {}
    """Bytes of each schema that was asked for."""

    @property
    def redundancy(self) -> str:
        """Return how many machines a confirmed commit is on, as text."""
        if not self.wanted_standbys:
            return "one machine: no synchronous standby"
        if not self.sees_standbys:
            return (
                f"commits wait for synchronous standbys ({self.wanted_standbys}); to see which are "
                "connected: GRANT pg_read_all_stats to the daemon's role"
            )
        if not self.standbys:
            return f"no synchronous standby is connected ({self.wanted_standbys}): commits wait"
        return f"synchronous standbys: {', '.join(self.standbys)}"


def wait_of(pid: int, kind: str | None, event: str | None) -> SessionWait:
    """Return what a session waits for that was given a statement, as `pg_stat_activity` shows it.

    A session that waits for its client has not read the statement: its process stands still.
    """
    process = f"server process {pid}"
    is_for_standby = event == "SyncRep"
    if is_for_standby:
        text = "the server waits for its synchronous standby"
    elif kind == "Client":
        text = f"{process} hangs: it does not read what it is sent"
    elif kind is None:
        text = f"{process} computes, or hangs"
    else:
        text = f"{process} waits for {kind}: {event}"
    return SessionWait(pid=pid, text=text, is_hung=kind == "Client", is_for_standby=is_for_standby)
