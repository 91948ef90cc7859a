"""Reasons why sent messages have not arrived, for commands that received nothing (XMT-19).

Calls:  the views of a session.      Never:  raises; without permission it returns no reasons.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from brokerd.app.nearby import NOWHERE, near_service
from brokerd.cli.options import given_place
from brokerd.cli.output import quoted
from brokerd.client.session import Session
from brokerd.errors import BrokerError
from brokerd.units import counted

SHOWN: Final = 5
"""Largest number of reasons that are returned."""
_LOOKED_AT: Final = 200


async def of_queue(session: Session, queue: str) -> list[str]:
    """Return a line for each reason why messages of the services of a queue wait to be sent."""
    try:
        rows = await session.view("services", where={"service_queue_id": queue})
        names = [str(row["name"]) for row in rows]
        return await _reasons(session, {"from_service_name": names}) if names else []
    except BrokerError:
        return []


async def of_dialog(session: Session, handle: str) -> list[str]:
    """Return a line for each reason why messages of a dialog wait to be sent."""
    try:
        return await _reasons(session, {"conversation_handle": handle})
    except BrokerError:
        return []


async def _reasons(session: Session, where: dict[str, object]) -> list[str]:
    broker = session.welcome.broker
    page = await session.view_page("transmission_queue", where=where, limit=_LOOKED_AT)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in page.rows:
        found.setdefault((row["to_service_name"], row["transmission_status"]), []).append(row)
    place, lines = given_place(), []
    for (to, status), rows in list(found.items())[:SHOWN]:
        near = await near_service(session, to) if rows[0]["status_key"] in NOWHERE else ""
        look = f"brokerd dialog status {rows[0]['conversation_handle']} --broker {quoted(broker)}"
        look = f"{look} {place}".strip()
        lines.append(f"{_count(rows)} for {quoted(to)}: {status}{near}; {look}")
    if page.next is not None:
        of = f"--broker {quoted(broker)} {place}".strip()
        lines.append(
            f"these are of the first {len(page.rows)} that wait; see brokerd transmission ls {of}"
        )
    return lines


def _count(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the numbers of waiting messages and of waiting ends of dialogs, as text."""
    ends = sum(bool(row["is_end_of_dialog"] or row["is_conversation_error"]) for row in rows)
    what = [
        counted(count, one, many)
        for count, one, many in (
            (len(rows) - ends, "message", "messages"),
            (ends, "end of a dialog", "ends of dialogs"),
        )
        if count
    ]
    return f"{' and '.join(what)} {'waits' if len(rows) == 1 else 'wait'}"
