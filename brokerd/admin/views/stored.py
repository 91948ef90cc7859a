"""Views of a store: endpoints, groups, waiting and retained messages (VIEW-1 to VIEW-3).

Reads: the store, a page at a time; memory for values that only memory has.    Calls: storage.
Never: takes a lock, waits for the writer (OBJ-47), or holds more than a page.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.clock import SECOND, Instant
from brokerd.delivery.outgoing.transmission_status import Attempts
from brokerd.errors import InvalidArgument
from brokerd.ids import (
    BrokerId,
    ConversationId,
    EndpointKey,
    GroupId,
    Span,
    parse,
    parse_span,
    show,
)
from brokerd.model import DEFAULT_PRIORITY, DIALOG_TIMER, END_DIALOG, ERROR, is_system
from brokerd.protocol import fragments
from brokerd.protocol.admin_verbs import ViewOptions
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import END
from brokerd.protocol.frames import ERROR as ERROR_FLAG
from brokerd.protocol.headers import body_of, content_of, headers_of
from brokerd.protocol.transitions import State
from brokerd.routing.reasons import SSB_CODES, status_text
from brokerd.storage.rows.listings import (
    ENDPOINT_COLUMNS,
    GROUP_COLUMNS,
    OUTGOING_COLUMNS,
    RETAINED_COLUMNS,
    Filter,
    ListedGroup,
    ListedMessage,
    ListedRetained,
)

Row = dict[str, object]

BODIES: Final = 4 * 1024 * 1024
"""Most bytes of bodies in a page, unless its first message alone is larger."""
SHORTENED: Final = "*"
"""End of a value that stands for all ids that begin with the digits before it (CLP-90)."""
_IDS: Final = frozenset(
    {
        "broker_id",
        "broker_instance",
        "conversation_handle",
        "conversation_id",
        "conversation_group_id",
        "far_broker_instance",
        "to_broker_instance",
    }
)


class Page(msgspec.Struct, frozen=True):
    """Rows of a view, and the start of the next page; None = this page is the last."""

    rows: list[Row]
    next: str | None = None


OutOfOrder = Callable[[ConversationId, bool], tuple[int, int, int] | None]
"""Function of conversation and "from initiator" that returns the messages held out of order: first
and last sequence, and last fragment; None = no message is held.
"""


def is_wanted(row: Row, where: Mapping[str, object]) -> bool:
    """Return whether a row has the values, or one of several values, that are asked for."""
    return all(_matches(column, row[column], wanted) for column, wanted in where.items())


def _matches(column: str, value: object, wanted: object) -> bool:
    if isinstance(wanted, list):
        return value in wanted
    if column in _IDS and isinstance(wanted, str) and wanted.endswith(SHORTENED):
        digits = wanted.removesuffix(SHORTENED).replace("-", "").lower()
        return str(value).replace("-", "").startswith(digits)
    return value == wanted


class StoredViews:
    """Source of pages of the views that grow with the store."""

    def __init__(
        self,
        *,
        explain: Callable[[Outgoing], tuple[str, str]],
        attempts: Callable[[Broker, Outgoing], Attempts],
        out_of_order: OutOfOrder,
    ) -> None:
        """Create the source of pages.

        `explain`: returns status key and detail of a dialog's transmission (XMT-17). `attempts`:
        returns the number of attempts to transmit it, with the times of the last and the next
        (XMT-18).
        """
        self._explain = explain
        self._attempts = attempts
        self._out_of_order = out_of_order

    async def page(self, broker: Broker, name: str, options: ViewOptions) -> Page:
        """Return a page of one of the four views."""
        match name:
            case "conversation_endpoints":
                return await self._endpoints(broker, options)
            case "conversation_groups":
                return await self._groups(broker, options)
            case "transmission_queue":
                return await self._transmission(broker, options)
            case "retained_messages":
                return await _retained(broker, options)
            case _:
                raise AssertionError(f"{name} is not in the store")

    # conversation_endpoints (VIEW-1)

    async def _endpoints(self, broker: Broker, options: ViewOptions) -> Page:
        listed = await broker.store.listings.endpoints(
            _number(options.after),
            options.limit,
            _filter(ENDPOINT_COLUMNS, options),
            _since(broker, options),
        )
        keys = [row.key for row in listed.rows]
        unread = await _unread(broker, keys)
        timers = await broker.store.listings.timers(keys) if broker.timers.any else {}
        announced = await broker.store.listings.announced(keys)
        rows = [
            self._endpoint(broker, row, timers.get(row.key), *unread[row.key])
            | _idle(announced.get(row.key))
            for row in listed.rows
        ]
        return Page(rows, None if listed.next is None else str(listed.next))

    def _endpoint(
        self,
        broker: Broker,
        row: DialogEndpoint,
        timer: Instant | None,
        unread: int,
        youngest: Instant | None,
    ) -> Row:
        live = broker.endpoints.get(row.key)
        out = live.outgoing if live is not None else None
        early = self._out_of_order(row.conversation_id, not row.is_initiator)
        first, last, fragment = early or (None, None, None)
        failed = row.end_sequence >= 0 and row.error_code is not None
        owed = out is not None and out.acks.due_at is not None
        keys = live.keys if live is not None else None
        return {
            "conversation_handle": show(row.handle),
            "conversation_id": show(row.conversation_id),
            "is_initiator": row.is_initiator,
            "service_contract_id": row.contract,
            "service_id": row.service,
            "conversation_group_id": show(row.group_id),
            "lifetime": row.expires_at,
            "state": str(row.state),
            "state_desc": row.state.name,
            "far_service": row.far_service,
            "far_broker_instance": show(row.far_broker) if row.far_broker else None,
            "principal_id": None,
            "far_principal_id": keys.kept.principal or None if keys is not None else None,
            "outbound_session_key_identifier": keys.key_id.hex() if keys is not None else None,
            "inbound_session_key_identifier": (
                keys.far_key_id.hex() or None if keys is not None else None
            ),
            "security_timestamp": row.purge_at,
            "dialog_timer": timer,
            "send_sequence": row.send_sequence,
            "receive_sequence": row.receive_sequence,
            "receive_sequence_frag": row.receive_fragment,
            "last_send_tran_id": None,
            "end_dialog_sequence": -1 if failed else row.end_sequence,
            "system_sequence": row.end_sequence,
            "first_out_of_order_sequence": first,
            "last_out_of_order_sequence": last,
            "last_out_of_order_frag": fragment,
            "is_system": is_system(row.service),
            "priority": row.priority,
            "created_at": row.began_at,
            "last_activity_at": max(row.state_since, youngest or 0),
            "state_since": row.state_since,
            "error_code": row.error_code,
            "error_text": row.error_text,
            "unread_count": unread,
            "pending_send_count": out.pending if out is not None else 0,
            "ack_status": self._ack_status(out) if owed and out is not None else None,
            "ack_pending_since": _utc(broker, out.acks.due_at)
            if owed and out is not None
            else None,
        }

    def _ack_status(self, out: Outgoing) -> str:
        return "pending" if out.route.address is not None else self._explain(out)[0]

    # conversation_groups (VIEW-2)

    async def _groups(self, broker: Broker, options: ViewOptions) -> Page:
        if options.older_than is not None:
            raise InvalidArgument("the rows of view conversation_groups have no age")
        after = b"" if options.after is None else _id("after", options.after)
        where = _filter(GROUP_COLUMNS, options)
        found = await broker.store.listings.groups(after, options.limit, where)
        of_group = await broker.store.listings.levels_of_groups([one.group_id for one in found])
        unread = await _unread(broker, [key for levels in of_group.values() for key in levels])
        rows = [
            _group(
                broker,
                one,
                [
                    (level, unread[key][0])
                    for key, level in of_group.get(one.group_id, {}).items()
                    if unread[key][0]
                ],
            )
            for one in found
        ]
        return Page(rows, show(found[-1].group_id) if len(found) == options.limit else None)

    # transmission_queue (VIEW-3)

    async def _transmission(self, broker: Broker, options: ViewOptions) -> Page:
        limit, bodies = options.limit, False
        after, since = _number(options.after), _since(broker, options)
        where = _filter(OUTGOING_COLUMNS, options)
        listings = broker.store.listings
        listed = await listings.outgoing(after, limit, where, since, bodies=bodies)
        if options.bodies and listed.rows:
            limit = _most_whole([row.size for row in listed.rows])
            listed = await listings.outgoing(after, limit, where, since, bodies=True)
        rows = [self._message(broker, row) for row in listed.rows]
        return Page(rows, None if listed.next is None else str(listed.next))

    def _message(self, broker: Broker, row: ListedMessage) -> Row:
        live = broker.endpoints.get(row.endpoint)
        out = live.outgoing if live is not None else None
        key, detail = self._explain(out) if out is not None else ("not_attempted", "")
        count = fragments.count(row.size, row.fragment_size)
        tried = self._attempts(broker, out) if out is not None else Attempts()
        by_level = broker.store.identity.honor_priority
        content = _content(row)
        return {
            "conversation_handle": show(row.handle),
            "to_service_name": row.far_service,
            "to_broker_instance": show(row.far_broker) if row.far_broker else None,
            "from_service_name": row.service,
            "service_contract_name": row.contract,
            "enqueue_time": row.enqueued_at,
            "message_sequence_number": row.sequence,
            "message_type_name": _type_name(row),
            "is_conversation_error": bool(row.flags & ERROR_FLAG),
            "is_end_of_dialog": bool(row.flags & END),
            "message_body": body_of(content),
            "message_headers": headers_of(content) or None,
            "transmission_status": status_text(key, detail),
            "priority": row.priority,
            "status_key": key,
            "ssb_code": SSB_CODES.get(key),
            "status_since": (out.route.since or None) if out is not None else None,
            "attempts": tried.times,
            "last_attempt_at": tried.last_at,
            "next_attempt_at": tried.next_at,
            "effective_priority": row.priority if by_level else DEFAULT_PRIORITY,
            "destination": out.route.address if out is not None else None,
            "fragments_total": count,
            "fragments_acked": out.window.acked(row.sequence) if out is not None else 0,
        }


def _group(broker: Broker, row: ListedGroup, ready: list[tuple[int, int]]) -> Row:
    """Return the row of a group; `ready`: level and message count by conversation (GRP-15)."""
    group = broker.groups.get(GroupId(row.group_id))
    holder = group.holder if group is not None else None
    locked_at = holder.locked_at if isinstance(holder, Transaction) else None
    held = broker.held.by_id.get(GroupId(row.group_id))
    kept = held.row if held is not None else None
    return {
        "conversation_group_id": show(row.group_id),
        "service_id": row.service,
        "is_system": is_system(row.service),
        "locked_by_session": holder.describe() if holder is not None else None,
        "locked_since": None if locked_at is None else _utc(broker, locked_at),
        "ready_messages": (
            0 if held is not None and held.holds else sum(count for _, count in ready)
        ),
        "effective_priority": max((level for level, _ in ready), default=None),
        "rollback_streak": kept.attempts if kept is not None else 0,
        "retry_at": kept.retry_at if kept is not None else None,
        "parked_at": kept.parked_at if kept is not None else None,
        "park_reason": (kept.reason or None) if kept is not None else None,
    }


# retained_messages (RCV-32)


async def _retained(broker: Broker, options: ViewOptions) -> Page:
    limit, after, since = options.limit, _number(options.after), _since(broker, options)
    where = _filter(RETAINED_COLUMNS, options)
    listings = broker.store.listings
    listed = await listings.retained(after, limit, where, since, bodies=False)
    if options.bodies and listed.rows:
        limit = _most_whole([row.size for row in listed.rows])
        listed = await listings.retained(after, limit, where, since, bodies=True)
    rows = [_kept(row) for row in listed.rows]
    return Page(rows, None if listed.next is None else str(listed.next))


def _kept(row: ListedRetained) -> Row:
    content = _content(row)
    return {
        "queuing_order": row.queuing_order,
        "queue": row.queue,
        "status": row.status,
        "conversation_handle": show(row.handle),
        "conversation_id": show(row.conversation_id),
        "conversation_group_id": show(row.group_id),
        "service_name": row.service,
        "service_contract_name": row.contract,
        "message_sequence_number": row.sequence,
        "message_type_name": row.message_type,
        "priority": row.priority,
        "enqueued_at": row.enqueued_at,
        "message_id": show(row.message_id),
        "message_body": None if row.message_type == DIALOG_TIMER else body_of(content),
        "message_headers": headers_of(content) or None,
        "is_archived": row.endpoint is None,
    }


def _content(row: ListedMessage | ListedRetained) -> bytes | None:
    """Return the content of a listed message; None = it is empty, or was not requested."""
    return None if row.body is None else content_of(row.body, row.flags)


def _idle(announced: tuple[Instant, Instant] | None) -> Row:
    """Return the columns of a dialog whose end was announced, or not (REL-44)."""
    since, at = announced or (None, None)
    return {"idle_since": since, "idle_announced_at": at}


async def _unread(
    broker: Broker, keys: Iterable[EndpointKey]
) -> dict[EndpointKey, tuple[int, Instant | None]]:
    """Return, by endpoint, the number of waiting messages that no transaction has received.

    Each number comes with the arrival time of the youngest message. Endpoints whose messages are
    all in memory are counted there, the others by an index of the store.
    """
    found: dict[EndpointKey, tuple[int, Instant | None]] = {}
    # `beyond` is None until the messages outside the window are counted: only 0 says that memory
    # has all of them.
    elsewhere: list[EndpointKey] = []
    for key in keys:
        live = broker.endpoints.get(key)
        if live is None or live.beyond is None or live.beyond:
            elsewhere.append(key)
        else:
            found[key] = len(live.ready), live.ready[-1].enqueued_at if live.ready else None
    stored = await broker.store.listings.unread(elsewhere) if elsewhere else {}
    for key in elsewhere:
        count, youngest = stored.get(key, (0, None))
        live = broker.endpoints.get(key)
        if live is not None:
            count = await _count(broker, live, count)
        found[key] = count, youngest
    return found


async def _count(broker: Broker, live: Live, stored: int) -> int:
    """Return the exact number of messages; `stored`: the number in the store."""
    if live.beyond is not None:
        return len(live.ready) + live.beyond
    if not live.ready:
        return stored
    here = {message.order for message in live.ready}
    store = broker.store
    found = await store.message_counts.tally(live.endpoint.key, -1, store.coming_order, here)
    return len(here) + found.messages


def _type_name(row: ListedMessage) -> str:
    if row.flags & ERROR_FLAG:
        return ERROR
    return END_DIALOG if row.flags & END else row.message_type


def _most_whole(sizes: list[int]) -> int:
    """Return the number of leading messages that a page with bodies holds; at least one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > BODIES:
            return max(1, count)
    return len(sizes)


