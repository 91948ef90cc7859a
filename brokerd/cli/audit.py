"""`brokerd audit`: who logged in, was refused, or changed something, and when (SX-15).

Calls:  the view `audit`, newest entries first, as many pages as it takes.
Never:  looks further back than `--since`: entries have the order of their times.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

import click
import msgspec

from brokerd.cli.options import instance_options, json_option, past_instant
from brokerd.cli.output import print_line, print_rows, table
from brokerd.cli.session import ask
from brokerd.cli.view_commands import DEFAULT_LIMIT, Row
from brokerd.client.session import Session
from brokerd.client.views import ViewPage
from brokerd.clock import Instant, show_instant
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import UsageError
from brokerd.model import MSDB
from brokerd.protocol.admin_verbs import MOST_ROWS
from brokerd.telemetry.audit import Action, Outcome

_EVENTS: Final = tuple(sorted(one.value for one in Action))


@click.command(name="audit")
@click.option(
    "--since",
    metavar="TIME",
    help="Only entries since this time: 2026-01-31, 2026-01-31T09:00 (UTC unless it says "
    "otherwise), or so long ago: 2h, 7d.",
)
@click.option(
    "--principal",
    metavar="WHO",
    help="Only what WHO did, and what was done about it: alice, peer:west, an address.",
)
@click.option("--event", "events", multiple=True, metavar="EVENT", help="Only this; repeatable.")
@click.option("--refused", is_flag=True, help="Only what was refused.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="Largest number of entries to show.",
)
@click.option("--all", "everything", is_flag=True, help="Show all entries.")
@click.option("--after", metavar="CURSOR", help="Continue where an earlier list ended.")
@instance_options
@json_option
def command(
    *,
    since: str | None,
    principal: str | None,
    events: tuple[str, ...],
    refused: bool,
    limit: int,
    everything: bool,
    after: str | None,
    as_json: bool,
    **daemon: Any,  # noqa: ANN401  # as click gives them
) -> None:
    """Show the audit, newest first: logins, refusals, grants, and what administrators did."""
    where: Row = {}
    if events:
        where["action"] = [_event(one) for one in events]
    if refused:
        where["outcome"] = Outcome.REFUSED.value
    begin = None if since is None else past_instant(since)

    async def fetch(session: Session) -> ViewPage:
        rows: list[Row] = []
        async for row in _entries(session, where, after):
            if begin is not None and row["event_time"] < begin:
                break
            if principal is not None and not _concerns(row, principal):
                continue
            if len(rows) == limit and not everything:
                return ViewPage(rows, str(rows[-1]["audit_id"]))
            rows.append({**row, "detail": msgspec.json.decode(row["detail"])})
        return ViewPage(rows, None)

    page = ask(fetch, broker=MSDB, **daemon)
    if as_json:
        print_rows(page.rows, page.next)
        return
    table("audit", _COLUMNS, [_cells(one) for one in page.rows])
    if page.next is not None:
        print_line(f"there are more: --after {page.next}")


_COLUMNS: Final = ("time", "event", "by", "about", "outcome", "detail")


def _event(name: str) -> str:
    """Return the name of an action; raise `UsageError` with the nearest for another word."""
    if name not in _EVENTS:
        raise UsageError(
            f"nothing called {name!r} is recorded{did_you_mean(name, _EVENTS)}",
            hint=f"there is: {', '.join(_EVENTS)}",
        )
    return name


def _concerns(row: Row, who: str) -> bool:
    """Return whether a principal did what an entry records, or whether it was done about it.

    A user is recorded with the client, such as `client 1f2e3d4c (pid 71, alice)`."""
    actor = row["actor"] or ""
    return who in (actor, row["subject"]) or actor.endswith(f", {who})")


async def _entries(session: Session, where: Row, after: str | None) -> AsyncIterator[Row]:
    while True:
        page = await session.view_page("audit", where=where, after=after, limit=MOST_ROWS)
        for row in page.rows:
            yield row
        after = page.next
        if after is None:
            return


def _cells(row: Row) -> tuple[str, ...]:
    known = ", ".join(
        f"{name}={_short(one)}" for name, one in row["detail"].items() if one not in (None, "", [])
    )
    who = row["actor"] or "this instance"
    at = show_instant(Instant(row["event_time"]))
    return at, row["action"], who, row["subject"] or "-", row["outcome"], known or "-"


def _short(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
