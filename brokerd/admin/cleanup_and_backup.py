"""Cleaning up endpoints in bulk, and backups, while the instance runs.

Reads: the store, a batch at a time.      Calls: broker.sweeps, storage.
Never: touches an endpoint whose group is locked, overwrites a file, or writes one into a directory
of stores.
Each operation writes one line to the event log: actor, operation, counts.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from brokerd.broker import sweeps
from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.clock import SECOND, Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import EndpointKey
from brokerd.model import is_system
from brokerd.protocol.admin_verbs import CleanUpOptions
from brokerd.protocol.transitions import State
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION

_STATES = frozenset(str(one) for one in State if one is not State.NONE)


class Upkeep:
    """Bulk clean-up and backups of one instance."""

    def __init__(
        self, *, store_dirs: Collection[Path], backup_dirs: Sequence[Path], server: str, log: Log
    ) -> None:
        """Create the operations of one instance.

        `store_dirs`: the directories of the instance's stores. `backup_dirs`: the directories
        below which backups are written, and nowhere else (SX-22). `server`: the server that has
        the stores; empty = they are files.
        """
        self._store_dirs = store_dirs
        self._backup_dirs = backup_dirs
        self._server = server
        self._log = log

    async def clean_up(
        self, broker: Broker, wanted: CleanUpOptions, reason: str, actor: str
    ) -> dict[str, object]:
        """Remove the matching endpoints of one batch, without notice to their peers (MAN-15).

        Endpoints of the broker's own services match only if such a service is named (EVT-12).

        The answer has the number of matching, removed and locked endpoints by state, and in `next`
        the start of the next batch; None = this batch was the last. A dry run only counts.
        """
        unknown = set(wanted.states) - _STATES
        if unknown:
            raise InvalidArgument(
                f"there is no state {min(unknown)!r}",
                hint=f"there is: {', '.join(sorted(_STATES))}",
            )
        after = None if wanted.after is None else EndpointKey(wanted.after)
        lives, end = await sweeps.batch(broker, after, wanted.batch)
        try:
            fitting = [live for live in lives if _fits(broker, live, wanted)]
            states = {live.endpoint.key: str(live.endpoint.state) for live in fitting}
            removed: list[Live] = []
            if fitting and not wanted.dry_run:
                removed = await sweeps.clean(broker, fitting, f"{actor}, who cleans up")
        finally:
            sweeps.release(lives)
        gone = {live.endpoint.key for live in removed}
        left = {} if wanted.dry_run else {k: v for k, v in states.items() if k not in gone}
        counts = {
            "matched": dict(Counter(states.values())),
            "removed": dict(Counter(states[key] for key in gone)),
            "locked": dict(Counter(left.values())),
        }
        if removed:
            self._log.info(
                ADMINISTRATION,
                subclass="clean_up",
                actor=actor,
                broker=broker.name,
                why=reason,
                before=counts["matched"],
                after=counts["locked"],
                endpoints=counts["removed"],
            )
        return {**counts, "next": end}

    async def backup(self, broker: Broker, path: Path, actor: str) -> dict[str, object]:
        """Write a consistent copy of the store to a new file, and check that it is sound.

        Raises:
            InvalidArgument: the file may not be written there, or the store is on a server.
        """
        if self._server:
            raise InvalidArgument(
                f"the store of broker {broker.name} is in {self._server}, and not in a file",
                hint="back the database up with the tools of PostgreSQL: pg_dump for a copy of one "
                "moment, or pg_basebackup with an archive of the log for every moment",
            )
        copied = await broker.store.backup(path, not_in=self._store_dirs, below=self._backup_dirs)
        self._log.info(
            ADMINISTRATION,
            subclass="backup",
            actor=actor,
            broker=broker.name,
            path=str(path),
            before=None,
            after={"bytes": copied},
        )
        return {"path": str(path), "bytes": copied}


def _fits(broker: Broker, live: Live, wanted: CleanUpOptions) -> bool:
    endpoint = live.endpoint
    if wanted.older_than is not None:
        since = Instant(broker.clock.utc() - round(wanted.older_than * SECOND))
        if endpoint.state_since > since:
            return False
    return (
        not live.gone
        and (not wanted.states or str(endpoint.state) in wanted.states)
        and _is_of(wanted.service, endpoint.service)
        and wanted.far_service in (None, endpoint.far_service)
    )


def _is_of(wanted: str | None, service: str) -> bool:
    return not is_system(service) if wanted is None else service == wanted
