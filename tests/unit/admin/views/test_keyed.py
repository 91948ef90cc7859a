"""Pages of views with many rows in memory."""

from typing import Any

import pytest

from brokerd.admin.views.columns import COLUMNS
from brokerd.admin.views.keyed import SCAN, SLICE, Key, Keyed, page_of
from brokerd.admin.views.stored import Page, Row
from brokerd.errors import InvalidArgument
from brokerd.protocol.admin_verbs import ViewOptions

NOBODY: Any = None
"""The broker, of which the rows of these tests know nothing."""


class Counted:
    """Queues by number, and how many rows were made of them."""

    def __init__(self, count: int) -> None:
        self.names = [f"q{number:06d}" for number in range(count)]
        self.gone: set[str] = set()
        """Rows that are gone although their keys were listed."""
        self.made = 0
        self.turns = 0

    async def page(self, **options: Any) -> Page:
        keyed = Keyed(lambda _broker: [(name,) for name in reversed(self.names)], self._prepare)
        return await page_of("service_queues", keyed, NOBODY, ViewOptions(**options), self)

    async def sleep_until(self, _deadline: float) -> None:
        """Count a turn that others get, as the clock of the page."""
        self.turns += 1

    async def _prepare(self, _broker: object) -> Any:
        return self._rows

    def _rows(self, key: Key) -> list[Row]:
        self.made += 1
        if key[0] in self.gone or not key[0].startswith("q"):
            return []
        number = int(key[0][1:])
        row: Row = dict.fromkeys(COLUMNS["service_queues"])
        return [row | {"name": key[0], "ready_count": number % 1000}]


async def every(rows: Counted, **options: Any) -> list[Any]:
    found: list[Any] = []
    after = None
    while True:
        page = await rows.page(after=after, **options)
        assert len(page.rows) <= options["limit"]
        found += [row["name"] for row in page.rows]
        after = page.next
        if after is None:
            return found


@pytest.mark.rule("MON-56")
async def test_only_the_rows_of_a_page_are_made() -> None:
    rows = Counted(10_000)
    page = await rows.page(limit=50)
    assert [row["name"] for row in page.rows] == rows.names[:50]
    assert rows.made <= 52
    page = await rows.page(limit=50, after=page.next)
    assert [row["name"] for row in page.rows] == rows.names[50:100]
    assert rows.made <= 104


@pytest.mark.rule("MON-56", "VIEW-4")
@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 20, 21])
async def test_the_pages_together_have_every_row_once(count: int) -> None:
    rows = Counted(count)
    assert await every(rows, limit=7) == rows.names


@pytest.mark.rule("MON-56")
async def test_a_named_row_costs_one_row() -> None:
    rows = Counted(10_000)
    wanted = ["q000777", "q009999", "absent"]
    page = await rows.page(limit=50, where={"name": wanted})
    assert [row["name"] for row in page.rows] == wanted[:2]
    assert page.next is None
    assert rows.made == 3


@pytest.mark.rule("MON-56")
async def test_a_filter_that_matches_few_gives_short_pages_and_lets_others_run() -> None:
    rows = Counted(2 * SCAN + 500)
    page = await rows.page(limit=100, where={"ready_count": 999})
    assert len(page.rows) == SCAN // 1000
    assert page.next is not None
    assert rows.made == SCAN
    assert rows.turns >= SCAN // SLICE - 1
    assert len(await every(rows, limit=100, where={"ready_count": 999})) == 2 * SCAN // 1000


@pytest.mark.rule("MON-56")
async def test_a_row_that_is_gone_is_left_out() -> None:
    rows = Counted(20)
    first = await rows.page(limit=5)
    rows.gone = {"q000004", "q000006"}
    second = await rows.page(limit=5, after=first.next)
    assert [row["name"] for row in second.rows] == [f"q{n:06d}" for n in (5, 7, 8, 9, 10)]


@pytest.mark.rule("MON-56", "CLP-90")
async def test_a_cursor_of_something_else_is_refused() -> None:
    for after in ("7", "no", '{"a": 1}', "[1]"):
        with pytest.raises(InvalidArgument):
            await Counted(3).page(limit=1, after=after)
