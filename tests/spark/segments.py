"""Lines and segments of a metrics log with sensible defaults, and a whole run that looks real."""

import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

SECOND = 1_000_000
NOON = 1_795_003_200 * SECOND
"""2026-11-18 12:00:00 UTC."""


def interval(**fields):
    line = {
        "v": 1,
        "kind": "interval",
        "instance": "west",
        "broker": "west",
        "boot_id": "b0",
        "seq": 1,
        "at": NOON + SECOND,
        "from_at": NOON,
        "scope": "queue",
        "queue": "orders",
        "counters": {"enqueued": 10, "received": 10},
        "gauges": {"ready": 0},
        "histograms": {},
    }
    return line | fields


def dialog(**fields):
    line = {
        "v": 1,
        "kind": "dialog",
        "instance": "east",
        "broker": "east",
        "boot_id": "a0",
        "seq": 1,
        "at": NOON,
        "state": "closed",
        "conversation_id": "00000000-0000-0000-0000-000000000001",
        "is_initiator": True,
        "service": "shop",
        "far_service": "warehouse",
        "contract": "ordering",
        "sent": 10,
        "acknowledged": 10,
        "received": 10,
        "discarded_unread": 0,
        "undelivered": 0,
        "outcome": "ended",
        "began_at": NOON - SECOND,
        "ended_at": NOON,
    }
    return line | fields


def target(**fields):
    far = {
        "instance": "west",
        "broker": "west",
        "boot_id": "b0",
        "is_initiator": False,
        "service": "warehouse",
        "far_service": "shop",
    }
    return dialog(**(far | fields))


def mark(**fields):
    line = {
        "v": 1,
        "kind": "mark",
        "instance": "east",
        "broker": "east",
        "boot_id": "a0",
        "seq": 1,
        "at": NOON,
        "what": "started",
    }
    return line | fields


def bucket(us):
    return str(max(0, math.floor(math.log(max(us, 1)) / math.log(1.02))))


def histogram(values):
    return dict(Counter(bucket(value) for value in values))


def write(directory, name, lines):
    """A sealed segment; a line that is `bytes` is written as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.jsonl"
    raw = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path


@dataclass
class Daemon:
    """One boot of an instance, numbering its lines."""

    instance: str
    boot_id: str
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(self, line):
        own = {"instance": self.instance, "broker": self.instance, "boot_id": self.boot_id}
        self.lines.append(line | own | {"seq": len(self.lines)})

    def number(self):
        self.lines.sort(key=lambda line: line["at"])
        for seq, line in enumerate(self.lines):
            line["seq"] = seq

    def seal(self, directory: Path, *, every: int = 400):
        for first in range(0, len(self.lines), every):
            name = f"{self.instance}-{self.boot_id}-{first:010d}"
            write(directory, name, self.lines[first : first + every])


def demo_run(directory, *, seed=1, seconds=40, dialogs=500, orders=20_000, spoil=None):
    """Two instances, orders one way and replies back, west killed and started again at half time.

    `spoil(lines by boot)` may plant faults before the segments are written.
    """
    rng = random.Random(seed)
    half = seconds // 2
    boots = {
        ("east", 0): Daemon("east", "a" * 32),
        ("west", 0): Daemon("west", "b" * 32),
        ("west", 1): Daemon("west", "c" * 32),
    }
    for daemon, at in zip(boots.values(), (0, 0, half), strict=True):
        daemon.add(mark(at=NOON + at * SECOND, what="recovered" if at else "started"))
    for second in range(seconds):
        away = half <= second < half + 2
        rate = 0 if away else int(orders / (seconds - 2) * rng.uniform(0.7, 1.3))
        _second(boots["east", 0], second, rate, queue="replies", way=("warehouse", "shop"), rng=rng)
        if not away:
            west = boots["west", int(second > half)]
            _second(west, second, rate, queue="orders", way=("shop", "warehouse"), rng=rng)
    for number in range(dialogs):
        at = NOON + int((number + 1) / dialogs * seconds * SECOND)
        west = boots["west", int(at > NOON + half * SECOND)]
        each = orders // dialogs
        name = str(UUID(int=number + 1))
        same = {"at": at, "conversation_id": name, "sent": each, "acknowledged": each}
        same |= {"received": each, "began_at": NOON, "ended_at": at}
        boots["east", 0].add(dialog(**same))
        west.add(target(**same))
    boots["east", 0].add(mark(at=NOON + seconds * SECOND, what="stopped"))
    boots["west", 1].add(mark(at=NOON + seconds * SECOND, what="stopped"))
    for daemon in boots.values():
        daemon.number()
    if spoil is not None:
        spoil(boots)
    for daemon in boots.values():
        daemon.seal(directory / daemon.instance)


def _second(daemon, second, rate, *, queue, way, rng):
    at = NOON + second * SECOND + rng.randrange(3_000)
    times = {"from_at": at, "at": at + SECOND}
    waits = [rng.lognormvariate(9, 0.8) for _ in range(rate)]
    counts = {"enqueued": rate, "received": rate}
    hot = {"groups": {str(UUID(int=7)): rate // 2}, "groups_within": 1} if rate else {}
    daemon.add(
        interval(
            **times, queue=queue, counters=counts, histograms={"wait_us": histogram(waits)}, **hot
        )
    )
    pair = {"scope": "pair", "queue": None, "from_service": way[0], "to_service": way[1]}
    daemon.add(interval(**times, **pair, contract="ordering", counters={"received": rate}))
    back = {"scope": "pair", "queue": None, "from_service": way[1], "to_service": way[0]}
    daemon.add(interval(**times, **back, contract="ordering", counters={"sent": rate}))
    syncs = histogram(rng.lognormvariate(6.5, 0.4) for _ in range(200))
    inside = {"flush_us": syncs, "commit_us": syncs}
    daemon.add(
        interval(
            **times, scope="instance", queue=None, counters={"flushes": 200}, histograms=inside
        )
    )
