"""Independent requests begin in the order written; only a wait for a lock lets others start."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.broker.transaction import TxState
from brokerd.errors import Busy
from brokerd.sessions.request_line import RequestLine


class Line:
    """A line whose requests note that they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.ended = 0
        self.line = RequestLine(broke=self._broke, on_end=self._end)
        self.line.body_limit = 100

    def _broke(self, error: Exception) -> None:
        raise error

    def _end(self) -> None:
        self.ended += 1

    def add(self, name: str, *, size: int = 0, blocks: bool = False) -> "Request":
        request = Request(self, name, size=size, blocks=blocks)
        self.line.add(request)
        return request


class Request:
    """A request that is done at once, or waits until the test ends it."""

    tx: Any = SimpleNamespace(state=TxState.FINISHED)  # with no body to check ahead

    def __init__(self, line: Line, name: str, *, size: int, blocks: bool) -> None:
        self.line = line
        self.name = name
        self.size = size
        self.blocks = blocks
        self.given_up = False

    def next_to_check(self) -> object:
        return None

    def run(self) -> None:
        self.line.ran.append(self.name)
        if not self.blocks:
            self.line.line.remove(self)

    def give_up(self) -> None:
        self.given_up = True

    def abort(self, reason: str) -> None:
        raise NotImplementedError


@pytest.fixture
async def line() -> Line:
    return Line()


@pytest.mark.rule("CLP-31")
async def test_a_request_that_waits_holds_up_those_behind_it(line: Line) -> None:
    first = line.add("first", blocks=True)
    line.add("second")
    line.add("third")
    await asyncio.sleep(0)
    assert line.ran == ["first"]
    assert len(line.line.works) == 3
    line.line.remove(first)
    assert line.ran == ["first"], "the next one begins a turn of the loop later"
    await asyncio.sleep(0)
    assert line.ran == ["first", "second", "third"]
    assert line.line.works == []
    assert line.ended == 3


@pytest.mark.rule("CLP-31")
async def test_a_request_that_waits_for_a_lock_lets_others_pass(line: Line) -> None:
    first = line.add("first", blocks=True)
    line.add("second", blocks=True)
    line.add("third")
    line.line.unblock_behind(first)
    await asyncio.sleep(0)
    assert line.ran == ["first", "second"]
    assert [work for work in line.line.under_way if work is first] == [first]


@pytest.mark.rule("CLP-30")
async def test_bodies_count_until_their_request_is_done(line: Line) -> None:
    first = line.add("first", size=101, blocks=True)
    line.add("without a body")
    with pytest.raises(Busy):
        line.add("second", size=1)
    assert line.line.waiting_bytes == 101
    line.line.remove(first)
    assert line.line.waiting_bytes == 0
    line.add("third", size=1)


@pytest.mark.rule("REL-18")
async def test_all_are_given_up_with_the_client(line: Line) -> None:
    works = [line.add("first", blocks=True), line.add("second")]
    line.line.give_up_all()
    assert [work.given_up for work in works] == [True, True]
    await asyncio.sleep(0)
    assert line.ran == ["first"]
    assert not line.line.works
