"""Queues in the file of objects. PURE.

Reads:  the queues that `declaring` has left.      Calls: blocks.
Never:  starts an activation that the scripts leave off.
"""

from collections.abc import Iterator
from typing import Any

from brokerd.objects.activation import MAX_READERS
from brokerd.tsql.blocks import Block, usable
from brokerd.tsql.declaring import Declared, Objects
from brokerd.tsql.names import shown
from brokerd.tsql.tree import Activation, Queue


def queue_blocks(home: Objects, handlers: dict[str, str]) -> Iterator[Block]:
    """Yield the tables of the queues; `handlers`: the module of each activated queue."""
    for key, declared in home.queue.items():
        said: Queue = declared.said
        name = shown(said.name)
        if not usable(name, declared, "queue"):
            continue
        table: dict[str, Any] = {"name": name}
        if said.status is not None:
            table["status"] = said.status
        if said.retention is not None:
            table["retention"] = said.retention
        if said.poison is not None:
            table["poison_handling"] = said.poison
        block = Block("queue", table)
        if said.poison is not False:
            block.hints = ['poison_mode = "park" sets aside one group instead of the whole queue']
        if said.activation is not None and key in handlers:
            table["activation"] = _section(said.activation, handlers[key], declared)
        yield block


def activated(declared: Declared) -> Activation | None:
    """Return the activation of a queue; None = it has none that names a procedure."""
    said: Activation | None = declared.said.activation
    return said if said is not None and said.procedure is not None else None


def _section(said: Activation, module: str, declared: Declared) -> dict[str, Any]:
    readers = 1 if said.max_readers is None else said.max_readers
    if readers > MAX_READERS:
        declared.entry.needs(f"at most {MAX_READERS} readers are possible")
        readers = MAX_READERS
    declared.entry.add(f"{module}.py has a handler in place of {'.'.join(said.procedure or ())}")
    if said.execute_as is not None and said.execute_as.upper() not in ("SELF", "OWNER"):
        declared.entry.needs(
            f"EXECUTE AS {said.execute_as} is not kept: readers act for the owner of the broker, "
            "unless run_as names a user of the machine"
        )
    return {
        "handler": f"{module}:app",
        "max_readers": readers,
        "status": said.status is not False,
    }
