"""Nearby names: which service may be meant by a name that is not known (SDK-27).

Reads:  the services and routes of the session's broker, which every client may see.
Calls:  the verbs of a session.
Never:  raises; what cannot be asked gives no name.
"""

from typing import Final

from brokerd.client.session import Session
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import BrokerError

NOWHERE: Final = frozenset({"no_route", "local_service_missing"})
"""Status keys of messages whose service is neither local nor known to be remote (XMT-19)."""


async def near_service(session: Session, wanted: str) -> str:
    """Return `; did you mean "x"?` with the nearest service that the broker knows, or "".

    It knows its own services, and those that its routes name.

    Raises: nothing.
    """
    try:
        names = [str(row["name"]) for row in await session.objects("service")]
        routes = await session.objects("route")
    except BrokerError:
        return ""
    names += [str(row["service"]) for row in routes if row.get("service")]
    return did_you_mean(wanted, (name for name in names if name != wanted))


async def why_waiting(session: Session, handle: bytes, service: str) -> tuple[str, str]:
    """Return why a dialog's messages wait, as the rest of a sentence, and the status key.

    Both are "" if nothing waits, or the reason cannot be asked.

    Raises: nothing.
    """
    try:
        status = await session.transmission_status(handle)
    except BrokerError:
        return "", ""
    if not status.pending:
        return "", ""
    near = await near_service(session, service) if status.status_key in NOWHERE else ""
    return f"; what was sent waits: {status.transmission_status}{near}", status.status_key
