"""Broker priorities: the level of an endpoint, found in eight steps (OBJ-48 to OBJ-54). PURE.

Reads: the priorities of the catalog.      Calls: nothing.
Never: changes an existing endpoint: its level was found when it was created.
"""

from collections.abc import Iterable

from brokerd.model import DEFAULT_PRIORITY, Priority

_Criteria = tuple[str | None, str | None, str | None]


class PriorityIndex:
    """The priorities of a broker by their criteria."""

    __slots__ = ("_levels",)

    def __init__(self, priorities: Iterable[Priority] = ()) -> None:
        self._levels: dict[_Criteria, int] = {one.criteria: one.level for one in priorities}

    def level(self, contract: str, local: str, remote: str) -> int:
        """Return the level of an endpoint: of the first of eight steps that fits, or 5 (OBJ-50).

        `local` and `remote` are services as the endpoint sees them (OBJ-52)."""
        levels = self._levels
        if not levels:
            return DEFAULT_PRIORITY
        for criteria in (
            (contract, local, remote),
            (contract, local, None),
            (contract, None, remote),
            (contract, None, None),
            (None, local, remote),
            (None, local, None),
            (None, None, remote),
            (None, None, None),
        ):
            level = levels.get(criteria)
            if level is not None:
                return level
        return DEFAULT_PRIORITY