def _utc(broker: Broker, moment: float | None) -> Instant | None:
    """Return a reading of the monotonic clock as an instant; None for None."""
    if moment is None:
        return None
    clock = broker.clock
    return Instant(clock.utc() - round((clock.monotonic() - moment) * SECOND))


def _since(broker: Broker, options: ViewOptions) -> Instant | None:
    if options.older_than is None:
        return None
    return Instant(broker.clock.utc() - round(options.older_than * SECOND))


def _number(after: str | None) -> int:
    if after is None:
        return -1
    if not after.isdecimal() or len(after) > len(str(2**63)) - 1:
        raise InvalidArgument(f"after: {after[:64]!r} is no end of a page")
    return int(after)


def _filter(columns: Mapping[str, object], options: ViewOptions) -> Filter:
    """Return the filter in the form of the store; the given ids are text."""
    where: dict[str, list[object]] = {}
    for name, wanted in options.where.items():
        if name not in columns:
            raise InvalidArgument(
                f"rows cannot be chosen by column {name!r}",
                hint=f"they can by: {', '.join(columns)}",
            )
        if name in _IDS and isinstance(wanted, str) and wanted.endswith(SHORTENED):
            where[name] = [_span(name, wanted)]
            continue
        values = wanted if isinstance(wanted, list) else [wanted]
        where[name] = [_id(name, str(one)) if name in _IDS else _value(name, one) for one in values]
    return where


def _value(name: str, value: object) -> object:
    if not isinstance(value, str | int | None) or (isinstance(value, int) and not fits(value)):
        raise InvalidArgument(f"{name}: a text or an integer is expected")
    if name == "state" and value not in _STATES:
        raise InvalidArgument(
            f"there is no state {str(value)[:64]!r}", hint=f"there is: {', '.join(_STATES)}"
        )
    return value


def fits(value: int) -> bool:
    """Return whether a column of the store can hold this number."""
    return -(2**63) <= value < 2**63


_STATES: Final = tuple(state.value for state in State if state is not State.NONE)


def _span(name: str, text: str) -> Span:
    try:
        return parse_span(text.removesuffix(SHORTENED))
    except ValueError as error:
        raise InvalidArgument(f"{name}: {error}") from None


def _id(name: str, text: str) -> BrokerId:
    try:
        return BrokerId(parse(text))
    except ValueError:
        raise InvalidArgument(f"{name}: {text[:64]!r} is not an id") from None
