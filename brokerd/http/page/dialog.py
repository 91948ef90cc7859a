"""Dialog: one dialog with the timeline of both sides (MON-52).

Reads:  `dialog_timeline`, the views of the dialog.      Calls: nothing that changes anything.
Never:  waits longer for the other instance than `WAIT` seconds.
"""

from shlex import quote
from typing import Any, Final

import msgspec

from brokerd.admin.timeline import OTHER, Flow, Joined, Side
from brokerd.admin.timeline import join as join_sides
from brokerd.clock import SECOND, Instant
from brokerd.errors import BrokerError, ConversationNotFound
from brokerd.http.page.desk import Desk, Query, Row, broker_of
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.parked import DIALOG_STATES, DIALOG_TONES, state_word
from brokerd.http.page.shell import Column, facts, section, table
from brokerd.http.page.words import (
    age,
    badge,
    command,
    duration,
    ident,
    moment,
    name,
    number,
    sentence,
)
from brokerd.ids import parse
from brokerd.protocol.inquiry import SideReport
from brokerd.routing.reasons import status_text
from brokerd.units import counted

WAIT: Final = 3.0
"""Seconds that the other instance may take to answer about its side."""


async def load(desk: Desk, query: Query) -> Row:
    """Return one dialog with the reports of both sides, joined."""
    broker, wanted = broker_of(desk, query), query.get("handle", "")
    try:
        handle = parse(wanted)
    except ValueError:
        raise ConversationNotFound(f"{wanted[:64]!r} is no handle of a dialog") from None
    where = {"conversation_handle": wanted}
    rows = (await desk.view(broker, "conversation_endpoints", where=where, limit=1)).rows
    if not rows:
        raise ConversationNotFound(
            f"no dialog {wanted} is in broker {broker!r}",
            hint="it is over and was removed, or it is in another broker; "
            "the metrics log has a line of each dialog that has ended",
        )
    session = await desk.session(broker)
    sides = await session.admin.timeline(handle, wait=WAIT)
    status = await session.transmission_status(handle)
    waiting = await desk.view(broker, "transmission_queue", where=where, limit=20)
    events = await desk.view(
        broker,
        "error_events",
        where={"conversation_id": sides.conversation_id, "broker_name": broker},
        limit=100,
    )
    joined = join_sides(sides.near, sides.far, sides.seconds)
    route = None
    try:
        route = await session.admin.explain_route(handle=handle)
    except BrokerError:  # it has ended meanwhile
        route = None
    return {
        "broker": broker,
        "dialog": rows[0],
        "near": sides.near,
        "far": sides.far,
        "is_in_one_instance": sides.is_in_one_instance,
        "steps": [msgspec.to_builtins(one) for one in sides.steps],
        "seconds": sides.seconds,
        "flows": joined.flows,
        "hangs": joined.hangs,
        "moments": joined.moments,
        "clock_ahead": joined.ahead,
        "status": status,
        "route": route,
        "waiting": waiting.rows,
        "events": events.rows,
        "joined": joined,
    }


def draw(data: Row, _query: Query, now: Instant) -> Html:
    """Return one dialog as HTML."""
    row = data["dialog"]
    here: Side = "initiator" if row["is_initiator"] else "target"
    return join(
        el(
            "p",
            badge(state_word(row["state_desc"]), DIALOG_TONES.get(row["state"], "good")),
            " ",
            name(row["service_id"]),
            " ",
            el("span", "→" if row["is_initiator"] else "←", aria_hidden="true"),
            " ",
            name(row["far_service"]),
            class_="lead",
        ),
        _hangs(data["joined"]),
        section("Both sides", _sides(data, here, now), id_="sides"),
        section(
            "Messages",
            _flows(data["joined"].flows, is_answered=data["far"] is not None),
            id_="flows",
        ),
        section("Timeline", _timeline(data, now), id_="timeline"),
        _way(data),
        _waiting(data, now),
        _events(data, now),
        section("This side in full", _all(row, now)),
    )


def _hangs(joined: Joined) -> Html:
    if not joined.hangs:
        return section(
            "What it waits for",
            el(
                "p",
                badge("nothing", "good"),
                " Nothing waits at either side that is known.",
                class_="well",
            ),
            class_="verdict",
        )
    items = [
        el(
            "li",
            el(
                "p",
                badge({"bad": "stuck", "warn": "waits"}.get(tone, "note"), tone),
                " ",
                sentence(text, 500),
            ),
            class_=tone,
        )
        for tone, text in joined.hangs
    ]
    return section("What it waits for", el("ol", items, class_="findings"), class_="verdict")


