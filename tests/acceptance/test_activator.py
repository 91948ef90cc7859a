"""The activator as a user runs it: a client of a real daemon that starts real programs (ACT-40)."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session, connect
from tests import warm
from tests.acceptance.serving import OBJECTS, Place, free_port

TELLING = """
[[queue]]
name = "activations"
[[service]]
name = "ops"
queue = "activations"
contracts = ["urn:brokerd:PostEventNotification"]
[[event_notification]]
name = "wake"
queue = "warehouse_q"
events = ["QUEUE_ACTIVATION"]
service = "ops"
activation_timeout = "1s"
"""
STOCK = """
import os
import msgspec
from brokerd import App, Contract, End

class Order(msgspec.Struct):
    number: int

app = App("warehouse")

@app.activate("warehouse_q", contract=Contract("orders", initiator=[Order]))
async def pack(order: Order) -> End:
    return End(error=1, description=f"by {os.getpid()}")
"""
LIVES = """
import os, sys, time
open(sys.argv[1] + f"/{os.getpid()}", "w").close()
time.sleep(600)
"""


class Far(Place):
    """One whose daemon listens for clients by TCP."""

    listen = ""

    @property
    def address(self) -> str:
        return self.listen


class Serving:
    """A daemon that clients reach by TCP, as from another machine (ACT-43)."""

    def __init__(self, folder: Path) -> None:
        self.place = Far(folder)
        self.address = self.place.listen = f"tcp://127.0.0.1:{free_port()}"
        self.place.write(listen=self.address)
        self.place.objects.write_text(OBJECTS + TELLING)
        text = self.place.settings.read_text()
        self.place.settings.write_text(text.replace('tick = "1h"', 'tick = "1s"'))

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        async with connect(self.address, broker="main", wait=30) as session:
            yield session

    def file(self, folder: Path, command: list[str], **instances: int) -> Path:
        """A file for an activator that is somewhere else."""
        folder.mkdir(exist_ok=True)
        (folder / "stock.py").write_text(STOCK)
        (folder / "lives.py").write_text(LIVES)
        numbers = "".join(f"{key} = {value}\n" for key, value in instances.items())
        path = folder / "activator.toml"
        path.write_text(
            '[activator]\ngrace = "5s"\n[log]\nformat = "json"\n'
            f'[[notification_service]]\nname = "ops"\naddress = "{self.address}"\n'
            'queue = "activations"\n'
            '[[application]]\nname = "packer"\n[application.trigger]\nqueue = "warehouse_q"\n'
            f"[application.launch]\ncommand = {json.dumps(command)}\n"
            f'directory = "{folder}"\n'
            f"[application.instances]\n{numbers}"
        )
        return path


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("activator") / "x")
    with serving.place.serving():
        yield serving


def command(*words: str) -> list[str]:
    return [*warm.COMMAND, *words]


@contextmanager
def running(folder: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """One of our commands; it is not left behind."""
    with (folder / "out.log").open("ab") as log:
        process = warm.Process(
            command(*words), stdout=log, stderr=log, cwd=folder, env=warm.environment()
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(30)


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """What it gives once it gives something."""
    async with asyncio.timeout(60):
        while not (found := await look()):  # noqa: ASYNC110  # only other processes know
            await asyncio.sleep(0.02)
    return found


async def ask(session: Session) -> bytes:
    handle = await session.begin_dialog("shop", "warehouse", "orders")
    await session.send(handle, b'{"number": 1}', "Order")
    return handle


async def answered(session: Session, count: int) -> set[str]:
    """Who has answered, once so many dialogs are."""
    said: list[str] = []
    async with asyncio.timeout(60):
        while len(said) < count:
            came = await session.receive("shop_q", autocommit=True, wait=5)
            said += [one.error.description for one in came if one.error is not None]
    return set(said)


def told(folder: Path, subclass: str) -> list[dict[str, Any]]:
    lines = (folder / "out.log").read_text().splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    return [one for one in events if one.get("subclass") == subclass]


@pytest.mark.rule("ACT-34", "ACT-41", "ACT-43", "ACT-44", "ACT-49")
async def test_programs_are_started_by_load_end_when_idle_and_come_again(
    serving: Serving, tmp_path: Path
) -> None:
    words = command("worker", "run", "stock:app", "--idle", "0.3", "--no-declare")
    path = serving.file(tmp_path / "far", words, max=2)
    with running(path.parent, "activator", "serve", str(path)) as process:
        async with serving.session() as session:
            for _ in range(2):
                for _ in range(5):
                    await ask(session)
                assert all(one.startswith("by ") for one in await answered(session, 5))

                async def idle() -> bool:
                    return len(told(path.parent, "ended")) == len(told(path.parent, "started")) > 0

                await until(idle)
            started, ended = told(path.parent, "started"), told(path.parent, "ended")
            assert len(started) >= 2
            assert max(one["active"] for one in started) <= 2
            assert {one["error"] for one in ended} == {""}
            assert await session.view("queue_monitors", where={"state": "INACTIVE"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.rule("ACT-42", "ACT-45", "ACT-46", "ACT-47")
async def test_after_its_own_crash_it_waits_for_what_it_left_and_never_has_more_than_max(
    serving: Serving, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    path = serving.file(tmp_path / "far", [sys.executable, "lives.py", str(seen)], min=2, max=2)
    most = 0

    def alive() -> set[int]:
        nonlocal most
        found = {int(one.name) for one in seen.iterdir() if _lives(int(one.name))}
        most = max(most, len(found))
        return found

    with running(path.parent, "activator", "serve", str(path)) as process:
        first = await until(lambda: _as_many(alive, 2))
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    with running(path.parent, "activator", "serve", str(path)) as process:

        async def replaced() -> bool:
            now = alive()
            return len(now) == 2 and not now & first

        await until(replaced)
        listed = serving.place.run("activator", "ls", str(path), "--json")
        assert {row["instance"] for row in json.loads(listed.stdout)["rows"]} == {0, 1}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert alive() == set()
    assert most == 2


async def _as_many(alive: Callable[[], set[int]], count: int) -> set[int]:
    found = alive()
    return found if len(found) == count else set()


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.rule("ACT-40", "ACT-44")
async def test_a_worker_starts_a_program_for_one_queue(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "stock.py").write_text(STOCK)
    program = " ".join(command("worker", "run", "stock:app", "--idle", "0.3", "--no-declare"))
    options = ("--queue", "warehouse_q", "--max", "2", "--address", serving.address)
    async with serving.session() as session:
        with running(tmp_path, "worker", "run", "--exec", program, *options) as process:

            async def declared() -> object:
                where = {"name": "warehouse_q.activation", "status": "open"}
                return await session.view("event_notifications", where=where)

            await until(declared)
            await ask(session)
            assert await answered(session, 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        await session.drop("event_notification", "warehouse_q.activation")
        assert os.environ.get("BROKERD_ADDRESS") is None


@pytest.mark.rule("ACT-40")
@pytest.mark.parametrize(
    ("queue", "program", "status", "named"),
    [
        ("no_such_q", "sh", 67, "queue 'no_such_q' is not in broker 'main'"),
        ("warehouse_q", "no-such-program", 64, "there is no program 'no-such-program'"),
    ],
)
async def test_a_worker_that_cannot_work_declares_nothing(
    serving: Serving, queue: str, program: str, status: int, named: str
) -> None:
    async with serving.session() as session:
        before = [row["name"] for row in await session.view("service_queues")]
        where = ("--queue", queue, "--address", serving.address)
        done = await asyncio.to_thread(
            serving.place.run, "worker", "run", "--exec", program, *where
        )
        assert done.returncode == status
        assert named in done.stderr
        assert [row["name"] for row in await session.view("service_queues")] == before
