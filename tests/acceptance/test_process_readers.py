"""Readers in processes of their own, started by a daemon: good ones and bad ones (ACT-20, SX-8)."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session, connect
from tests.acceptance.serving import Place

HANDLERS = """
import os

async def answer(session):
    async with session.transaction() as tx:
        for message in await tx.receive("warehouse_q", 1, wait=0.5):
            await tx.end(message.handle, 1, f"by {os.getpid()}")

async def raises(session):
    async with session.transaction() as tx:
        if await tx.receive("warehouse_q", 1):
            raise ValueError("the shelf fell over")

async def leaves_open(session):
    await session.transaction().receive("warehouse_q", 1)

async def never_receives(session):
    print("nothing to do")

async def exits_in_the_middle(session):
    async with session.transaction() as tx:
        await tx.receive("warehouse_q", 1)
        os._exit(0)

async def dies_in_the_middle(session):
    async with session.transaction() as tx:
        await tx.receive("warehouse_q", 1)
        os.kill(os.getpid(), 11)

async def reads_another(session):
    await session.receive("nosuch_q", 1, autocommit=True)

async def exits(session):
    os._exit(3)

async def blocks(session):
    import time
    await session.receive("warehouse_q", 1, autocommit=True)
    time.sleep(1.6)

async def spins(session):
    while True:
        pass

async def finishes_when_told(session):
    import asyncio, signal
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with session.transaction() as tx:
        for message in await tx.receive("warehouse_q", 1):
            await told.wait()
            await tx.end(message.handle, 1, "finished in time")

def plain(session):
    pass

async def takes_two(session, queue):
    pass
"""


class Serving:
    """A daemon with a place of its own."""

    def __init__(
        self,
        place: Place,
        process: "subprocess.Popen[bytes]",
        supervisor: socket.socket | None = None,
    ) -> None:
        self.place = place
        self.process = process
        self.supervisor = supervisor

    def events(self) -> list[dict[str, Any]]:
        """The event log so far."""
        log = self.place.folder.parent / f"{self.place.folder.name}.log"
        return [json.loads(line) for line in log.read_text().splitlines() if line[:1] == "{"]

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        async with connect(self.place.address, broker="main", wait=30) as session:
            yield session


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    place = Place(tmp_path_factory.mktemp("readers") / "x")
    (place.folder / "stock.py").write_text(HANDLERS)
    (place.folder / "broken.py").write_text("raise RuntimeError('no licence')\n")
    with place.serving() as process:
        yield Serving(place, process)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """One that may be killed, and tells its supervisor how it is."""
    place = Place(tmp_path / "x")
    (place.folder / "stock.py").write_text(HANDLERS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "n"))
        supervisor.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        with place.serving() as process:
            yield Serving(place, process, supervisor)


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """What it gives once it gives something."""
    async with asyncio.timeout(60):
        while not (found := await look()):  # noqa: ASYNC110  # only the daemon knows
            await asyncio.sleep(0.02)
    return found


async def row(session: Session, view: str, key: str, name: str = "warehouse_q") -> dict[str, Any]:
    (found,) = await session.view(view, where={key: name})
    return dict(found)


async def use(session: Session, handler: str, **activation: object) -> None:
    """Let the queue be read by this handler in a process, and be on."""
    given = {"handler": handler, "host": "process", "status": "on", **activation}
    await session.alter("queue", "warehouse_q", status="on", activation=given)


async def answered(session: Session, handle: bytes) -> str:
    """What the good handler says of itself."""

    async def look() -> str | None:
        for message in await session.receive("shop_q", autocommit=True, wait=5):
            if message.handle == handle and message.error is not None:
                return message.error.description
        return None

    return str(await until(look))


async def ask(session: Session) -> bytes:
    handle = await session.begin_dialog("shop", "warehouse", "orders")
    await session.send(handle, b"one", "Order")
    return handle


@pytest.mark.rule("ACT-20")
@pytest.mark.rule("ACT-21")
@pytest.mark.rule("VIEW-7")
async def test_a_good_one_runs_in_a_process_of_its_own(serving: Serving) -> None:
    async with serving.session() as session:
        await use(session, "stock:answer")
        said = await answered(session, await ask(session))
        assert said.startswith("by ")
        assert said != f"by {serving.process.pid}"


def spare_pids(place: Place) -> set[int]:
    """Processes that wait to be the next reader."""
    found = set()
    for process in Path("/proc").iterdir():
        try:
            seen = (process / "environ").read_bytes()
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"BROKERD_GO=" in seen and place.address.encode() in seen and b"guard.py" not in words:
            found.add(int(process.name))
    return found


@pytest.mark.rule("ACT-51")
async def test_a_process_is_kept_ready_and_loads_again_what_was_changed(serving: Serving) -> None:
    place, module = serving.place, serving.place.folder / "stock.py"
    async with serving.session() as session:
        await use(session, "stock:answer")

        async def ready() -> set[int]:
            running = await session.view("activated_tasks")
            return set() if running else spare_pids(place)

        waiting = await until(ready)
        assert await answered(session, await ask(session)) in {f"by {pid}" for pid in waiting}
        another = await until(ready)
        module.write_text(HANDLERS.replace('f"by {os', 'f"changed, by {os'))
        try:
            said = await answered(session, await ask(session))
        finally:
            module.write_text(HANDLERS)
        assert said in {f"changed, by {pid}" for pid in another}
        await session.alter("queue", "warehouse_q", activation={"spare": "off"})

        async def none() -> bool:
            return not spare_pids(place)

        await until(none)
        assert (await answered(session, await ask(session))).startswith("by ")
        await session.alter("queue", "warehouse_q", activation={"spare": "on"})


COMMAND = """
import asyncio, json, os, resource, sys
from brokerd import connect

