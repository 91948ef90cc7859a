"""Views: requests for their rows, for all at once or page by page (VIEW, CLP-90).

Reads:  arguments.     Calls: client.link.
Never:  holds more than one page, unless the caller requests all rows at once.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from brokerd.errors import InvalidArgument, ProtocolError
from brokerd.protocol.admin_verbs import DEFAULT_ROWS, MOST_ROWS

if TYPE_CHECKING:
    from brokerd.client.link import Link


class ViewPage(msgspec.Struct, frozen=True):
    """A page of a view; a row is a map from columns to values."""

    rows: list[dict[str, Any]]
    next: str | None = None
    """The value of `after` for the next page; None = this is the last page."""


async def page(
    link: "Link",
    name: str,
    *,
    where: Mapping[str, object] | None = None,
    older_than: float | timedelta | None = None,
    limit: int = DEFAULT_ROWS,
    after: str | None = None,
    bodies: bool = False,
) -> ViewPage:
    """Return one page. Even a short or empty page may not be the last; see `next`.

    Raises:
        InvalidArgument: `where` is not a mapping, or does not fit the view.
        BrokerError: an error common to all requests.
    """
    options: dict[str, object] = {"limit": limit, "bodies": bodies, "after": after}
    if where is not None and not isinstance(where, Mapping):
        raise InvalidArgument(
            f"where is {type(where).__name__}, not a mapping", hint='write {"column": value}'
        )
    if where:
        options["where"] = dict(where)
    if isinstance(older_than, timedelta):
        older_than = older_than.total_seconds()
    if older_than is not None:
        options["older_than"] = float(older_than)
    answer = await link.ask("view", (name, options))
    try:
        return msgspec.convert(answer, ViewPage)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a page of a view is expected: {error}") from None


async def rows(
    link: "Link",
    name: str,
    limit: int | None = None,
    **options: Any,  # noqa: ANN401
) -> AsyncIterator[dict[str, Any]]:
    """Yield the rows one by one, at most `limit`; None = all rows.

    Raises:
        BrokerError: an error that `page` names.
    """
    after, left = None, limit
    while left is None or left > 0:
        most = DEFAULT_ROWS if left is None else min(left, MOST_ROWS)
        got = await page(link, name, limit=most, after=after, **options)
        for row in got.rows:
            yield row
        if got.next is None:
            return
        after = got.next
        left = None if left is None else left - len(got.rows)
