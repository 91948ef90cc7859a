"""Parked: groups that are set aside or wait for their next attempt, and one of them (MON-48).

Reads:  `parked_groups`, `conversation_groups`, the messages of the group without their bodies.
Never:  releases, discards or edits; `deeds.py` does, after a confirmation.
"""

from typing import Final

from brokerd.clock import Instant
from brokerd.errors import GroupNotFound
from brokerd.http.page.desk import Desk, Query, Row, broker_of
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.shell import Column, choice, facts, pager, section, table
from brokerd.http.page.words import age, badge, ident, lines, link, name, number, sentence
from brokerd.ids import parse
from brokerd.protocol import admin_verbs as admin
from brokerd.protocol.transitions import State

PAGE: Final = 50
HELD: Final = ("parked", "waiting", "counted")
_TONES: Final = {"parked": "bad", "waiting": "warn", "counted": ""}


async def load(desk: Desk, query: Query) -> Row:
    """Return a page of the held groups of a broker."""
    broker = broker_of(desk, query)
    state = query.get("state", "parked")
    state = state if state in HELD else "parked"
    page = await desk.view(
        broker,
        "parked_groups",
        where={"state": state},
        limit=PAGE,
        after=query.get("after") or None,
    )
    return {
        "broker": broker,
        "brokers": list(desk.brokers),
        "state": state,
        "groups": page.rows,
        "next": page.next,
    }


def draw(data: Row, query: Query, now: Instant) -> Html:
    """Return the list as HTML."""
    kept = {"broker": data["broker"], "state": data["state"]}
    columns = (
        Column("group"),
        Column("queue"),
        Column("state"),
        Column("messages", is_number=True),
        Column("rollbacks", is_number=True),
        Column("parked", is_number=True),
        Column("next attempt", is_number=True),
        Column("reason", is_wide=True),
        Column("last error", is_wide=True),
    )
    rows: list[list[Child]] = [
        [
            ident(
                one["conversation_group_id"],
                "/group",
                {"broker": data["broker"], "group": one["conversation_group_id"]},
            ),
            name(one["queue"], "/queue", {"broker": data["broker"], "name": one["queue"]}),
            badge(one["state"], _TONES[one["state"]]),
            number(one["messages"]),
            number(one["rollback_streak"]),
            age(one["parked_at"], now),
            age(one["retry_at"], now),
            sentence(one["park_reason"]),
            sentence(_last_line(one["last_error"])),
        ]
        for one in data["groups"]
    ]
    empty = {
        "parked": "No group is parked: every message can be received.",
        "waiting": "No group waits for its next attempt.",
        "counted": "No group has rollbacks counted.",
    }[data["state"]]
    return join(
        el(
            "div",
            choice("state", "/parked", kept, HELD),
            choice("broker", "/parked", kept, data["brokers"]),
            class_="tools",
        ),
        el(
            "p",
            "A parked group keeps its messages in order. The other groups of its queue are "
            "received as ever.",
            class_="remark",
        ),
        table("Groups that are held", columns, rows, empty),
        pager("/parked", {**kept, "after": query.get("after", "")}, data["next"]),
    )


def _last_line(error: object) -> str:
    """Return the last line of a traceback, which has the error itself."""
    found = str(error or "").strip().splitlines()
    return found[-1] if found else ""


async def load_one(desk: Desk, query: Query) -> Row:
    """Return one held group and its dialogs."""
    broker, wanted = broker_of(desk, query), query.get("group", "")
    try:
        group = parse(wanted)
    except ValueError:
        raise GroupNotFound(f"{wanted[:64]!r} is no conversation group") from None
    of_group = {"conversation_group_id": wanted}
    rows = (await desk.view(broker, "parked_groups", where=of_group, limit=1)).rows
    if not rows:
        raise GroupNotFound(
            f"no group {wanted} is parked or waits for its next attempt",
            hint="it may have been released meanwhile",
        )
    dialogs = await desk.view(broker, "conversation_endpoints", where=of_group, limit=PAGE)
    return {
        "broker": broker,
        "group": rows[0],
        "dialogs": dialogs.rows,
        "more_dialogs": dialogs.next is not None,
        "may": {
            "release": desk.may(broker, admin.ReleaseGroup(broker, group)),
            "discard": desk.may(broker, admin.DiscardGroup(broker, group)),
            "edit": desk.may(broker, admin.EditGroup(broker, group, None)),
        },
    }


def draw_one(data: Row, _query: Query, now: Instant) -> Html:
    """Return one held group as HTML."""
    group, broker = data["group"], data["broker"]
    query = {"broker": broker, "group": group["conversation_group_id"]}
    words = {"release": "Release…", "discard": "Discard its first message…", "edit": "Edit…"}
    deeds = [
        link(f"/confirm/{deed}", word, query, class_="deed")
        for deed, word in words.items()
        if data["may"][deed] and group["state"] != "counted"
    ]
    return join(
        el(
            "p",
            badge(group["state"], _TONES[group["state"]]),
            " ",
            sentence(group["park_reason"]),
            class_="lead",
        ),
        facts(
            ("group", el("code", group["conversation_group_id"])),
            ("queue", name(group["queue"], "/queue", {"broker": broker, "name": group["queue"]})),
            ("broker", name(broker)),
            ("messages", number(group["messages"])),
            ("rollbacks in a row", number(group["rollback_streak"])),
            ("connections cut", number(group["disconnects"])),
            ("parked", age(group["parked_at"], now)),
            ("next attempt", age(group["retry_at"], now)),
            ("message received first", el("code", group["culprit_message_id"])),
            (
                "its conversation",
                link(
                    "/dialogs",
                    el("code", group["culprit_conversation_id"]),
                    {"broker": broker, "q": group["culprit_conversation_id"]},
                ),
            ),
        ),
        el("p", [join(one, " ") for one in deeds], class_="deeds") if deeds else None,
        section("Last error", lines(group["last_error"] or "none was reported")),
        section("Dialogs of the group", dialog_table(data["dialogs"], broker, now)),
    )


DIALOG_COLUMNS: Final = (
    Column("dialog"),
    Column("state"),
    Column("since", is_number=True),
    Column("role"),
    Column("service"),
    Column("far service"),
    Column("sent", is_number=True),
    Column("unacknowledged", is_number=True),
    Column("received", is_number=True),
    Column("unread", is_number=True),
    Column("error", is_wide=True),
)
DIALOG_STATES: Final = {
    state.value: state.name.replace("_", " ").lower() for state in State if state is not State.NONE
}
DIALOG_TONES: Final = {"ER": "bad", "DI": "warn", "DO": "warn", "CD": ""}


def dialog_table(rows: list[Row], broker: str, now: Instant, empty: str = "") -> Html:
    """Return dialogs as a table."""
    cells: list[list[Child]] = [
        [
            ident(
                one["conversation_handle"],
                "/dialog",
                {"broker": broker, "handle": one["conversation_handle"]},
            ),
            badge(state_word(one["state_desc"]), DIALOG_TONES.get(one["state"], "good")),
            age(one["state_since"], now),
            "initiator" if one["is_initiator"] else "target",
            name(one["service_id"]),
            name(one["far_service"]),
            number(one["send_sequence"]),
            number(one["pending_send_count"]),
            number(one["receive_sequence"]),
            number(one["unread_count"]),
            sentence(one["error_text"] or one["error_code"]),
        ]
        for one in rows
    ]
    return table("Dialogs", DIALOG_COLUMNS, cells, empty or "It has no dialog.")


def state_word(state: str) -> str:
    """Return the name of a state in small letters, with blanks."""
    return state.replace("_", " ").lower()
