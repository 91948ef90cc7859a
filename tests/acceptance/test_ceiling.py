"""Load that comes all at once, and a daemon that is killed under it: the ceiling holds (ACT-33).

Readers hold a lock for as long as they are at work, in the daemon or in a process of their own, so
that the system counts them: nobody who is asked could say of a killed daemon's readers.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.client.session import Session, connect
from tests.acceptance.serving import Place
from tests.kills.handlers import INSIDE

GROUPS = 64
HOMES = ("daemon", "process")
OBJECTS = """
[[queue]]
name = "{home}_q"
poison_handling = "off"
[queue.activation]
handler = "tests.kills.handlers:in_{home}"
host = "{home}"
max_readers = {most}
ramp_interval = "1s"
initial_readers = 2
[[service]]
name = "{home}"
queue = "{home}_q"
contracts = ["orders"]
"""


@pytest.mark.rule("ACT-17", "ACT-19", "ACT-33", "ACT-52")
def test_a_step_of_load_gets_all_readers_and_never_one_more_across_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a name that readers see
    place = Place(tmp_path / "x")
    own = "".join(OBJECTS.format(home=home, most=INSIDE) for home in HOMES)
    place.objects.write_text(place.objects.read_text() + own)
    settings = place.settings.read_text()
    place.settings.write_text(settings.replace('tick = "1h"', 'tick = "200ms"'))
    with place.serving() as process:
        asyncio.run(before_the_kill(place))
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    with place.serving():
        asyncio.run(after_the_kill(place, (tmp_path / "gate").touch))
    assert not list(tmp_path.glob("ceiling/*/exceeded-*"))


async def before_the_kill(place: Place) -> None:
    async with connect(place.address, broker="main", wait=30) as session:
        await load(session)
        await all_at_work(session)


async def after_the_kill(place: Place, open_gate: Callable[[], None]) -> None:
    async with connect(place.address, broker="main", wait=30) as session:
        await all_at_work(session)
        await another_was_wanted(session)
        open_gate()
        await answered(session)


async def load(session: Session) -> None:
    """From nothing to many groups in one step."""
    async with session.transaction() as tx:
        for _ in range(GROUPS):
            for home in HOMES:
                handle = await tx.begin_dialog("shop", home, "orders")
                await tx.send(handle, b"one", "Order")


async def all_at_work(session: Session) -> None:
    """Wait until as many as may be have received something."""
    async with asyncio.timeout(60):
        counts: Counter[str] = Counter()
        while counts != {f"{home}_q": INSIDE for home in HOMES}:
            rows = await session.view("activated_tasks")
            counts = Counter(row["queue_id"] for row in rows if row["receives"])
            await asyncio.sleep(0.02)


async def another_was_wanted(session: Session) -> None:
    """Wait until the monitors of both queues would have started one more."""
    limited: set[object] = set()
    async with asyncio.timeout(60):
        while len(limited) < len(HOMES):
            rows = await session.view("activation_decisions")
            limited = {row["queue_id"] for row in rows if row["decision"] == "limit reached"}
            await asyncio.sleep(0.02)


async def answered(session: Session) -> None:
    """Every dialog was ended once by who read its order."""
    ended: set[bytes] = set()
    async with asyncio.timeout(60):
        while len(ended) < GROUPS * len(HOMES):
            for one in await session.receive("shop_q", 100, autocommit=True, wait=5):
                assert one.handle not in ended
                ended.add(one.handle)
