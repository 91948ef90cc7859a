"""Queues: those of the instance by need or by name, and one queue with its messages (MON-47).

Reads:  the survey, `service_queues`, `queue_monitors`, a page of messages for their headers.
Never:  shows a body; `bodies.py` does, on request.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from brokerd.admin.views.survey import SurveyedQueue
from brokerd.client.messages import Message
from brokerd.clock import Instant
from brokerd.errors import QueueNotFound
from brokerd.http.page.desk import Desk, Query, Row, broker_of
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.now import QUEUE_COLUMNS, queue_row
from brokerd.http.page.shell import Column, choice, facts, field, pager, section, table
from brokerd.http.page.words import (
    age,
    another_reader,
    badge,
    ident,
    link,
    moment,
    monitor_state,
    name,
    number,
    sentence,
    size,
)
from brokerd.ids import show
from brokerd.objects.declared import Kind
from brokerd.protocol import client_verbs as wire

QUEUES: Final = 25
"""Queues on a page: a phone shows them on three screens."""
PAGE: Final = 50
"""Messages on a page."""
_READS: Final = 4
"""Most reads for a page of messages."""
SORTS: Final = ("need", "name")
_STATUSES: Final = {0: "received", 1: "ready", 2: "incomplete", 3: "sent"}


# All queues.


async def load(desk: Desk, query: Query) -> Row:
    """Return a page of queues: by need over all brokers, or by name in one broker."""
    sort = query.get("sort", "need")
    wanted = query.get("q", "")
    survey = await desk.survey()
    found: Row = {
        "sort": sort if sort in SORTS else "need",
        "brokers": list(desk.brokers),
        "queues_total": survey.queues,
        "surveyed_at": survey.at,
        "q": wanted,
        "next": None,
    }
    if found["sort"] == "need":
        named = query.get("broker", "")
        rows = [
            one
            for one in survey.worst
            if named in ("", one.broker) and wanted.casefold() in one.name.casefold()
        ]
        start = _start(query.get("after", ""))
        more = len(rows) > start + QUEUES
        return found | {
            "broker": named,
            "found": len(rows),
            "first": start + 1,
            "queues": rows[start : start + QUEUES],
            "next": str(start + QUEUES) if more else None,
        }
    broker = broker_of(desk, query)
    options: dict[str, Any] = {"where": {"name": wanted}} if wanted else {}
    page = await desk.view(
        broker, "service_queues", limit=QUEUES, after=query.get("after") or None, **options
    )
    needs = [_need(row, broker, survey.worst) for row in page.rows]
    return found | {"broker": broker, "queues": page.rows, "needs": needs, "next": page.next}


def _start(after: str) -> int:
    return min(int(after), 10_000) if after.isdecimal() and len(after) < 6 else 0  # noqa: PLR2004


def draw(data: Row, query: Query, now: Instant) -> Html:
    """Return the list as HTML."""
    kept = {"sort": data["sort"], "broker": data["broker"], "q": data["q"]}
    find = el(
        "form",
        field("q", "Name" if data["sort"] == "name" else "Part of the name", data["q"]),
        el("input", type="hidden", name="sort", value=data["sort"]),
        el("input", type="hidden", name="broker", value=data["broker"]),
        el("button", "Find"),
        method="get",
        action="/queues",
        class_="find",
    )
    if data["sort"] == "need":
        many = len(data["brokers"]) > 1
        rows = [queue_row(one, now, shows_broker=many) for one in data["queues"]]
        last = data["first"] + len(data["queues"]) - 1
        remark = f"Queues {data['first']} to {last} of {data['found']}, worst first."
        if data["found"] < data["queues_total"]:
            remark += f" There are {data['queues_total']} in all."
        shown = table("Queues by need", QUEUE_COLUMNS, rows, "No queue is like that.")
    else:
        rows = [queue_row(one, now, shows_broker=False) for one in data["needs"]]
        remark = f"Queues of broker {data['broker']} by name."
        shown = table("Queues by name", QUEUE_COLUMNS, rows, "No queue has this name.")
    every = {**kept, "after": query.get("after", "")}
    return join(
        el(
            "div",
            choice("sort", "/queues", every, SORTS),
            choice("broker", "/queues", every, data["brokers"]),
            find,
            class_="tools",
        ),
        el("p", remark, class_="remark"),
        shown,
        pager("/queues", every, data["next"]),
    )


def _surveyed(row: Row, broker: str) -> SurveyedQueue:
    """Return a row of `service_queues` as the survey would show it."""
    is_on = bool(row["is_receive_enabled"] and row["is_enqueue_enabled"])
    why, pain = "", 0
    if not is_on:
        poison = row["culprit_conversation_id"] is not None
        why = "off for a poison message" if poison else "off"
        pain = 5 if row["ready_count"] else 2
    elif row["parked_count"]:
        why, pain = "groups are parked", 3
    elif row["is_full"]:
        why, pain = "full", 2
    return SurveyedQueue(
        broker=broker,
        name=row["name"],
        pain=pain,
        why=why,
        ready=row["ready_count"],
        parked=row["parked_count"],
        oldest_ready_at=row["oldest_ready_at"],
        is_on=is_on,
        readers=0,
        max_readers=row["max_readers"],
        handler=row["activation_procedure"] or "",
    )


_BY_READERS: Final = ("its readers fail", "nobody reads", "activation is off")
"""Faults that only the survey knows, not a row of `service_queues`."""


def _need(row: Row, broker: str, worst: Iterable[SurveyedQueue]) -> SurveyedQueue:
    """Return the state of a queue that is also shown elsewhere: its row, with what Now says."""
    own = _surveyed(row, broker)
    for one in worst:
        if (one.broker, one.name) == (broker, own.name):
            is_graver = one.why in _BY_READERS and one.pain > own.pain
            why, pain = (one.why, one.pain) if is_graver and own.ready else (own.why, own.pain)
            return msgspec.structs.replace(own, why=why, pain=pain, readers=one.readers)
    return own


# One queue.


async def load_one(desk: Desk, query: Query) -> Row:
    """Return one queue, its monitor, its latest decisions and a page of its messages."""
    broker, wanted = broker_of(desk, query), query.get("name", "")
    rows = (await desk.view(broker, "service_queues", where={"name": wanted}, limit=1)).rows
    if not rows:
        raise QueueNotFound(f"queue {wanted[:128]!r} is not in broker {broker!r}")
    (own,) = (await desk.view(broker, "brokers", where={"name": broker}, limit=1)).rows
    of_queue = {"broker_id": own["broker_id"], "queue_id": wanted}
    monitors = await desk.view(broker, "queue_monitors", where=of_queue, limit=1)
    services = await desk.view(broker, "services", where={"service_queue_id": wanted}, limit=20)
    tasks = await desk.view(broker, "activated_tasks", where=of_queue, limit=20)
    verb = wire.Browse(wanted, _cursor(query.get("after", "")), PAGE)
    survey = await desk.survey()
    found: Row = {
        "broker": broker,
        "queue": rows[0],
        "need": _need(rows[0], broker, survey.worst),
        "monitor": monitors.rows[0] if monitors.rows else None,
        "services": [one["name"] for one in services.rows],
        "tasks": tasks.rows,
        "messages": None,
        "next": None,
        "may_switch": desk.may(broker, wire.Alter(Kind.QUEUE, {"name": wanted})),
    }
    if desk.may(broker, verb):
        session = await desk.session(broker)
        messages: list[Message] = []
        after = verb.after
        for _ in range(_READS):
            # Headers come with bodies. Each status is a page of its own, which may be short.
            page = await session.browse_page(wanted, after, PAGE - len(messages))
            messages, after = [*messages, *page.messages], page.after
            if after is None or len(messages) >= PAGE:
                break
        held = await _held(desk, broker, messages)
        found["messages"] = [
            _message(one) | {"held": held.get(show(one.group_id))} for one in messages
        ]
        found["next"] = None if after is None else f"{after[0]}.{after[1]}"
    return found


def _cursor(after: str) -> tuple[int, int] | None:
    stage, _, position = after.partition(".")
    if not (stage.isdecimal() and position.lstrip("-").isdecimal()) or len(after) > 20:  # noqa: PLR2004
        return None
    return min(int(stage), 9), max(-1, int(position))


async def _held(desk: Desk, broker: str, messages: Iterable[Message]) -> dict[str, str]:
    """Return the groups of messages that are parked or wait for an attempt, with which it is."""
    groups = list({show(one.group_id) for one in messages})
    if not groups:
        return {}
    where = {"conversation_group_id": groups}
    rows = (await desk.view(broker, "parked_groups", where=where, limit=PAGE)).rows
    return {row["conversation_group_id"]: row["state"] for row in rows if row["state"] != "counted"}


_HELD: Final = {"parked": "parked", "waiting": "waits for its next attempt"}


def _state(one: Row, broker: str, *, is_on: bool) -> Child:
    """Return whether a message can be received."""
    if one["status"] != "ready":
        return str(one["status"])
    if one["held"]:
        group = {"broker": broker, "group": one["conversation_group_id"]}
        return link("/group", badge(_HELD[one["held"]], "bad"), group)
    return "ready" if is_on else "ready, but the queue is off"


def _message(one: Message) -> Row:
    return {
        "conversation_handle": show(one.handle),
        "conversation_id": show(one.conversation_id),
        "conversation_group_id": show(one.group_id),
        "message_sequence_number": one.sequence,
        "message_type_name": one.message_type,
        "service_name": one.service,
        "queuing_order": one.queuing_order,
        "priority": one.priority,
        "enqueued_at": one.enqueued_at or None,
        "rollbacks": one.delivery_count,
        "status": _STATUSES.get(one.status, str(one.status)),
        "headers": dict(one.headers),
    }


def draw_one(data: Row, query: Query, now: Instant) -> Html:
    """Return one queue as HTML."""
    queue, broker = data["queue"], data["broker"]
    surveyed = data["need"]
    tone = "bad" if surveyed.pain > 2 else "warn" if surveyed.pain else "good"  # noqa: PLR2004
    limits = [f"{queue['max_messages']} messages"] if queue["max_messages"] else []
    if queue["max_bytes"]:
        limits.append(f"{queue['max_bytes']} bytes")
    return join(
        el(
            "p",
            badge(surveyed.why or "on", tone),
            " ",
            name(queue["name"]),
            " of broker ",
            name(broker),
            class_="lead",
        ),
        facts(
            (
                "can be received"
                if queue["is_receive_enabled"]
                else "can be received once it is on",
                number(queue["ready_count"]),
            ),
            ("oldest of them", age(queue["oldest_ready_at"], now)),
            (
                "parked",
                link("/parked", number(queue["parked_count"]), {"broker": broker})
                if queue["parked_count"]
                else number(0),
            ),
            ("incomplete", number(queue["incomplete_count"])),
            ("retained", number(queue["retained_count"])),
            ("size of bodies", size(queue["message_bytes"])),
            ("limit", " or ".join(limits) or "none"),
            ("refused", number(queue["refused_count"])),
            ("rollbacks in a row", number(queue["rollback_streak"])),
            ("services", [join(name(one), " ") for one in data["services"]] or "none"),
            *_switched(queue, now),
            ("last error", sentence(queue["last_error"])),
        ),
        _switch(data, surveyed.is_on),
        _readers(data, now),
        _messages(data, query, now),
    )


def _switched(queue: Row, now: Instant) -> list[tuple[str, Child]]:
    """Return who switched the queue, when and why; nothing if nobody has."""
    if not queue["status_changed_at"]:
        return []
    when = join(age(queue["status_changed_at"], now), " ago by ", name(queue["status_changed_by"]))
    reason = queue["status_reason"]
    return [("switched", join(sentence(reason), ", ", when) if reason else when)]


def _switch(data: Row, is_on: bool) -> Html | None:  # one place
    if not data["may_switch"]:
        return None
    word = "Switch the queue off…" if is_on else "Switch the queue on…"
    query = {
        "broker": data["broker"],
        "queue": data["queue"]["name"],
        "status": "off" if is_on else "on",
    }
    return el("p", link("/confirm/switch", word, query, class_="deed"), class_="deeds")


def _readers(data: Row, now: Instant) -> Html:
    queue, monitor = data["queue"], data["monitor"]
    if monitor is None:
        why = queue["monitor_absent_reason"] or "it has no monitor"
        return section(
            "Readers",
            el(
                "p",
                f"brokerd starts no reader: {why}. Programs that receive by themselves are "
                "clients, and are not listed here.",
                class_="empty",
            ),
        )
    tasks: list[list[Child]] = [
        [
            name(one["procedure_name"]),
            age(one["started_at"], now),
            str(one["pid"]) if one["pid"] else "in the daemon",
            number(one["receives"]),
            age(one["last_receive_at"], now),
        ]
        for one in data["tasks"]
    ]
    columns = (
        Column("handler"),
        Column("runs for", is_number=True),
        Column("process"),
        Column("receives", is_number=True),
        Column("last receive", is_number=True),
    )
    return section(
        join(
            "Readers ",
            link(
                "/readers", "why", {"broker": data["broker"], "queue": queue["name"]}, class_="more"
            ),
        ),
        facts(
            ("handler", name(queue["activation_procedure"])),
            ("running", f"{monitor['tasks_running']} of {queue['max_readers']}"),
            ("waiting in a receive", number(monitor["tasks_waiting"])),
            ("monitor", monitor_state(monitor["state"])),
            ("another reader?", sentence(another_reader(monitor["necessary"]))),
            ("failed in a row", number(monitor["consecutive_failures"])),
            ("last failure", sentence(monitor["last_failure"])),
            ("no start until", age(monitor["backoff_until"], now)),
        ),
        table("Readers that run", columns, tasks, "None runs at this moment."),
    )


def _messages(data: Row, query: Query, now: Instant) -> Html:
    if data["messages"] is None:
        text = f"To see the messages you need receive on {data['queue']['name']}."
        return section("Messages", el("p", text, class_="empty"))
    broker, queue = data["broker"], data["queue"]["name"]
    columns = (
        Column("arrived"),
        Column("dialog"),
        Column("no.", is_number=True),
        Column("type", is_wide=True),
        Column("state"),
        Column("priority", is_number=True),
        Column("rollbacks", is_number=True),
        Column("headers", is_wide=True),
        Column("body"),
    )
    rows: list[list[Child]] = [
        [
            moment(one["enqueued_at"], now),
            ident(
                one["conversation_handle"],
                "/dialog",
                {"broker": broker, "handle": one["conversation_handle"]},
            ),
            number(one["message_sequence_number"]) if one["message_sequence_number"] >= 0 else "",
            name(one["message_type_name"]),
            _state(one, broker, is_on=data["queue"]["is_receive_enabled"]),
            number(one["priority"]) if one["priority"] >= 0 else "",
            number(one["rollbacks"]),
            headers(one["headers"]),
            link(
                "/confirm/body",
                "show…",
                {"broker": broker, "queue": queue, "order": one["queuing_order"]},
            )
            if one["status"] == "ready"
            else "",
        ]
        for one in data["messages"]
    ]
    here = {"broker": broker, "name": queue, "after": query.get("after", "")}
    return section(
        "Messages",
        table("Messages of the queue, in order of arrival", columns, rows, "The queue is empty."),
        pager("/queue", here, data["next"]),
        id_="messages",
    )


def headers(found: Row) -> Html:
    """Return headers as a list, or nothing."""
    if not found:
        return Html()
    return el(
        "ul",
        [
            el("li", el("code", key), " ", sentence(_plain(value), 120))
            for key, value in found.items()
        ],
        class_="headers",
    )


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
