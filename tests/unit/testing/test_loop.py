"""Virtual time: order, jumps, and reports of runs that cannot end."""

import asyncio
import gc
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine
from itertools import count
from pathlib import Path
from random import Random
from time import perf_counter

import pytest

from brokerd.testing.loop import SCOPE, VirtualLoop, run
from brokerd.testing.rng import Streams
from brokerd.testing.stuck import Deadlock, Livelock, NotSimulated, OutOfTime, Spinning
from brokerd.testing.trace import Trace

pytestmark = pytest.mark.rule("HK-5")


def test_time_starts_at_zero_and_jumps_to_timers() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> list[float]:
        seen = [loop.time()]
        await asyncio.sleep(3600.25)
        seen.append(loop.time())
        await asyncio.sleep(0)
        seen.append(loop.time())
        return seen

    assert run(main, seed=1) == [0.0, 3600.25, 3600.25]


def test_timers_fire_by_time_then_in_the_order_asked_for() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> list[tuple[str, float]]:
        fired: list[tuple[str, float]] = []

        def fire(name: str) -> None:
            fired.append((name, loop.time()))

        loop.call_at(2.0, fire, "c")
        for name in "defgh":
            loop.call_at(2.0, fire, name)
        loop.call_later(1.0, fire, "a")
        loop.call_later(1.5, fire, "b")
        loop.call_later(1.7, fire, "never").cancel()
        await asyncio.sleep(5)
        return fired

    fired = run(main, seed=1)
    assert [name for name, _ in fired] == list("abcdefgh")
    assert [at for _, at in fired] == [1.0, 1.5] + [2.0] * 6


@pytest.mark.rule("CHK-12")
def test_timers_are_exact_even_late_in_a_long_run() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> list[float]:
        seen = []
        await asyncio.sleep(1e9)
        for deadline in (1e9 + 0.1, 1e9 + 0.1 + 1e-6):
            done = loop.create_future()
            loop.call_at(deadline, done.set_result, None)
            await done
            seen.append(loop.time() - deadline)
        return seen

    assert run(main, seed=1) == [0.0, 0.0]


def test_call_soon_is_first_come_first_served_from_the_loops_thread() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> list[int]:
        seen: list[int] = []
        for number in range(6):
            ask = loop.call_soon if number % 2 else loop.call_soon_threadsafe
            ask(seen.append, number)
        await asyncio.sleep(0)
        return seen

    assert run(main, seed=1) == list(range(6))


def test_another_thread_is_refused() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> list[str]:
        errors: list[str] = []

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except NotSimulated as error:
                errors.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return errors

    assert run(main, seed=1) == ["another thread called into simulated time"]


def test_deadlock_names_every_task_and_where_it_waits() -> None:
    async def waits_for_nobody(event: asyncio.Event) -> None:
        await event.wait()

    async def main(_loop: VirtualLoop, _streams: Streams) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits_for_nobody(asyncio.Event()), name="lonely")

    with pytest.raises(Deadlock) as caught:
        run(main, seed=42)
    text = str(caught.value)
    assert "2 tasks" in text
    assert "lonely: " in text
    assert "waits_for_nobody (testing/test_loop.py:" in text
    assert "> Event.wait (asyncio/locks.py:" in text
    assert caught.value.__notes__ == ["seed 42"]


def test_a_limit_ends_a_run_that_only_ticks() -> None:
    async def main(_loop: VirtualLoop, _streams: Streams) -> None:
        for _ in count():
            await asyncio.sleep(5)

    with pytest.raises(OutOfTime, match="not done after 300"):
        run(main, seed=1, limit=300)


def test_turning_on_the_spot_is_noticed() -> None:
    loop = VirtualLoop(max_idle_turns=1000)

    async def spin() -> None:
        for _ in count():
            await asyncio.sleep(0)

    task = loop.create_task(spin())
    with pytest.raises(Spinning, match="1000 turns"):
        loop.run_until_complete(task)
    loop.cancel_left_over()
    loop.close()


