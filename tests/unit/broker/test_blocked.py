"""Running a verb from a coroutine: it waits, goes on, fails, and is left alone when cancelled."""

import asyncio
from collections.abc import Callable

import pytest

from brokerd.broker.blocked import Blocked, settle
from brokerd.errors import GroupNotFound


class Shelf:
    """Knows that something is absent only while it calls back, as the endpoints do."""

    def __init__(self) -> None:
        self.resumes: list[Callable[[], None]] = []
        self.looked = 0
        self._absent = False

    def look_up(self) -> str | Blocked:
        self.looked += 1
        return "absent" if self._absent else Blocked("endpoint", self.resumes.append)

    def answer(self) -> None:
        self._absent = True
        self.resumes.pop()()
        self._absent = False


async def test_what_was_looked_for_in_vain_is_not_looked_for_again() -> None:
    shelf = Shelf()
    asked = asyncio.ensure_future(settle(shelf.look_up))
    await asyncio.sleep(0)
    shelf.answer()
    assert await asked == "absent"
    assert shelf.looked == 2


async def test_an_error_of_the_verb_is_the_coroutines() -> None:
    def fail() -> str | Blocked:
        raise GroupNotFound("no such group")

    with pytest.raises(GroupNotFound):
        await settle(fail)


async def test_a_cancelled_wait_runs_the_verb_no_more() -> None:
    shelf = Shelf()
    asked = asyncio.ensure_future(settle(shelf.look_up))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.sleep(0)
    shelf.answer()
    assert shelf.looked == 1
