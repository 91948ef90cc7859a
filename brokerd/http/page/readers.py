"""Readers: those that run, and why readers were started or were not (MON-50).

Reads:  the views of activation.      Calls: nothing that changes anything.
"""

from shlex import quote
from typing import Any, Final

from brokerd.clock import Instant
from brokerd.http.page.desk import Desk, Query, Row, broker_of
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.shell import Column, choice, facts, pager, section, table
from brokerd.http.page.words import (
    MONITOR_STATES,
    age,
    another_reader,
    badge,
    command,
    moment,
    monitor_state,
    name,
    number,
    sentence,
)

PAGE: Final = 50
LATEST: Final = 100
"""Decisions of one queue; activation keeps no more."""
_CURES: Final = {"activation is off": "activation.status=on", "the queue is off": "status=on"}
_OFF: Final = (*_CURES, "delivery is off in the broker")
"""Why a queue with an activation has no monitor (ACT-3, ACT-5)."""
_TONES: Final = {
    "started": "good",
    "limit reached": "warn",
    "backing off": "bad",
    "aborted": "bad",
    "disabled": "warn",
}


async def load(desk: Desk, query: Query) -> Row:
    """Return a page of monitors, and the decisions about one queue if it is named."""
    broker, queue = broker_of(desk, query), query.get("queue", "")
    (row,) = (await desk.view(broker, "brokers", where={"name": broker}, limit=1)).rows
    where: Row = {"broker_id": row["broker_id"]} | ({"queue_id": queue} if queue else {})

    async def some(view: str, **options: Any) -> list[Row]:  # noqa: ANN401
        return (await desk.view(broker, view, **options)).rows

    # Naming the states has the view look past the many queues that have no monitor.
    monitors = await desk.view(
        broker,
        "queue_monitors",
        where=where | {"state": list(MONITOR_STATES)},
        limit=PAGE,
        after=query.get("after") or None,
    )
    off: list[Row] = []
    if not query.get("after"):
        named: Row = {"name": queue} if queue else {"monitor_absent_reason": list(_OFF)}
        rows = await some("service_queues", where=named, limit=PAGE)
        off = [
            {"queue_id": one["name"], "reason": one["monitor_absent_reason"]}
            for one in rows
            if one["monitor_absent_reason"]
        ]
    decisions = await some("activation_decisions", where=where, limit=LATEST) if queue else []
    return {
        "broker": broker,
        "brokers": list(desk.brokers),
        "queue": queue,
        "after": query.get("after", ""),
        "counters": (await some("activation_counters", limit=1))[0],
        "monitors": monitors.rows,
        "next": monitors.next,
        "off": off,
        "tasks": await some("activated_tasks", where=where, limit=PAGE),
        "decisions": sorted(decisions, key=lambda row: row["number"], reverse=True),
    }


def draw(data: Row, query: Query, now: Instant) -> Html:
    """Return the section as HTML."""
    kept = {"broker": data["broker"], "queue": data["queue"], "after": query.get("after", "")}
    counters = data["counters"]
    totals = section(
        "Since the daemon started",
        facts(
            ("running", number(counters["tasks_running"])),
            ("started", number(counters["tasks_started_total"])),
            ("ended with an error", number(counters["tasks_aborted_total"])),
            ("limit reached", number(counters["task_limit_reached_total"])),
            ("started per second", number(counters["tasks_started_per_second"])),
        ),
    )
    of_queue = (
        section(join("Decisions about ", name(data["queue"])), _decisions(data["decisions"], now))
        if data["queue"]
        else None
    )
    return join(
        el(
            "div",
            choice("broker", "/readers", {"broker": data["broker"]}, data["brokers"]),
            class_="tools",
        ),
        of_queue,
        section(
            "Queues with activation",
            _monitors(data, now),
            pager("/readers", kept, data["next"]),
        ),
        section("Readers that run", _tasks(data["tasks"], now)),
        totals,
    )


def _decisions(rows: list[Row], now: Instant) -> Html:
    columns = (
        Column("at"),
        Column("decision"),
        Column("because", is_wide=True),
        Column("times", is_number=True),
    )
    cells: list[list[Child]] = [
        [
            moment(one["last_at"] or one["at"], now),
            badge(one["decision"], _TONES.get(one["decision"], "")),
            sentence(one["text"], 500),
            number(one["times"]),
        ]
        for one in rows
    ]
    return table(
        "Decisions, the latest first",
        columns,
        cells,
        "Nothing was decided since the daemon started.",
    )


def _monitors(data: Row, now: Instant) -> Html:
    columns = (
        Column("queue"),
        Column("monitor"),
        Column("running", is_number=True),
        Column("waiting", is_number=True),
        Column("last start", is_number=True),
        Column("found empty", is_number=True),
        Column("another reader?", is_wide=True),
        Column("last failure", is_wide=True),
    )
    cells: list[list[Child]] = [
        [
            name(one["queue_id"], "/readers", {"broker": data["broker"], "queue": one["queue_id"]}),
            badge(monitor_state(one["state"]), "bad" if one["consecutive_failures"] else ""),
            number(one["tasks_running"]),
            number(one["tasks_waiting"]),
            age(one["last_activated_time"], now),
            age(one["last_empty_rowset_time"], now),
            sentence(another_reader(one["necessary"])),
            sentence(one["last_failure"]),
        ]
        for one in data["monitors"]
    ]
    cells += [_off(one, data["broker"]) for one in data["off"] if one["reason"] in _OFF]
    empty = "brokerd starts no readers here: no queue of this broker has an activation."
    if data["queue"]:
        why = next((one["reason"] for one in data["off"]), "there is no such queue")
        empty = f"brokerd starts no reader of {data['queue']}: {why}."
    elif data["after"]:
        empty = "No more queues with activation."
    return table("Queues with activation", columns, cells, empty)


def _off(row: Row, broker: str) -> list[Child]:
    """Return the cells of a queue for which no reader is started."""
    queue, why = row["queue_id"], row["reason"]
    hint = sentence(None)
    if why in _CURES:
        of = f"--broker {quote(broker)}"
        hint = command(f"brokerd queue alter {quote(queue)} {_CURES[why]} {of}")
    return [
        name(queue, "/queue", {"broker": broker, "name": queue}),
        badge(why, "warn"),
        *(number(None) for _ in range(4)),
        hint,
        sentence(None),
    ]


def _tasks(rows: list[Row], now: Instant) -> Html:
    columns = (
        Column("queue"),
        Column("handler"),
        Column("runs for", is_number=True),
        Column("process"),
        Column("receives", is_number=True),
        Column("last receive", is_number=True),
        Column("acts as"),
    )
    cells: list[list[Child]] = [
        [
            name(one["queue_id"]),
            name(one["procedure_name"]),
            age(one["started_at"], now),
            str(one["pid"]) if one["pid"] else "in the daemon",
            number(one["receives"]),
            age(one["last_receive_at"], now),
            name(one["execute_as"]),
        ]
        for one in rows
    ]
    return table("Readers", columns, cells, "None runs at this moment.")
