"""Keyed views: pages of rows in memory of which there may be many: only those of a page are made.

Reads:  the keys of all rows, and the rows of a page.      Calls: the functions of a `Keyed`.
Never:  works through more than `SLICE` keys without letting other tasks run, or looks at more than
        `SCAN` keys for one page, so that a filter that matches few gives short pages.
"""

from collections.abc import Awaitable, Callable, Mapping
from heapq import nsmallest
from itertools import product
from typing import Final, NamedTuple, Protocol

import msgspec

from brokerd.admin.views.columns import COLUMNS, KEYS
from brokerd.admin.views.stored import Page, Row, is_wanted
from brokerd.broker.broker import Broker
from brokerd.errors import InvalidArgument
from brokerd.protocol.admin_verbs import ViewOptions

SLICE: Final = 200
SCAN: Final = 20_000
Key = tuple[str, ...]
"""Values of the first key columns of a row, as text."""


class Pauses(Protocol):
    """The clock, as far as it lets other tasks run."""

    async def sleep_until(self, deadline: float) -> None:
        """Let other tasks run."""


class Keyed(NamedTuple):
    """The source of the rows of a view."""

    keys: Callable[[Broker], list[Key]]
    """Function that returns the keys of all rows, in any order; several rows may have one key."""
    prepare: Callable[[Broker], Awaitable[Callable[[Key], list[Row]]]]
    """Function that returns a function that makes the rows of a key, in order; the broker may have
    lost them since."""
    width: int = 1
    """Number of parts of a key."""


async def page_of(
    name: str, keyed: Keyed, broker: Broker, options: ViewOptions, clock: Pauses
) -> Page:
    """Return the page of the matching rows that follow the previous page."""
    columns = COLUMNS[name]
    named = columns[: KEYS[name]]
    after = after_of(options)
    rows_of = await keyed.prepare(broker)
    keys = _chosen(keyed, broker, named, options, after)
    page: list[Row] = []
    for count, key in enumerate(keys, 1):
        for row in rows_of(key):
            whole = [sorted_as(row[column]) for column in named]
            if (after is not None and whole <= after) or not is_wanted(row, options.where):
                continue
            if len(page) == options.limit:
                last = [sorted_as(page[-1][column]) for column in named]
                return Page(page, msgspec.json.encode(last).decode())
            page.append({column: row[column] for column in columns})
        if count == SCAN and count < len(keys):
            return Page(page, msgspec.json.encode([*key, _BEHIND][: len(named) + 1]).decode())
        if count % SLICE == 0:
            await clock.sleep_until(0)  # let other tasks run
    if len(keys) < _enough(options, named):
        return Page(page, None)
    # All keys that were chosen are used up, and more may follow them.
    return Page(page, msgspec.json.encode([*keys[-1], _BEHIND][: len(named) + 1]).decode())


_BEHIND: Final = "\U0010ffff"
"""A text that sorts behind the last part of any key."""


def _chosen(
    keyed: Keyed,
    broker: Broker,
    named: tuple[str, ...],
    options: ViewOptions,
    after: list[str] | None,
) -> list[Key]:
    """Return the keys that may have rows of the page, in order."""
    where = _where_of(options.where, named[: keyed.width])
    wanted: list[Key]
    if len(where) == keyed.width:  # the rows are named, so no key has to be searched for
        texts = [[one for one in where[at] if isinstance(one, str)] for at in range(keyed.width)]
        wanted = list(dict.fromkeys(product(*texts)))
    else:
        wanted = keyed.keys(broker)
        for at, values in where.items():
            wanted = [key for key in wanted if key[at] in values]
    if after is not None:
        start = tuple(after[: keyed.width])
        wanted = [key for key in wanted if key >= start]
    most = _enough(options, named)
    # Without other conditions each key has a row of the page, nearly always.
    return nsmallest(most, wanted) if most <= SLICE * 10 else sorted(wanted)


def _enough(options: ViewOptions, named: tuple[str, ...]) -> int:
    """Return the number of keys that suffices for a page, or may not."""
    simple = set(options.where) <= set(named)
    return options.limit + 2 if simple else 1 << 62


def _where_of(where: Mapping[str, object], named: tuple[str, ...]) -> dict[int, list[object]]:
    found: dict[int, list[object]] = {}
    for at, column in enumerate(named):
        if column in where:
            values = where[column]
            found[at] = values if isinstance(values, list) else [values]
    return found


def after_of(options: ViewOptions) -> list[str] | None:
    """Return the key of the last row of the previous page; None = there was none.

    Raises `InvalidArgument` if `after` is not one."""
    if options.after is None:
        return None
    try:
        return msgspec.json.decode(options.after, type=list[str])
    except msgspec.MsgspecError:
        raise InvalidArgument(f"after: {options.after[:64]!r} is no end of a page") from None


def sorted_as(value: object) -> str:
    """Return a text that sorts as the value does, such as 10 after 9."""
    return f"{value:020d}" if type(value) is int else str(value)
