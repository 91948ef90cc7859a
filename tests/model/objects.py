"""The objects of the machines: few, and arranged so that much meets on few queues."""

from typing import Any, NamedTuple

from tests.model.reference.catalog import Catalog, Priority, Service

CATALOG = Catalog(
    types={"Ask": "none", "Answer": "none", "Both": "none", "Nudge": "empty"},
    contracts={
        "talk": {"Ask": "initiator", "Answer": "target", "Both": "any", "Nudge": "any"},
        "other": {"Both": "any"},
    },
    queues={"desk": False, "shop": False, "mill": True},
    services={
        "urn:desk": Service("desk"),
        "urn:lamp": Service("desk"),
        "urn:shop": Service("shop", frozenset({"talk", "DEFAULT"})),
        "urn:mill": Service("mill", frozenset({"talk"})),
    },
    priorities=(
        Priority("answers of the mill", 7, contract="talk", remote="urn:mill"),
        Priority("all of the lamp", 2, local="urn:lamp"),
        Priority("the lamp at the shop", 9, "talk", "urn:shop", "urn:lamp"),
        Priority("the shop by default", 3, local="urn:shop"),
    ),
)


class Pair(NamedTuple):
    """A dialog somebody may begin."""

    from_service: str
    to_service: str
    contract: str | None


PAIRS = (
    Pair("urn:desk", "urn:shop", "talk"),
    Pair("urn:desk", "urn:mill", "talk"),
    Pair("urn:lamp", "urn:shop", "talk"),
    Pair("urn:mill", "urn:mill", "talk"),  # both sides on one queue (DLG-14)
    Pair("urn:desk", "urn:shop", None),
    Pair("urn:desk", "urn:shop", "other"),  # the shop does not take it (OBJ-34)
)


def declaration(catalog: Catalog) -> dict[str, Any]:
    """The same objects for the engine."""
    made: dict[str, Any] = {
        "broker": {"name": "main", "default_encryption": "off"},
        "message_type": [
            {"name": name, "validation": kind} for name, kind in catalog.types.items()
        ],
        "contract": [
            {"name": name, "types": dict(types)} for name, types in catalog.contracts.items()
        ],
        "queue": [_queue(name, retains) for name, retains in catalog.queues.items()],
        "service": [
            {"name": name, "queue": one.queue, "contracts": sorted(one.contracts)}
            for name, one in catalog.services.items()
        ],
    }
    made["priority"] = [_priority(one) for one in catalog.priorities]
    return made


def _queue(name: str, retains: bool) -> dict[str, Any]:
    return {
        "name": name,
        "retention": "on" if retains else "off",
        "poison_handling": "off",
    }


def _priority(one: Priority) -> dict[str, Any]:
    given = {
        "name": one.name,
        "level": one.level,
        "contract": one.contract,
        "local_service": one.local,
        "remote_service": one.remote,
    }
    return {key: value for key, value in given.items() if value is not None}
