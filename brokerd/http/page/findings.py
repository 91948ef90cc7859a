"""Findings: the meaning of the doctor's codes, and what helps (MON-59).

Reads:  the table of codes.      Calls: nothing.
"""

from typing import Final

from brokerd.admin.doctor.codes import CODES
from brokerd.clock import Instant
from brokerd.errors import ObjectNotFound
from brokerd.http.page.desk import Desk, Query, Row
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.shell import Column, facts, table
from brokerd.http.page.words import clipped, link

PATH: Final = "/finding"
_LONGEST_CODE: Final = 16


async def load(_desk: Desk, query: Query) -> Row:
    """Return the meaning of one code, or of all.

    Raises `ObjectNotFound` if no finding has the code."""
    wanted = query.get("code", "").strip().upper()
    if wanted and wanted not in CODES:
        raise ObjectNotFound(
            f"no finding has the code {clipped(wanted, _LONGEST_CODE)}",
            hint="brokerd explain lists all codes",
        )
    shown = [wanted] if wanted else list(CODES)
    return {
        "findings": [
            {"code": one, "meaning": CODES[one].meaning, "cure": CODES[one].cure} for one in shown
        ]
    }


def draw(data: Row, query: Query, _now: Instant) -> Html:
    """Return the meanings as HTML."""
    found = data["findings"]
    if query.get("code"):
        (one,) = found
        return join(
            facts(("means", one["meaning"]), ("what helps", _with_commands(one["cure"]))),
            el("p", link(PATH, "All codes"), " · ", link("/", "Back to Now")),
        )
    rows: list[list[Child]] = [
        [code_link(one["code"]), one["meaning"], _with_commands(one["cure"])] for one in found
    ]
    columns = (Column("code"), Column("means", is_wide=True), Column("what helps", is_wide=True))
    return table("Codes of findings", columns, rows)


def code_link(code: str) -> Child:
    """Return a code that leads to its meaning, which it has in the title as well."""
    known = CODES.get(code)
    if known is None:  # of a newer instance
        return el("span", code, class_="code")
    title = f"{known.meaning} {known.cure}"
    return link(PATH, code, {"code": code}, class_="code", title=title)


def _with_commands(text: str) -> Html:
    """Return a text with the parts between backticks as code."""
    parts = text.split("`")
    return join(*(el("code", part) if at % 2 else part for at, part in enumerate(parts)))
