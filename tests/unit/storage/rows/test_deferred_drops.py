"""How many messages of ended dialogs a step deletes."""

import sqlite3
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.ids import EndpointKey
from brokerd.storage import schema
from brokerd.storage.rows.deferred_drops import Drops
from brokerd.storage.rows.sweeps import FIRST, LEAST, Sweeper


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in schema.table_definitions():
        connection.execute(statement)
    connection.executemany(
        "INSERT INTO queue_messages VALUES (?, 1, ?, ?, 't', 5, 1, 0, x'00', NULL, NULL, 0)",
        [(order, order % 2, order) for order in range(20_000)],
    )
    yield connection
    connection.close()


def steps(connection: sqlite3.Connection, *, most: int, seconds: list[float]) -> list[int]:
    """What each step deletes, where the first ones take so long, and all others 3 ms."""
    now = 0.0
    took: list[float] = []
    swept: list[int] = []
    waiting: list[Any] = []

    def monotonic() -> float:
        nonlocal now
        if len(took) % 2:
            now += seconds[len(took) // 2] if len(took) // 2 < len(seconds) else 0.003
        took.append(now)
        return now

    clock: Any = SimpleNamespace(monotonic=monotonic)
    drops = Drops([EndpointKey(1)])
    sweeper = Sweeper(
        most=most,
        clock=clock,
        taken=list,
        some_bodies=lambda: False,
        submit=lambda job, reported: waiting.append((job, reported)),
        swept=swept.append,
    )
    sweeper.add(drops.sweeps(drops.keys))
    while waiting:
        job, reported = waiting.pop()
        sweeper.resume()  # one is under way
        assert not waiting
        reported(job(connection), None)
    assert drops.keys == set()
    left = connection.execute("SELECT endpoint_key, count(*) FROM queue_messages GROUP BY 1")
    assert [key for key, _ in left] == [0]
    return swept


@pytest.mark.rule("REL-35")
def test_quick_steps_delete_twice_as_many_up_to_the_most(connection: sqlite3.Connection) -> None:
    found = steps(connection, most=1024, seconds=[0.001, 0.001, 0.001])
    assert found == [FIRST, 512, *[1024] * 9, 16, 0]


@pytest.mark.rule("REL-35")
def test_long_steps_delete_half_as_many_down_to_the_least(connection: sqlite3.Connection) -> None:
    found = steps(connection, most=4096, seconds=[0.006] * 9 + [0.001] * 9)
    down = [FIRST // 2**n for n in range(5)]
    assert found[:9] == [*down, LEAST, LEAST, LEAST, LEAST]
    assert found[10:15] == [2 * LEAST, 4 * LEAST, 8 * LEAST, 16 * LEAST, 32 * LEAST]


@pytest.mark.rule("REL-35")
@pytest.mark.parametrize(("most", "each"), [(3, 3), (0, 1)])
def test_none_deletes_more_than_it_may(
    connection: sqlite3.Connection, most: int, each: int
) -> None:
    connection.execute("DELETE FROM queue_messages WHERE endpoint_key = 1 AND sequence > 20")
    connection.execute("UPDATE queue_messages SET endpoint_key = 0 WHERE queuing_order = 1")
    left = steps(connection, most=most, seconds=[1.0, 1.0, 0.001])
    assert left == [each] * (9 // each) + [0]
