"""Catalog: the objects that the reference model knows, and the questions verbs ask about them.

PURE.  Reads and calls nothing of the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

INITIATOR = "initiator"
TARGET = "target"
ANY = "any"
DEFAULT = "DEFAULT"
USUAL_LEVEL = 5


@dataclass(frozen=True)
class Service:
    """A named party: its queue, and the contracts for which it may be a target (OBJ-32)."""

    queue: str
    contracts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Priority:
    """A level for what matches; None matches everything (OBJ-48)."""

    name: str
    level: int
    contract: str | None = None
    local: str | None = None
    remote: str | None = None


@dataclass(frozen=True)
class Catalog:
    """The objects of one broker. `DEFAULT` of both kinds is built in (OBJ-30)."""

    types: Mapping[str, str]
    """Validation by message type: none, empty or another kind's name."""
    contracts: Mapping[str, Mapping[str, str]]
    """Who may send each type of a contract."""
    queues: Mapping[str, bool]
    """Whether a queue retains at first."""
    services: Mapping[str, Service]
    priorities: tuple[Priority, ...] = field(default=())

    def has_type(self, name: str) -> bool:
        """Whether the message type exists."""
        return name == DEFAULT or name in self.types

    def has_contract(self, name: str) -> bool:
        """Whether the contract exists."""
        return name == DEFAULT or name in self.contracts

    def sender(self, contract: str, message_type: str) -> str | None:
        """Who may send the type in this contract; None if it is none of its types (OBJ-28)."""
        if contract == DEFAULT:
            return ANY if message_type == DEFAULT else None
        return self.contracts[contract].get(message_type)

    def validation(self, message_type: str) -> str:
        """The one-letter code of RCV-29."""
        kind = self.types.get(message_type, "none")
        return {"none": "N", "empty": "E"}.get(kind, kind[-3:-2].upper())

    def accepts(self, message_type: str, body: bytes | None) -> bool:
        """Whether the body is valid (OBJ-14); an empty body counts as absent (SND-11)."""
        return self.types.get(message_type, "none") != "empty" or not body

    def level(self, contract: str, local: str, remote: str) -> int:
        """The level of an endpoint at its creation: the first hit of the eight steps (OBJ-50)."""
        for wanted in product((contract, None), (local, None), (remote, None)):
            for one in self.priorities:
                if (one.contract, one.local, one.remote) == wanted:
                    return one.level
        return USUAL_LEVEL
