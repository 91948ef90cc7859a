"""Readers: those that run, and why readers were started or were not (MON-50).

Reads:  the views of activation.      Calls: nothing that changes anything.
"""

from typing import Any, Final

from brokerd.clock import Instant
from brokerd.http.page.desk import Desk, Query, Row, broker_of
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.shell import Column, choice, facts, pager, section, table
from brokerd.http.page.words import age, badge, moment, name, number, sentence

PAGE: Final = 50
LATEST: Final = 100
"""Decisions of one queue; activation keeps no more."""
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

    monitors = await desk.view(
        broker, "queue_monitors", where=where, limit=PAGE, after=query.get("after") or None
    )
    decisions = await some("activation_decisions", where=where, limit=LATEST) if queue else []
    return {
        "broker": broker,
        "brokers": list(desk.brokers),
        "queue": queue,
        "counters": (await some("activation_counters", limit=1))[0],
        "monitors": monitors.rows,
        "next": monitors.next,
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
            "Monitored queues",
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
            badge(
                one["state"].lower().replace("_", " "), "bad" if one["consecutive_failures"] else ""
            ),
            number(one["tasks_running"]),
            number(one["tasks_waiting"]),
            age(one["last_activated_time"], now),
            age(one["last_empty_rowset_time"], now),
            sentence(one["necessary"]),
            sentence(one["last_failure"]),
        ]
        for one in data["monitors"]
    ]
    return table(
        "Queues with a monitor",
        columns,
        cells,
        "brokerd starts no readers here: no queue of this broker has an activation.",
    )


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
