"""The facade without await: the same names, and a clear error for what cannot work (BI-R8)."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from random import Random

import pytest

import brokerd
from brokerd.client.messages import FOREVER
from brokerd.errors import ConnectionLost, DaemonUnreachable, InvalidArgument, InvalidState
from brokerd.ids import SeededIds
from brokerd.protocol.client_verbs import BeginDialog, Move, Savepoint, Send
from tests.unit.client.scripted import GROUP, HANDLE, Daemon, MovedClock, message

pytestmark = pytest.mark.rule("BI-R8")


def connect(daemon: Daemon) -> brokerd.sync.Session:
    return brokerd.sync.connect(
        broker="shop",
        connector=daemon.connector,
        clock=MovedClock(),
        ids=SeededIds(Random(1)),
        rng=Random(1),
    )


@pytest.fixture
def session(daemon: Daemon) -> Iterator[brokerd.sync.Session]:
    with connect(daemon) as session:
        yield session


def test_the_same_verbs(session: brokerd.sync.Session, daemon: Daemon) -> None:
    handle = session.begin_dialog("shop", "warehouse")
    session.send(handle, b"1", "Order")
    session.end(handle)
    begun, sent, _ = daemon.applied
    assert isinstance(begun, BeginDialog)
    assert sent == Send(handle, "Order", b"1")
    assert session.status() == {"verb": "Status"}
    daemon.queues["q"] = [message(0, b"m")]
    assert [each.body for each in session.receive("q", autocommit=True)] == [b"m"]
    with pytest.raises(InvalidArgument):
        session.receive("q")


def test_groups_savepoints_and_browse(session: brokerd.sync.Session, daemon: Daemon) -> None:
    daemon.queues["q"] = [message(number) for number in range(5)]
    with session.transaction() as tx:
        assert tx.get_group("q") == GROUP
        assert tx.get_group("none") is None
        tx.send(HANDLE, b"1")
        with tx.savepoint() as point:
            tx.send(HANDLE, b"2")
            point.undo()
        with pytest.raises(ZeroDivisionError):
            fail_in(tx)
        tx.move(HANDLE, GROUP)
    assert daemon.applied[-4:] == [
        Send(HANDLE, None, b"1"),
        Savepoint(1),
        Savepoint(2),
        Move(HANDLE, GROUP),
    ]
    session.move(HANDLE, GROUP)
    assert daemon.applied[-1] == Move(HANDLE, GROUP)
    with session.group(GROUP) as held:
        assert (held.group_id, held.state) == (GROUP, None)
        held.set_state(b"s")
        assert held.state == b"s"
        held.tx.send(HANDLE, b"3")
    assert daemon.state == {GROUP: b"s"}
    assert [one.sequence for one in session.browse("q")] == [0, 1, 2, 3, 4]
    page = session.browse_page("q", limit=2)
    assert [one.status for one in page.messages] == [1, 1]
    rest = session.browse_page("q", page.after, 100)
    assert [one.sequence for one in rest.messages] == [2, 3, 4]
    assert rest.after is None


def fail_in(tx: brokerd.sync.Transaction) -> None:
    with tx.savepoint():
        tx.send(HANDLE, b"never")
        raise ZeroDivisionError


def test_a_block_commits_or_rolls_back(session: brokerd.sync.Session, daemon: Daemon) -> None:
    daemon.queues["q"] = [message(0)]
    with session.transaction() as tx:
        (found,) = tx.receive("q")
        tx.set_state(found.group_id, b"s")
        tx.send(found.handle, b"reply")
        handle = tx.begin_dialog("shop", "warehouse")
        tx.end(handle)
    assert daemon.state == {GROUP: b"s"}

    def block() -> None:
        with session.transaction() as tx:
            assert tx.state(GROUP) == b"s"
            tx.set_state(GROUP, None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    tx = session.transaction()
    tx.send(HANDLE)
    tx.rollback()
    session.status()
    assert daemon.state == {GROUP: b"s"}
    assert len(daemon.applied) == 4


def test_several_threads_may_use_one_session(session: brokerd.sync.Session, daemon: Daemon) -> None:
    def work(name: int) -> None:
        for _ in range(50):
            session.send(HANDLE, b"%d" % name)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(daemon.applied) == 200


async def test_not_inside_a_running_loop(daemon: Daemon) -> None:
    with pytest.raises(InvalidState, match=r"use brokerd\.connect"):
        connect(daemon)
    assert daemon.peers == []


def test_not_after_close(daemon: Daemon) -> None:
    session = connect(daemon)
    tx = session.transaction()
    session.close()
    session.close()
    for verb in (session.status, tx.commit):
        with pytest.raises(ConnectionLost, match="closed"):
            verb()
    assert not any(thread.name == "brokerd-client" for thread in threading.enumerate())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_not_after_fork(session: brokerd.sync.Session) -> None:
    child = os.fork()
    if child == 0:
        try:
            session.send(HANDLE)
        except InvalidState:
            os._exit(7)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_program_that_forgets_to_close_ends() -> None:
    program = (
        "import brokerd, sys\n"
        "from random import Random\n"
        "from tests.unit.client.scripted import Daemon, HANDLE\n"
        "daemon = Daemon()\n"
        "session = brokerd.sync.connect(broker='shop', connector=daemon.connector)\n"
        "session.send(HANDLE, b'1')\n"
        "class Late:\n"
        "    def __del__(self):\n"
        "        try: session.send(HANDLE)\n"
        "        except brokerd.BrokerError as error: print(error.code, flush=True)\n"
        "sys.late = Late()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert ended.stdout in ("", "connection_lost\n")
    assert "Traceback" not in ended.stderr


def test_nobody_there(daemon: Daemon) -> None:
    daemon.down = True
    with pytest.raises(DaemonUnreachable):
        connect(daemon)
    assert not any(thread.name == "brokerd-client" for thread in threading.enumerate())


@pytest.mark.rule("RCV-22")
def test_an_interrupted_wait_is_cancelled(
    session: brokerd.sync.Session, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asyncio.run_coroutine_threadsafe

    def interrupted(work, loop):
        future = run(work, loop)

        def result() -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(future, "result", result)
        return future

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.receive("q", wait=FOREVER, autocommit=True)
    for _ in range(20):
        session.status()
    assert daemon.peer.waiting == {}
    assert daemon.peer.txs == {}
