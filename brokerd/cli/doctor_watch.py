"""The observations of `brokerd doctor --watch`: error events of dialogs, and their services.

Calls:  views, repeatedly until the end of the watch.
Never:  changes anything, or subscribes to events: it only reads events that the daemon keeps.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from brokerd.admin.doctor.findings import Finding, Row, Sort, error, warning
from brokerd.admin.doctor.gathering import stuck_messages
from brokerd.admin.doctor.message_checks import stuck_dialogs
from brokerd.admin.doctor.seen import MOST, BrokerSeen
from brokerd.cli.doctor_observations import SessionSource, status_of
from brokerd.cli.output import quoted
from brokerd.client.session import Session
from brokerd.clock import Instant, show_instant
from brokerd.ids import show
from brokerd.routing.reasons import Reason
from brokerd.units import counted

LOOK: Final = 1.0
"""Seconds between two reads."""
_QUIET: Final = {Reason.NOT_ATTEMPTED, Reason.AWAITING_ACK}
"""Statuses of messages that are not held up."""


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """The dialogs to watch, and the time to watch them."""

    seconds: float
    of: tuple[bytes, ...] = ()
    """Dialogs, by handle or id of conversation or group; empty = all dialogs of the broker."""
    new: bool = False
    """Whether to watch only dialogs that begin from now on."""
    show_events: bool = False

    def covers(self, endpoint: Row, since: Instant) -> bool:
        """Return whether an endpoint is watched, given its row in the view or its event."""
        ids = {show(one) for one in self.of}
        own = {endpoint[name] for name in _IDS}
        is_new = endpoint.get("created_at", 0) >= since
        return (not ids or bool(ids & own)) and (not self.new or is_new)


_IDS: Final = ("conversation_handle", "conversation_id", "conversation_group_id")
_OF_EVENT: Final = {"service_id": "service_name", "service_contract_id": "service_contract_name"}
"""Columns of `conversation_endpoints` that have another name in `error_events`."""
_SIDE: Final = ("service_id", "far_service", "service_contract_id", "is_initiator")


class Failed(NamedTuple):
    """Services whose dialogs failed, to be checked afterwards."""

    service: str
    far_service: str
    contract: str | None
    """Contract of the dialog; None = no event named it."""
    is_initiator: bool | None


async def watch(session: Session, asked: Watch, found: list[Finding]) -> list[Failed]:
    """Watch for the given time; append findings to `found`, and return services that failed."""
    status = await status_of(session)
    since, clock = status.now, session.clock
    seen = max((row["number"] for row in await session.view("error_events")), default=0)
    events: dict[str, list[Row]] = {}
    until = clock.monotonic() + asked.seconds
    while clock.monotonic() < until:
        await clock.sleep_until(min(until, clock.monotonic() + LOOK))
        seen = await _new_events(session, seen, events)
    endpoints = await _append_findings(session, asked, since, events, found)
    stuck: list[Row] = []
    for message, endpoint in await _held_up(session, asked, since):
        if endpoint["conversation_id"] not in events:
            stuck.append(message)
            endpoints.append(endpoint)
    seen_now = BrokerSeen(name=session.welcome.broker, stuck=stuck)
    found += stuck_dialogs(seen_now, (await status_of(session)).now)
    sides = {Failed(*(row[name] for name in _SIDE)) for row in endpoints}
    return sorted(sides, key=lambda one: tuple(map(str, one)))


async def _new_events(session: Session, seen: int, events: dict[str, list[Row]]) -> int:
    """Add new events to `events`, by dialog; return the number of the latest event."""
    broker = session.welcome.broker
    for row in sorted(await session.view("error_events"), key=lambda one: int(one["number"])):
        if row["number"] > seen and row["broker_name"] in (broker, None):
            events.setdefault(row["conversation_id"], []).append(row)
            seen = row["number"]
    return seen


async def _append_findings(
    session: Session,
    asked: Watch,
    since: Instant,
    events: dict[str, list[Row]],
    found: list[Finding],
) -> list[Row]:
    """Append the findings about watched dialogs to `found`; return the dialogs' endpoints."""
    endpoints: list[Row] = []
    covered = 0
    for conversation_id, of_dialog in events.items():
        rows = await _endpoints(session, conversation_id, of_dialog)
        if not any(asked.covers(row, since) for row in rows):
            continue
        covered += 1
        endpoints += [row for row in rows if row["service_id"] is not None]
        if covered <= MOST:
            found += _findings(session.welcome.broker, conversation_id, rows, of_dialog, asked)
    if covered > MOST:
        text = f"{covered - MOST} more dialogs had error events"
        found.append(error("D54", f"broker {session.welcome.broker}", text, "see the event log"))
    return endpoints


async def _endpoints(session: Session, conversation_id: str, events: list[Row]) -> list[Row]:
    """Return the rows of a dialog's local sides; for a removed side, a row made from an event."""
    rows = await session.view("conversation_endpoints", where={"conversation_id": conversation_id})
    known = {row["is_initiator"]: row for row in rows}
    for event in events:
        gone = {name: event[_OF_EVENT.get(name, name)] for name in (*_IDS, *_SIDE)}
        known.setdefault(event["is_initiator"], gone)
    if len(known) > 1:
        known.pop(None, None)
    return [known[side] for side in (True, False, None) if side in known]


def _findings(
    broker: str, conversation_id: str, endpoints: list[Row], events: list[Row], asked: Watch
) -> Iterable[Finding]:
    about = f"dialog {conversation_id}"
    one = endpoints[0]
    if one["service_id"] is not None:
        about += f" of {one['service_id']} with {one['far_service']}"
    many = counted(len(events), "error event", "error events, the last")
    show = f"brokerd dialog show {conversation_id} --broker {quoted(broker)}"
    yield error("D54", about, f"{many}: {_describe(events[-1])}", "", show)
    if asked.show_events:
        for event in events:
            text = f"{show_instant(Instant(event['at']))} {_describe(event)}"
            yield msgspec.structs.replace(warning("D54", about, text), sort=Sort.EVENT)


def _describe(event: Row) -> str:
    words = (event["event"], event["subclass"], event["code"], event["reason"])
    return " ".join(str(word) for word in words if word is not None)


async def _held_up(session: Session, asked: Watch, since: Instant) -> list[tuple[Row, Row]]:
    """Return messages held up for a reason that arose during the watch, each with its endpoint.

    For dialogs that the user has named (`Watch.of`), older reasons count, too.
    """
    found: list[tuple[Row, Row]] = []
    messages, _ = await stuck_messages(SessionSource(session))
    for message in messages:
        is_recent = (message["status_since"] or 0) >= since
        if message["status_key"] in _QUIET or not (is_recent or asked.of):
            continue
        handle = {"conversation_handle": message["conversation_handle"]}
        rows = await session.view("conversation_endpoints", where=handle)
        found += [(message, row) for row in rows if asked.covers(row, since)]
    return found
