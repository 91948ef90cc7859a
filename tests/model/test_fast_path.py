"""The fast path and the general path do the same, whatever several clients do (MODEL tier).

Each program is played twice, with the switch on and off. What clients were answered and when, every
view, the log and the store that is left are compared. Ids and keys are numbered in the order in
which they come up, since the two paths draw different ones.

Arrivals take the general path in both, and `integration/fastpath/test_arrivals.py` compares the
two paths of an arrival: which of two dialogs in one boxcar is stored first is left open, and would
decide what a later RECEIVE gets.
"""

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.admin.views.columns import COLUMNS
from brokerd.delivery.incoming import dispatcher
from brokerd.ids import ID_SIZE
from tests.model import engine
from tests.model.dice import BYTES
from tests.model.machine import Machine

PROGRAMS = 40
STEPS = 40
SHORT = 0.2
"""Share of the steps after which a dialog of one message is held."""
DRAWN = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b|\b[0-9a-f]{8}\b"
)
"""Ids as text, whole or by their first eight digits."""
KEYS = frozenset({"endpoint_key", "next_endpoint_key"})
LEFT_OUT = frozenset(
    {"body_hash", "incarnation", "instance_id"}  # drawn, or made of what is drawn
    | {"next_queuing_order"}  # numbers that a short dialog does not draw
    # A crash may come before a clean-up that the other path did not need.
    | {"clean_ups_resumed_total", "done_total", "flushes", "writes_total"}
    # What depends on which messages are in memory, which no rule says. After a start, the general
    # path brings some in by looking up the handle of a short dialog.
    | {"paged", "oldest_ready_at", "last_activity_at", "rows_written_total"}
    | {"peak_memory", "last_duration", "data_dir"}  # of this process
)
ORDER = "queuing_order"


class Counting:
    """Ids that rise, so that both paths lock groups in the same order (GRP-6)."""

    def __init__(self, rng: Random) -> None:
        self._prefix = rng.randbytes(2)
        self._drawn = 0

    def fresh(self) -> bytes:
        """The next one."""
        self._drawn += 1
        return self._prefix + self._drawn.to_bytes(2, "big") + b"drawn id".ljust(12)


class Numbered:
    """Drawn names by the order in which they came up."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] | None = {}

    def rows(self, rows: list[Any]) -> list[Any]:
        """Rows in an order that does not depend on what was drawn, with numbers for names."""
        masked = Numbered()
        masked._numbers = None
        ordered = sorted(rows, key=lambda row: repr(masked.show(row)))
        if rows and ORDER in rows[0]:
            ordered = ranked(ordered)
        return sorted((self.show(row) for row in ordered), key=repr)

    def show(self, value: Any, name: str = "") -> Any:  # noqa: PLR0911  # one for each type
        """The same value with every drawn name replaced by its number."""
        match value:
            case int() if name in KEYS:
                return self._number((name, value))
            case bytes() if len(value) == ID_SIZE:
                return self._number(value.hex()[:8])
            case bytes():
                return self.show(value.decode("latin-1"))
            case str():
                return DRAWN.sub(lambda one: self._number(one[0][:8]), value)
            case dict():
                kept = value.keys() - LEFT_OUT
                return {key: self.show(value[key], key) for key in sorted(kept)}
            case list() | tuple():
                return [self.show(one) for one in value]
            case _:
                return value

    def _number(self, drawn: object) -> str:
        if self._numbers is None:
            return "#"
        return f"#{self._numbers.setdefault(drawn, len(self._numbers))}"


def ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows with their place in their conversation instead of the one in the store."""
    places: Counter[object] = Counter()
    found = []
    for row in sorted(rows, key=lambda row: row[ORDER]):
        whose = row.get("endpoint_key") or row.get("conversation_handle")
        places[whose] += 1
        found.append(row | {ORDER: places[whose]})
    return found


def play(seed: int, *, fast_paths: bool) -> dict[str, Any]:
    """Play a program; what can be seen of it."""
    dice = Random(seed)
    machine = Machine()
    machine.fast_paths = fast_paths
    with (
        patch.object(engine, "SeededIds", Counting),
        patch.dict(engine._PREPARED),
        patch.object(dispatcher, "_is_ordinary", lambda *_: False),
    ):
        return _play(machine, dice)


def _play(machine: Machine, dice: Random) -> dict[str, Any]:
    try:
        pairs = [(dice.randrange(8), dice.randrange(8)) for _ in range(dice.randint(1, 4))]
        seldom = dice.randbytes(4) if dice.random() < 0.5 else b""
        machine.some_dialogs(first=pairs, small=dice.random() < 0.3, seldom=seldom)
        for _ in range(STEPS):
            machine.next(dice=dice.randbytes(BYTES))
            if dice.random() < SHORT:
                short_dialog(machine, dice)
        return seen(machine)
    finally:
        machine.teardown()


def short_dialog(machine: Machine, dice: Random) -> None:
    """Begin, send on and end a dialog in one request, which the machine itself never does."""
    idle = [one for one in machine.idle() if one not in machine.driver.txs]
    if not idle:
        return
    client, pair = dice.choice(idle), dice.randrange(8)
    begin = machine._begin_dialog(client, pair, 0, None)
    handle = begin[0][1]["handle"]
    send = machine._send(client, [handle], dice.choice((0, 3)), begun=pair)
    machine._transact(client, [begin, send, machine._end([handle], 0)])


def seen(machine: Machine) -> dict[str, Any]:
    numbered = Numbered()
    real = machine.driver.engine
    found: dict[str, Any] = {"program": [numbered.show(line) for line in machine.driver.program]}
    for name in sorted(COLUMNS, key=lambda name: (name != "conversation_endpoints", name)):
        found[name] = numbered.rows(real.view(name))
    for broker in real.instance.brokers.values():
        found[f"{broker.name}.counters"] = [broker.sends, broker.receives, broker.rollbacks]
    found["log"] = [numbered.show(line) for line in real.log.lines]
    for path in sorted(real.stop().glob("*.db")):
        found |= {f"{path.stem}.{table}": rows for table, rows in dump(path, numbered)}
    return found


def dump(path: Path, numbered: Numbered) -> Iterator[tuple[str, list[Any]]]:
    """Yield every table of a store with its rows; shelves belong to the table of messages."""
    found = defaultdict[str, list[Any]](list)
    with closing(sqlite3.connect(path)) as store:
        store.row_factory = sqlite3.Row
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        for (table,) in store.execute(tables).fetchall():
            name = "queue_messages" if table.startswith("shelf_") else table
            found[name] += [dict(row) for row in store.execute(f"SELECT * FROM {table}")]
    for name, rows in found.items():
        yield name, numbered.rows(rows)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_both_paths_do_the_same(seed: int) -> None:
    fast, general = play(seed, fast_paths=True), play(seed, fast_paths=False)
    assert fast.keys() == general.keys()
    different = {name for name in fast if fast[name] != general[name]}
    assert {name: (fast[name], general[name]) for name in different} == {}
