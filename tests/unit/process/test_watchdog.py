"""A loop that does not turn is noticed from another thread, with the stack of what holds it up."""

import asyncio
import threading

import pytest

from brokerd.process.watchdog import PERIOD, Watchdog


class Told:
    """What the watchdog has said."""

    def __init__(self) -> None:
        self.held: list[tuple[float, str, list[str]]] = []
        self.over: list[float] = []
        self.noticed = threading.Event()

    def tell(self, seconds: float, task: str, stack: list[str]) -> None:
        self.held.append((seconds, task, stack))
        self.noticed.set()


@pytest.mark.rule("ACT-20", "FP-8")
async def test_a_coroutine_that_never_awaits_is_named_with_its_stack() -> None:
    told = Told()

    async def never_awaits() -> None:
        assert told.noticed.wait(30)  # blocks the loop until it was noticed

    with Watchdog(after=PERIOD, report_blocked=told.tell, report_free=told.over.append):
        await asyncio.create_task(never_awaits(), name="reader 3 of main/shop")
        while not told.over:  # noqa: ASYNC110  # a turn of the loop is what is waited for
            await asyncio.sleep(0)
    seconds, task, stack = told.held[0]
    assert task == "reader 3 of main/shop"
    assert seconds >= PERIOD
    assert any("never_awaits" in frame and "test_watchdog.py" in frame for frame in stack)
    assert told.over[0] >= seconds


@pytest.mark.rule("FP-8")
async def test_a_loop_that_turns_is_left_alone() -> None:
    told = Told()
    dog = Watchdog(after=PERIOD, report_blocked=told.tell, report_free=told.over.append)
    turned = threading.Event()
    turn = dog._turn
    dog._turn = lambda: (turn(), turned.set())  # type: ignore[method-assign,assignment,func-returns-value]
    with dog:
        for _ in range(2):
            await asyncio.to_thread(turned.wait, 30)
            turned.clear()
    assert not told.held
    assert not told.over