@pytest.mark.rule("HK-5")
@pytest.mark.parametrize("pause", [0.0, 0.0001])
def test_a_livelock_ends_the_run_and_names_what_ran_most(pause: float) -> None:
    async def busy() -> None:
        for _ in count():
            await asyncio.sleep(pause)

    async def calm() -> None:
        await asyncio.sleep(1000)

    async def main(loop: VirtualLoop, _streams: Streams) -> None:
        others = [loop.create_task(busy()), loop.create_task(busy()), loop.create_task(calm())]
        await asyncio.sleep(4.5)  # none of this is counted together with what comes later
        await asyncio.gather(*others)

    with pytest.raises(Livelock, match=r"livelock: \d+ callbacks within 1 s; lately") as caught:
        run(main, seed=7, max_callbacks=5_000)
    text = str(caught.value)
    assert "busy" in text.splitlines()[0]
    assert "virtual seconds; 4 tasks" in text
    assert caught.value.__notes__ == ["seed 7"]


@pytest.mark.rule("HK-3")
@pytest.mark.filterwarnings("error")
def test_what_the_clean_up_of_the_killed_starts_is_never_run_and_does_not_warn(
    recwarn: pytest.WarningsRecorder,
) -> None:
    ran: list[str] = []

    async def late() -> None:
        ran.append("late")

    def spawn(work: Coroutine[object, object, None]) -> None:
        asyncio.get_running_loop().create_task(work)

    async def victim() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            spawn(late())

    async def main(loop: VirtualLoop, _streams: Streams) -> None:
        loop.create_task(victim(), context=loop.scope("east/1"))
        await asyncio.sleep(1)
        loop.kill("east/1")

    run(main, seed=7)
    gc.collect()  # what was never awaited would say so now
    assert ran == []
    assert [str(one.message) for one in recwarn] == []


def test_much_over_a_long_time_is_no_livelock() -> None:
    async def main(_loop: VirtualLoop, _streams: Streams) -> float:
        for _ in range(2_000):
            await asyncio.sleep(0.01)
        return _loop.time()

    assert run(main, seed=7, max_callbacks=500) == pytest.approx(20)


async def _ask(loop: VirtualLoop, what: str, near: socket.socket) -> None:
    match what:
        case "executor":
            await loop.run_in_executor(None, print)
        case "to_thread":
            await asyncio.to_thread(print)
        case "connection":
            await loop.create_connection(asyncio.Protocol, "127.0.0.1", 1)
        case "server":
            await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        case "unix":
            await asyncio.open_unix_connection("x.sock")
        case "names":
            await loop.getaddrinfo("localhost", 1)
        case "sock_recv":
            await loop.sock_recv(near, 1)
        case "reader":
            loop.add_reader(near, print)
        case "subprocess":
            await asyncio.create_subprocess_exec("true", stdout=subprocess.DEVNULL)
        case "signal":
            loop.add_signal_handler(signal.SIGUSR1, print)
        case _:
            raise AssertionError(what)


@pytest.mark.parametrize(
    "what",
    [
        "executor",
        "to_thread",
        "connection",
        "server",
        "unix",
        "names",
        "sock_recv",
        "reader",
        "subprocess",
        "signal",
    ],
)
def test_the_outside_world_is_refused(what: str) -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> None:
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            await _ask(loop, what, near)

    with pytest.raises(NotSimulated, match="does not exist in simulated time"):
        run(main, seed=1)


def test_what_nobody_waited_for_comes_out_at_the_end() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> int:
        loop.call_soon(int, "no number")
        await asyncio.sleep(1)
        return 7

    with pytest.raises(ExceptionGroup) as caught:
        run(main, seed=3)
    assert isinstance(caught.value.exceptions[0], ValueError)


def test_tasks_left_over_are_cancelled_and_cleaned_up() -> None:
    seen: list[str] = []

    async def left() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            seen.append("cleaned up")

    async def main(loop: VirtualLoop, _streams: Streams) -> None:
        loop.create_task(left())
        await asyncio.sleep(1)

    run(main, seed=1)
    assert seen == ["cleaned up"]