def _sides(data: Row, here: Side, now: Instant) -> Html:
    near, far, row = data["near"], data["far"], data["dialog"]
    services = {here: row["service_id"], OTHER[here]: row["far_service"]}
    reports: dict[Side, SideReport | None] = {here: near, OTHER[here]: far}
    cards = [
        _card(side, services[side], reports[side], data, now, is_here=side == here)
        for side in ("initiator", "target")
    ]
    note = None
    if data["clock_ahead"]:
        ahead = data["clock_ahead"]
        word = "ahead" if ahead > 0 else "behind"
        note = el(
            "p",
            badge("clock", "warn"),
            f" The clock of the other instance is "
            f"{duration(abs(ahead))} {word}; its times are shown by the clock of this one.",
            class_="remark",
        )
    return join(el("div", cards, class_="sides"), note)


def _card(
    side: Side, service: str, one: SideReport | None, data: Row, now: Instant, *, is_here: bool
) -> Html:
    head = el(
        "h3",
        side,
        el(
            "small",
            "this instance"
            if is_here or data["is_in_one_instance"]
            else "not reached"
            if one is None
            else "the other instance",
        ),
    )
    if one is None:
        return el(
            "article",
            head,
            el("p", name(service)),
            el("p", badge("unknown", "warn"), " ", _why_silent(data)),
            class_="side unknown",
        )
    where = el("p", name(service), " at ", name(one.instance))
    if not one.is_known:
        return el(
            "article",
            head,
            where,
            el(
                "p",
                badge("not there", "bad"),
                " This side does not exist: no message has arrived yet, or it has ended and was "
                "removed.",
            ),
            class_="side",
        )
    state = DIALOG_STATES.get(one.state, one.state)
    status = None
    if one.status_key:
        status = status_text(one.status_key)
        status += f"; tried {counted(one.attempts, 'time')}" if one.attempts else ""
    group: Child = "free"
    if one.is_parked:
        group = badge("parked" if one.parked_at else "waits for its next attempt", "bad")
    elif one.is_locked:
        group = badge("locked by a transaction")
    return el(
        "article",
        head,
        where,
        facts(
            (
                "state",
                join(
                    badge(state, DIALOG_TONES.get(one.state, "good")),
                    " for ",
                    age(_shifted(one.state_since, one, data), now),
                ),
            ),
            ("begun", moment(_shifted(one.began_at, one, data), now)),
            ("ends by itself", age(one.expires_at, now)),
            ("not acknowledged", number(one.pending)),
            ("why", sentence(status)),
            ("next attempt", age(_shifted(one.next_attempt_at, one, data), now)),
            ("unread", number(one.unread)),
            ("queue", "on" if one.is_queue_on else badge("off", "bad")),
            ("group", group),
            ("error", sentence(one.error_code)),
        ),
        class_="side",
    )


def _shifted(at: int | None, one: SideReport, data: Row) -> int | None:
    """Return an instant of a side by the clock of this instance."""
    return None if at is None else at - (data["clock_ahead"] if one is data["far"] else 0)


def _why_silent(data: Row) -> Html:
    """Return why the other side is not known."""
    steps = data["steps"]
    last = steps[-1] if steps else None
    if last is not None and last["reason"]:
        what = status_text(last["reason"]) or last["reason"]
        return sentence(f"It could not be asked: {what} {last['detail']}".strip(), 500)
    if last is not None and last["outcome"] == "remote":
        return sentence(
            f"It was asked at {last['where']}, and did not answer within {data['seconds']:.1f} s. "
            "It may be an older brokerd, or dispatcher.notices is off there."
        )
    return sentence("It could not be asked.")


_FLOW: Final = (
    Column("from"),
    Column("sent", is_number=True),
    Column("acknowledged", is_number=True),
    Column("arrived", is_number=True),
    Column("waits to be received", is_number=True),
    Column("received", is_number=True),
    Column("discarded unread", is_number=True),
)


def _flows(flows: tuple[Flow, ...], *, is_answered: bool) -> Html:
    """Return the numbers of both directions. `is_answered`: whether the far instance answered."""
    rows: list[list[Child]] = [
        [
            el("strong", one.sender),
            number(one.sent),
            number(one.acknowledged),
            number(one.arrived),
            number(one.unread),
            number(one.received),
            number(one.discarded),
        ]
        for one in flows
    ]
    return join(
        table("Where the messages of both directions are", _FLOW, rows),
        el(
            "p",
            "A dash: not known, since "
            + ("one side does not exist." if is_answered else "one side could not be asked."),
            class_="remark",
        )
        if any(None in (one.sent, one.arrived) for one in flows)
        else None,
    )


