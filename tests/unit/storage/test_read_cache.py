"""What a store is not asked again while nothing is written."""

import asyncio

import pytest

from brokerd.storage.read_cache import ReadCache


def test_a_question_is_asked_again_only_after_a_write() -> None:
    written, asked = 0, []

    async def read() -> int:
        asked.append(written)
        return len(asked)

    async def main() -> None:
        nonlocal written
        known = ReadCache(lambda: written, lambda: 0.0)
        assert [await known.answer("one", read) for _ in range(3)] == [1, 1, 1]
        assert await known.answer("another", read) == 2
        written += 1
        assert [await known.answer("one", read) for _ in range(2)] == [3, 3]

    asyncio.run(main())


@pytest.mark.rule("MON-117")
def test_an_answer_lasts_beyond_writes_for_as_long_as_the_question_says() -> None:
    written, now, asked = 0, 5.0, 0

    async def read() -> int:
        nonlocal asked, now
        asked += 1
        now += 100.0  # the answer lasts from the end of the read
        return asked

    async def main() -> None:
        nonlocal written, now
        known = ReadCache(lambda: written, lambda: now)
        assert await known.answer("one", read, lambda _: 20.0) == 1
        written += 1
        now += 19.9
        assert await known.answer("one", read, lambda _: 20.0) == 1
        assert known.known("one") is None, "it may have changed"
        now += 0.2
        assert await known.answer("one", read, lambda _: 20.0) == 2
        now += 1000.0
        assert await known.answer("one", read, lambda _: 20.0) == 2, "nothing was written"

    asyncio.run(main())


def test_an_answer_that_a_write_overtook_is_not_kept() -> None:
    written = 0

    async def read() -> int:
        nonlocal written
        written += 1  # a write comes back while the answer is on its way
        return written

    async def main() -> None:
        known = ReadCache(lambda: written, lambda: 0.0)
        assert [await known.answer("one", read) for _ in range(3)] == [1, 2, 3]

    asyncio.run(main())
