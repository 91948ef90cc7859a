"""What a store is not asked again while nothing is written."""

import asyncio

from brokerd.storage.read_cache import ReadCache


def test_a_question_is_asked_again_only_after_a_write() -> None:
    written, asked = 0, []

    async def read() -> int:
        asked.append(written)
        return len(asked)

    async def main() -> None:
        nonlocal written
        known = ReadCache(lambda: written)
        assert [await known.answer("one", read) for _ in range(3)] == [1, 1, 1]
        assert await known.answer("another", read) == 2
        written += 1
        assert [await known.answer("one", read) for _ in range(2)] == [3, 3]

    asyncio.run(main())


def test_an_answer_that_a_write_overtook_is_not_kept() -> None:
    written = 0

    async def read() -> int:
        nonlocal written
        written += 1  # a write comes back while the answer is on its way
        return written

    async def main() -> None:
        known = ReadCache(lambda: written)
        assert [await known.answer("one", read) for _ in range(3)] == [1, 2, 3]

    asyncio.run(main())
