"""The kept answer: shared while it is fresh, and not older than the last expiry."""

import asyncio
from typing import Any

import pytest

from brokerd.admin.kept_answer import KeptAnswer

FRESH = 5.0


class HandClock:
    """A clock that moves when the test says so."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Maker:
    """Answers that are made when the test says so."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[str]] = []
        self.is_begun = asyncio.Event()

    async def make(self) -> tuple[str, float]:
        self.begun.append(asyncio.get_running_loop().create_future())
        self.is_begun.set()
        return await self.begun[-1], FRESH

    async def next_begun(self) -> "asyncio.Future[str]":
        async with asyncio.timeout(5):
            await self.is_begun.wait()
        self.is_begun.clear()
        return self.begun[-1]


def kept_answer(maker: Maker, clock: HandClock | None = None) -> KeptAnswer[str]:
    hand: Any = clock or HandClock()
    return KeptAnswer(maker.make, clock=hand)


def ask(kept: KeptAnswer[str]) -> "asyncio.Task[str]":
    return asyncio.get_running_loop().create_task(kept.get())


@pytest.mark.rule("MON-45")
async def test_an_answer_is_shared_while_it_is_fresh() -> None:
    clock, maker = HandClock(), Maker()
    kept = kept_answer(maker, clock)
    first, second = ask(kept), ask(kept)
    (await maker.next_begun()).set_result("one")
    assert [await first, await second, await kept.get()] == ["one"] * 3
    clock.now += FRESH
    third = ask(kept)
    (await maker.next_begun()).set_result("two")
    assert await third == "two"
    assert len(maker.begun) == 2


@pytest.mark.rule("MON-45")
async def test_an_answer_that_began_before_an_expiry_is_not_fresh_after_it() -> None:
    maker = Maker()
    kept = kept_answer(maker)
    early = ask(kept)
    stale = await maker.next_begun()
    kept.expire()
    late = ask(kept)
    stale.set_result("stale")
    assert await early == "stale"
    (await maker.next_begun()).set_result("new")
    assert await late == "new"
    assert await kept.get() == "new"
    assert len(maker.begun) == 2


@pytest.mark.rule("MON-45")
async def test_an_expiry_counts_though_nobody_asks_before_the_answer_is_made() -> None:
    maker = Maker()
    kept = kept_answer(maker)
    early = ask(kept)
    stale = await maker.next_begun()
    kept.expire()
    stale.set_result("stale")
    assert await early == "stale"
    late = ask(kept)
    (await maker.next_begun()).set_result("new")
    assert await late == "new"


@pytest.mark.rule("MON-45")
async def test_an_answer_that_fails_after_an_expiry_fails_for_those_who_asked_before() -> None:
    maker = Maker()
    kept = kept_answer(maker)
    early = ask(kept)
    stale = await maker.next_begun()
    kept.expire()
    late = ask(kept)
    stale.set_exception(ValueError("stale"))
    with pytest.raises(ValueError, match="stale"):
        await early
    (await maker.next_begun()).set_result("new")
    assert await late == "new"