def test_a_killed_scope_stops_where_it_stands() -> None:
    seen: list[str] = []

    async def node(loop: VirtualLoop) -> None:
        assert SCOPE.get() == "east/1"
        loop.call_later(3, seen.append, "timer of the dead")
        async with asyncio.TaskGroup() as group:
            group.create_task(beat())

    async def beat() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append("beat")
        finally:
            seen.append("clean-up")

    async def main(loop: VirtualLoop, _streams: Streams) -> list[str]:
        loop.create_task(node(loop), context=loop.scope("east/1"))
        await asyncio.sleep(2.5)
        loop.kill("east/1")
        await asyncio.sleep(10)
        return list(seen)

    assert run(main, seed=1) == ["beat", "beat"]


def test_a_task_group_cancels_in_the_same_order_every_time() -> None:
    async def main(_loop: VirtualLoop, _streams: Streams) -> list[int]:
        seen: list[int] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                seen.append(number)

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ValueError

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(40):
                    group.create_task(wait(number))
                group.create_task(fail())
        except* ValueError:
            seen.append(-1)
        return seen

    padding = [object() for _ in range(1000)]
    first = run(main, seed=1)
    del padding[::3]
    assert run(main, seed=1) == first
    assert sorted(first) == list(range(-1, 40))


def _wake_order(seed: int, *, shuffle: bool) -> list[int]:
    async def main(_loop: VirtualLoop, _streams: Streams) -> list[int]:
        seen: list[int] = []
        go = asyncio.Event()

        async def wait(number: int) -> None:
            await go.wait()
            seen.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(wait(number))
            await asyncio.sleep(1)
            go.set()
        return seen

    return run(main, seed=seed, shuffle=shuffle)


def test_wake_ups_can_be_permuted_by_the_seed() -> None:
    assert _wake_order(1, shuffle=False) == list(range(20))
    assert _wake_order(1, shuffle=True) != list(range(20))
    assert _wake_order(1, shuffle=True) == _wake_order(1, shuffle=True)
    assert _wake_order(1, shuffle=True) != _wake_order(2, shuffle=True)


def test_thousands_of_virtual_seconds_a_second() -> None:
    async def main(loop: VirtualLoop, _streams: Streams) -> float:
        for _ in range(5000):
            await asyncio.sleep(1)
        return loop.time()

    began = perf_counter()
    assert run(main, seed=1) == 5000
    assert perf_counter() - began < 5


@pytest.mark.rule("HK-1")
def test_streams_are_apart_and_repeatable() -> None:
    one, two = Streams(7), Streams(7)
    assert one.stream("ids") is one.stream("ids")
    one.stream("other").random()
    drawn = [one.stream("network").random() for _ in range(5)]
    assert drawn == [two.stream("network").random() for _ in range(5)]
    assert drawn != [Streams(8).stream("network").random() for _ in range(5)]
    assert Streams(7).child("a").stream("b").random() != Streams(7).child("b").stream("a").random()
    assert Streams(7).stream("network").random() == Random(drawn_seed()).random()


def drawn_seed() -> int:
    """The seed of stream `network` under 7, from a process with another hash seed."""
    code = "from brokerd.testing.rng import Streams\nprint(Streams(7)._number('network'))"
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=root,
        env={"PYTHONHASHSEED": "12345"},
    )
    return int(done.stdout)


@pytest.mark.rule("HK-1")
def test_a_trace_hashes_everything_and_keeps_the_newest() -> None:
    def traced(*steps: str) -> Trace:
        trace = Trace(lambda: 1.5, keep=2)
        for what in steps:
            trace.note("east", what)
        return trace

    trace = traced("a", "b", "c")
    assert len(trace) == 3
    assert [line[-1] for line in trace.show().splitlines()] == ["b", "c"]
    assert trace.show(1) == "      1.500000 east       c"
    assert trace.digest() == traced("a", "b", "c").digest()
    assert trace.digest() != traced("x", "b", "c").digest()