async def main():
    told = {name: value for name, value in os.environ.items() if name.startswith("BROKERD_")}
    secret = told.pop("BROKERD_READER")
    told |= {"words": sys.argv[1:], "memory": resource.getrlimit(resource.RLIMIT_DATA)[0]}
    told |= {"pid": os.getpid(), "group": os.getpgrp()}
    async with connect(broker=os.environ["BROKERD_BROKER"]) as session:
        async with session.transaction() as tx:
            for message in await tx.receive(os.environ["BROKERD_QUEUE"], 1):
                (reader,) = await session.view("activated_tasks")
                told["spid"] = reader["spid"] == session.client_id.hex()
                told["hidden"] = secret not in json.dumps(reader, default=str)
                await tx.end(message.handle, 1, json.dumps(told))
    print("packed", flush=True)

asyncio.run(main())
"""


@pytest.mark.rule("ACT-20", "ACT-21", "ACT-51", "ACT-52")
async def test_a_command_is_told_where_it_reads_and_is_known_by_its_session(
    serving: Serving,
) -> None:
    (serving.place.folder / "packs.py").write_text(COMMAND)
    words = [sys.executable, "packs.py", "--fast"]
    async with serving.session() as session:
        await session.alter("queue", "warehouse_q", activation="drop")
        own = {"command": words, "status": "on", "drain_wait": "2s"}
        await session.alter("queue", "warehouse_q", activation=own)
        said = json.loads(await answered(session, await ask(session)))
        group, pid = said.pop("group"), said.pop("pid")
        assert said == {
            "BROKERD_ADDRESS": serving.place.address,
            "BROKERD_BROKER": "main",
            "BROKERD_QUEUE": "warehouse_q",
            "BROKERD_DRAIN_WAIT": "2",
            "words": ["--fast"],
            "memory": 1024**3,
            "spid": True,
            "hidden": True,
        }
        assert group not in (pid, os.getpgid(serving.process.pid))  # the guard leads it

        async def printed() -> object:
            return [one for one in serving.events() if one.get("line") == "packed"]

        (line, *_) = await until(printed)
        assert (line["subclass"], line["queue"]) == ("task_output", "warehouse_q")
        assert line["handler"].endswith("packs.py --fast")
        await session.alter("queue", "warehouse_q", activation="drop")


@pytest.mark.rule("ACT-24", "ACT-51")
async def test_an_account_that_is_not_there_is_a_failed_start(serving: Serving) -> None:
    async with serving.session() as session:
        await use(session, "stock:answer", run_as="no-such-account")
        handle = await ask(session)

        async def failed() -> object:
            now = await row(session, "queue_monitors", "queue_id")
            return now["consecutive_failures"] and now

        told = (await until(failed))["last_failure"]
        assert "no account 'no-such-account' on this machine" in told
        assert "; fix: " in told
        await use(session, "stock:answer", run_as="owner")
        assert (await answered(session, handle)).startswith("by ")


@pytest.mark.rule("ACT-24")
@pytest.mark.rule("ACT-31")
@pytest.mark.rule("PBT-6")
@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("missing:handle", "module missing does not import"),
        ("broken:handle", "no licence"),
        ("stock:plain", "not an async callable"),
        ("stock:nothing", "no attribute 'nothing'"),
        ("stock:takes_two", "cannot be called with one argument"),
        ("stock:exits", "exit status 3"),
        ("stock:never_receives", "ended without a receive"),
        ("stock:reads_another", "nosuch_q"),
    ],
)
async def test_one_that_fails_says_why_and_a_good_one_takes_its_place(
    serving: Serving, handler: str, words: str
) -> None:
    async with serving.session() as session:
        await use(session, handler)
        handle = await ask(session)

        async def failed() -> object:
            now = await row(session, "queue_monitors", "queue_id")
            return now["consecutive_failures"] and now

        now = await until(failed)
        assert now["state"] == "FAILED_BACKOFF"
        assert words in now["last_failure"]
        told = [one for one in serving.events() if one.get("subclass") == "failed_to_start"]
        (first, *_) = [one for one in told if one["handler"] == handler]
        assert words in first["error"]
        assert "; fix: " in first["error"]
        aborted = [one for one in serving.events() if one.get("subclass") == "aborted"]
        assert handler not in {one["handler"] for one in aborted}  # one event is enough
        assert first["retry_in"] == pytest.approx(5, abs=0.1)
        await use(session, "stock:answer")
        assert (await answered(session, handle)).startswith("by ")


@pytest.mark.rule("ACT-20")
@pytest.mark.rule("FP-8")
async def test_one_that_blocks_the_loop_of_the_daemon_is_named_with_its_stack(
    serving: Serving,
) -> None:
    async with serving.session() as session:
        await use(session, "stock:blocks", host="daemon")
        await ask(session)

        async def named() -> object:
            lines = [line for line in serving.events() if line.get("subclass") == "loop_blocked"]
            return lines and [one for one in serving.events() if one.get("subclass") == "loop_free"]

        await until(named)
        (line,) = [one for one in serving.events() if one.get("subclass") == "loop_blocked"]
        assert line["task"].startswith("reader ")
        assert line["task"].endswith(" of main/warehouse_q")
        assert any("blocks: time.sleep(1.6)" in frame for frame in line["stack"])
        assert "process" in line["hint"]
        await use(session, "stock:answer")


@pytest.mark.rule("ACT-23", "FP-4")
@pytest.mark.rule("PSN-16")
@pytest.mark.parametrize(
    ("handler", "words", "ended"),
    [
        ("stock:raises", "ValueError: the shelf fell over", "the shelf fell over"),
        ("stock:leaves_open", "transaction", "with a transaction open"),
        ("stock:exits_in_the_middle", "in the middle of a transaction", "with a transaction open"),
        ("stock:dies_in_the_middle", "in the middle of a transaction", "killed by SIGSEGV"),
    ],
)
async def test_one_that_rolls_back_for_ever_is_counted(
    serving: Serving, handler: str, words: str, ended: str
) -> None:
    async with serving.session() as session:
        await use(session, handler)
        handle = await ask(session)

        async def is_off() -> object:
            now = await row(session, "service_queues", "name")
            return not now["is_receive_enabled"] and now

        now = await until(is_off)
        assert (now["status_reason"], now["culprit_rollbacks"]) == ("poison", 5)
        assert words in now["last_error"]
        ends = [one for one in serving.events() if one.get("subclass") in ("aborted", "ended")]
        told = [
            (one["subclass"], one.get("error", "")) for one in ends if one["handler"] == handler
        ]
        assert {subclass for subclass, _ in told} == {"aborted"}
        assert ended in told[0][1]
        await use(session, "stock:answer")
        assert (await answered(session, handle)).startswith("by ")


@pytest.mark.rule("PBT-25", "CLP-118")
async def test_draining_sends_a_process_the_signal_to_stop(serving: Serving) -> None:
    async with serving.session() as session:
        await use(session, "stock:finishes_when_told")
        handle = await ask(session)

        async def has_received() -> bool:  # a receive that has not would come back empty
            groups = await session.view("conversation_groups")
            return any(group["locked_by_session"] for group in groups)

        await until(has_received)
        done = await session.admin.drain_queue("warehouse_q", grace=20)
        assert (done.ended, done.stopped, done.left) == (1, 0, 0)
        assert await answered(session, handle) == "finished in time"
        now = await row(session, "service_queues", "name")
        assert (now["is_activation_enabled"], now["is_receive_enabled"]) == (False, True)


@pytest.mark.rule("REL-28", "ACT-51", "FP-8")
async def test_a_daemon_that_stops_leaves_no_process_that_waits(alone: Serving) -> None:
    async with alone.session() as session:
        await use(session, "stock:answer")

        async def ready() -> object:
            status = await session.status()
            return spare_pids(alone.place) and status["clients"] == 2

        await until(ready)
    assert alone.supervisor is not None
    assert [alone.supervisor.recv(99) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
    for _ in range(10):  # the system keeps no more than ten for it
        alone.supervisor.recv(99)
    alone.process.send_signal(signal.SIGTERM)
    while alone.supervisor.recv(99) != b"STOPPING=1":
        pass
    assert alone.process.wait(30) == 0
    assert not spare_pids(alone.place)


@pytest.mark.rule("ACT-20")
@pytest.mark.rule("ACT-46")
async def test_one_that_never_awaits_holds_up_nobody_and_ends_with_the_daemon(
    alone: Serving,
) -> None:
    async with alone.session() as session:
        await use(session, "stock:spins")
        await ask(session)

        async def started() -> object:
            """It has the daemon's own number until its process is there."""
            tasks = await session.view("activated_tasks")
            return [one for one in tasks if one["pid"] != alone.process.pid]

        (task,) = await until(started)
        assert (await row(session, "service_queues", "name"))["ready_count"] == 1
    alone.process.send_signal(signal.SIGKILL)
    alone.process.wait(30)

    async def gone() -> bool:
        try:
            os.killpg(task["pid"], 0)
        except ProcessLookupError:
            return True
        return False

    await until(gone)