def _timeline(data: Row, now: Instant) -> Html:
    items: list[Html] = []
    before: int | None = None
    for one in data["moments"]:
        gap = None
        if before is not None and one.at - before >= SECOND:
            gap = el("span", f"+{duration(one.at - before)}", class_="gap")
        before = one.at
        later = one.at > now
        items.append(
            el(
                "li",
                el("span", moment(one.at, now, exact=True), gap, class_="when"),
                el("span", one.side, class_="where"),
                el("span", sentence(one.text), class_="what"),
                class_=f"{one.side} {one.tone} {'later' if later else ''}".strip(),
                data_what=one.what,
            )
        )
    return join(
        el("ol", items, class_="timeline"),
        el(
            "p",
            "Known are the beginning, what still waits, errors and the end. Of messages that "
            "both sides have dealt with only the numbers above are kept.",
            class_="remark",
        ),
    )


def _way(data: Row) -> Html | None:
    if data["is_in_one_instance"]:
        return section(
            "Way", el("p", "Both sides are in this instance: nothing leaves it.", class_="empty")
        )
    columns = (
        Column("direction"),
        Column("at instance"),
        Column("route"),
        Column("leads to", is_wide=True),
        Column("obstacle", is_wide=True),
    )
    here_first = "out" if data["dialog"]["is_initiator"] else "back"
    rows: list[list[Child]] = [
        [
            "question" if one["leg"] == here_first else "answer",
            join(
                name(one["instance"]), el("small", name(one["broker"])) if one["broker"] else None
            ),
            name(one["route"]),
            join(one["outcome"], " ", name(one["where"]) if one["where"] else None),
            sentence(
                " ".join(
                    filter(
                        None, (status_text(one["reason"]) if one["reason"] else "", one["detail"])
                    )
                )
            ),
        ]
        for one in data["steps"]
    ]
    return section(
        "Way",
        el(
            "p",
            f"The way that this page asked the other side by, in {data['seconds'] * 1000:.0f} "
            "ms: that of the dialog's messages and of their replies.",
            class_="remark",
        ),
        table("The way to the other side and back", columns, rows, "Nobody could be asked."),
        id_="way",
    )


def _waiting(data: Row, now: Instant) -> Html | None:
    rows = data["waiting"]
    if not rows:
        return None
    columns = (
        Column("no.", is_number=True),
        Column("type", is_wide=True),
        Column("sent", is_number=True),
        Column("attempts", is_number=True),
        Column("last", is_number=True),
        Column("next", is_number=True),
        Column("fragments", is_number=True),
        Column("why it waits", is_wide=True),
    )
    cells: list[list[Child]] = [
        [
            number(one["message_sequence_number"]),
            name(one["message_type_name"]),
            age(one["enqueue_time"], now),
            number(one["attempts"]),
            age(one["last_attempt_at"], now),
            age(one["next_attempt_at"], now),
            f"{one['fragments_acked']} of {one['fragments_total']}",
            sentence(one["transmission_status"] or one["status_key"]),
        ]
        for one in rows
    ]
    handle = data["dialog"]["conversation_handle"]
    return section(
        "Not acknowledged",
        table("Messages that the other side has not acknowledged", columns, cells),
        el(
            "p",
            command(f"brokerd route explain --handle {handle} --broker {quote(data['broker'])}"),
        ),
    )


def _events(data: Row, now: Instant) -> Html | None:
    rows = data["events"]
    if not rows:
        return None
    columns = (Column("at"), Column("event"), Column("side"), Column("reason", is_wide=True))
    cells: list[list[Child]] = [
        [
            moment(one["at"], now),
            " ".join(filter(None, (str(one["subclass"] or ""), str(one["code"] or "")))),
            {True: "initiator", False: "target"}.get(one["is_initiator"], ""),
            sentence(status_text(one["reason"]) if one["reason"] else None, 1000),
        ]
        for one in reversed(rows)
    ]
    return section("Errors in the log", table("Error events", columns, cells))


_TIMES: Final = frozenset(
    {
        "lifetime",
        "security_timestamp",
        "dialog_timer",
        "created_at",
        "last_activity_at",
        "state_since",
        "ack_pending_since",
        "idle_since",
        "idle_announced_at",
    }
)


def _all(row: Row, now: Instant) -> Html:
    pairs: list[tuple[str, Child]] = []
    words = {**row, "state": state_word(row["state_desc"])}
    del words["state_desc"]
    for key, value in words.items():
        shown: Any
        if key in _TIMES:
            shown = age(value, now)
        elif key == "conversation_group_id":
            shown = ident(value)
        elif isinstance(value, bool):
            shown = "yes" if value else "no"
        elif isinstance(value, int):
            shown = number(value)
        elif key in ("conversation_handle", "conversation_id", "far_broker_instance"):
            shown = el("code", value) if value else sentence(None)
        else:
            shown = sentence(value, 1000)
        pairs.append((key.replace("_", " "), shown))
    return el("details", el("summary", "All columns of conversation_endpoints"), facts(*pairs))
