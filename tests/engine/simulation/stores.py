"""Stores: the initial stores of the seeds of one process, made once and refilled for each seed.

Making a store takes longer than a run, and so does opening one: reading its schema, setting it up,
compiling each statement. The machines of most seeds therefore reuse the connections of the seed
before, after every row has been reset to that of a fresh store. The other seeds, among them those
with a store that two machines share, get copies of the files and open them themselves.
Reads:  stores left by a start with declared objects.      Calls: `Instance`, once for each kind.
Never:  lets a seed see what another left: rows, free pages and the log are as in a fresh store.
"""

import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from brokerd.ids import BootId, SeededIds
from brokerd.instance.instance import Instance, Surroundings
from brokerd.storage import space, tables
from brokerd.storage.connections import Connection, connect_writer, transaction
from brokerd.storage.executors import Inline
from brokerd.storage.writers import roll_back
from brokerd.testing import loop as virtual
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import VirtualLoop
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams
from brokerd.testing.trace import Trace
from tests.engine.simulation import objects
from tests.engine.simulation.counting import CountingLog
from tests.engine.simulation.features import MIRRORED, PARTNER
from tests.engine.simulation.nodes import UTC_START
from tests.engine.simulation.plan import Plan

Rows = list[tuple[Any, ...]]
_TABLES = [table.name for table in tables.metadata.sorted_tables]


class Place(NamedTuple):
    """The stores lent to a seed."""

    directory: Path
    kept: dict[Path, Connection]
    """Open connections to these stores, by path; empty if the seed opens copies itself."""


class Stores:
    """The stores of all kinds of plans, in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: dict[Path, dict[Path, Connection]] = {}
        self._fresh: dict[Path, dict[Path, dict[str, Rows]]] = {}

    def lend(self, seed: int, plan: Plan) -> Place:
        """Return fresh stores for a seed."""
        template = self._template(plan)
        if not plan.keeps_files_open or PARTNER in plan.instances:
            place = self._directory / f"run-{seed}"
            shutil.copytree(template, place)
            return Place(place, {})
        place = template.with_name(f"{template.name}-kept")
        kept = self._kept.pop(place, None)
        if kept is None:
            shutil.copytree(template, place)
            kept = {path: connect_writer(path) for path in sorted(place.glob("*/*.db"))}
            self._fresh[place] = {path: _rows(one) for path, one in kept.items()}
        for name in ("msdb.db-clock", "master.key"):
            for left in place.glob(f"*/{name}"):
                left.unlink()  # it has a time, or a key, of another seed
        for path, connection in kept.items():  # new ones as well, so that all seeds start alike
            _fill_again(connection, self._fresh[place][path])
        return Place(place, kept)

    def give_back(self, place: Path, kept: dict[Path, Connection]) -> None:
        """Take back the stores of a clean seed; keep the connections if all are as they were."""
        there = set(place.glob("*/*.db"))
        if place in self._fresh and kept.keys() == self._fresh[place].keys() == there:
            self._kept[place] = kept
        else:
            self.close_all(kept)
            self.scrap(place)

    def close_all(self, kept: dict[Path, Connection]) -> None:
        """Close connections, which folds the logs into the files."""
        for connection in kept.values():
            connection.close()

    def scrap(self, place: Path) -> None:
        """Delete the files."""
        shutil.rmtree(place)

    def close(self) -> None:
        """Close all kept connections."""
        for kept in self._kept.values():
            self.close_all(kept)
        self._kept.clear()

    def _template(self, plan: Plan) -> Path:
        template = self._directory / f"{'-'.join(plan.instances)}-{plan.activated}"
        if not template.exists():
            _make_templates(template, plan)
        return template


def _rows(connection: Connection) -> dict[str, Rows]:
    return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in _TABLES}


def _fill_again(connection: Connection, rows: dict[str, Rows]) -> None:
    """Reset every table to these rows, in this order; drop free pages and fold the log."""
    roll_back(connection)
    with transaction(connection):
        for name in reversed(_TABLES):
            connection.execute(f"DELETE FROM {name}")
        for name, found in rows.items():
            if found:
                marks = ", ".join("?" * len(found[0]))
                connection.executemany(f"INSERT INTO {name} VALUES ({marks})", found)
    space.give_back(connection, space.free_pages(connection))
    space.fold(connection)


def _make_templates(directory: Path, plan: Plan) -> None:
    """Make the stores of all instances of a plan.

    The mirrored instance comes first, as the routes of the others name its broker id; its standby
    comes last, so that it finds the store and waits as a standby does.
    """
    (directory / objects.SHARED).mkdir(parents=True)
    broker_id = ""
    turns = {MIRRORED: 0, PARTNER: 2}
    for node in sorted(plan.instances, key=lambda name: turns.get(name, 1)):
        broker_id = _make_template(node, directory, plan, broker_id) or broker_id


def _make_template(node: str, directory: Path, plan: Plan, broker_id: str) -> str:
    """Start an instance once and stop it, so that it leaves stores with the declared objects.

    Return the id of its broker if others need it, else an empty string."""
    found = ""

    async def main(loop: VirtualLoop, streams: Streams) -> None:
        nonlocal found
        ids = SeededIds(streams.stream(f"ids {node}"))
        trace = Trace(loop.time)
        instance = Instance(
            objects.settings(node, directory / node, plan),
            Surroundings(
                clock=SimClock(loop, utc_start=UTC_START),
                ids=ids,
                rng=streams.stream("rng"),
                network=SimNetwork(loop, streams.stream("network")).for_node(node),
                executor=Inline(),
                log=CountingLog(node, trace, Counter()),
                boot_id=BootId(ids.fresh()),
                keys=None,
            ),
        )
        await instance.start(objects.declared(node, plan, broker_id=broker_id))
        if node == MIRRORED:
            found = instance.brokers[objects.BROKER].broker_id.hex()
        await instance.stop(timedelta(0))

    virtual.run(main, seed=0)
    return found
