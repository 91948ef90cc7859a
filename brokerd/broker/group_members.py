"""The conversation groups of one broker whose members or states have to be read (GRP-2, GRP-22).

Reads:  the store, by group.      Calls: broker.endpoints, which adopts what was read.
Never:  locks a group, or changes one that another transaction has locked.

A group is in memory as long as one of its endpoints is, or its lock is held or waited for. It is
`whole` if all of its endpoints are in memory; only then does the absence of an endpoint from memory
show that the group does not have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.endpoints import Endpoints
from brokerd.broker.state import Group, Holder, Live
from brokerd.broker.store_reads import Spawn, read_until_answered
from brokerd.ids import GroupId
from brokerd.protocol.transitions import State
from brokerd.storage.store import Store


class GroupMembers:
    """The finder of the endpoints and the state of a group, in memory or in the store."""

    __slots__ = ("_absent", "_completing", "_endpoints", "_groups", "_spawn", "_store")

    def __init__(
        self, *, groups: Mapping[GroupId, Group], endpoints: Endpoints, store: Store, spawn: Spawn
    ) -> None:
        """Create the finder. `groups`: the groups in memory, which the broker changes."""
        self._groups = groups
        self._endpoints = endpoints
        self._store = store
        self._spawn = spawn
        self._absent: set[GroupId] = set()
        self._completing: set[GroupId] = set()

    def look_up(self, group_id: GroupId, asker: Holder) -> Group | Blocked | None:
        """Return the group with this id (GRP-2).

        None: it has no open endpoint. Blocked: it is being read.

        A group that another transaction has locked is returned even if it has no open endpoint: the
        ends and moves that this transaction made are not durable yet, and a caller that names the
        group has to wait for the outcome (GRP-4, GRP-9)."""
        group = self._groups.get(group_id)
        if group is not None and any(
            one.endpoint.state is not State.CLOSED for one in group.members.values()
        ):
            return group
        if group is not None and group.holder not in (None, asker):
            return group
        if self._endpoints.complete or (group is not None and group.whole):
            return None
        if group_id in self._absent:
            self._absent.discard(group_id)
            return None

        def register(resume: Resume) -> None:
            self._spawn(self._read_group(group_id, resume))

        return Blocked("group", register)

    def read_state(self, group: Group, resume: Resume) -> None:
        """Read a group's state from the store, then call `resume`."""

        async def read() -> None:
            state = await read_until_answered(self._store.endpoints.group_state, group.group_id)
            if not group.state_known:
                group.keep_state(state)
            resume()

        self._spawn(read())

    async def members(self, group: Group) -> list[Live]:
        """Return all endpoints of a locked group; the lock keeps them in memory."""
        if not group.whole:
            await self.open_members(group.group_id)
            group.mark_whole()
        return list(group.members.values())

    async def open_members(self, group_id: GroupId) -> list[Live]:
        """Return the open endpoints of a group; load those that are not in memory."""
        endpoints = self._endpoints
        found: list[Live] = []
        with endpoints.reading() as stale:
            # An endpoint may be changed and evicted while its old row is read: then read again.
            while True:
                stored = await read_until_answered(self._store.endpoints.in_group, group_id)
                if not stale(endpoint.key for endpoint in stored):
                    break
            for endpoint in stored:
                live = endpoints.get(endpoint.key)
                if live is None and endpoints.is_removed(endpoint.key):
                    continue
                live = live or endpoints.adopt(endpoint)
                if live.group.group_id != group_id:
                    continue  # moved by a transaction that is not durable yet (GRP-18)
                if live.endpoint.state is not State.CLOSED:
                    found.append(live)
                    live.pin()
        for live in found:
            live.unpin()
        return found

    async def complete_groups(self, lives: Collection[Live]) -> None:
        """Mark each group of these endpoints as whole if all its endpoints are in memory.

        Their locks are not needed: an endpoint that joins a group meanwhile is in memory, and a
        group that loses one from memory meanwhile is skipped."""
        endpoints = self._endpoints
        groups = {live.group.group_id: live.group for live in lives if not live.group.whole}
        if not groups:
            return
        self._completing |= groups.keys()
        with endpoints.reading():
            stored = await read_until_answered(self._store.endpoints.keys_in_groups, sorted(groups))
            for group_id, group in groups.items():
                if group_id in self._completing and self._groups.get(group_id) is group:
                    keys = stored.get(group_id, ())
                    group.mark_whole(
                        all(
                            endpoints.get(key) is not None or endpoints.is_removed(key)
                            for key in keys
                        )
                    )
        self._completing -= groups.keys()

    def evicted(self, group: Group) -> None:
        """Note that an endpoint of the group has left memory while its row still exists."""
        group.mark_whole(False)
        self._completing.discard(group.group_id)

    async def _read_group(self, group_id: GroupId, resume: Resume) -> None:
        found = await self.open_members(group_id)
        # `resume` looks the group up again: the mark makes that return None, not read once more.
        if not found:
            self._absent.add(group_id)
        for live in found:
            live.pin()
        resume()
        for live in found:
            live.unpin()
        self._absent.discard(group_id)
