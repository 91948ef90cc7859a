"""Dialogs: found by id, service, state or a header of a message that waits (MON-51).

Reads:  `conversation_endpoints`, messages for their headers.     Calls: nothing that changes.
Never:  reads more for one search than a few pages of what waits, or shows a body.
"""

from collections.abc import Mapping
from typing import Any, Final

from brokerd.clock import Instant
from brokerd.http.page.desk import Desk, Query, Row, broker_of
from brokerd.http.page.html import Html, el, join
from brokerd.http.page.parked import DIALOG_STATES, dialog_table
from brokerd.http.page.shell import choice, field, pager
from brokerd.http.page.words import (
    name,
)
from brokerd.ids import is_beginning, show
from brokerd.protocol import client_verbs as wire

PAGE: Final = 50
HEADER_PAGES: Final = 20
HEADER_ROWS: Final = 200
"""Pages of a queue, and messages of each, that one search for a header reads at most."""


async def load(desk: Desk, query: Query) -> Row:
    """Return a page of the dialogs that the query asks for.

    `q` is the beginning of a handle or conversation id, a service at either side, or a header of a
    waiting message as `NAME=VALUE`."""
    broker, q = broker_of(desk, query), query.get("q", "").strip()
    state = query.get("state", "")
    where: Row = {"state": state} if state in DIALOG_STATES else {}
    found: Row = {
        "broker": broker,
        "brokers": list(desk.brokers),
        "q": q,
        "state": state if state in DIALOG_STATES else "",
        "by": "",
        "dialogs": [],
        "next": None,
        "services": [],
        "searched": 0,
    }
    after = query.get("after") or None
    if is_beginning(q):
        rows = await _by_id(desk, broker, q, where)
        if rows or len(q) > 20:  # noqa: PLR2004  # no service has such a name
            return found | {"by": "id", "dialogs": rows}
    if "=" in q and q not in await _alike(desk, broker, q):
        rows, searched = await _by_header(desk, broker, *q.split("=", 1))
        return found | {"by": "header", "dialogs": rows, "searched": searched}
    if not q:
        page = await desk.view(
            broker, "conversation_endpoints", where=where, limit=PAGE, after=after
        )
        return found | {"dialogs": page.rows, "next": page.next}
    side = query.get("side", "service_id")
    side = side if side in ("service_id", "far_service") else "service_id"
    page = await desk.view(
        broker, "conversation_endpoints", where={**where, side: q}, limit=PAGE, after=after
    )
    services = await _alike(desk, broker, q) if not page.rows else []
    return found | {
        "by": side,
        "dialogs": page.rows,
        "next": page.next,
        "services": services,
    }


async def _by_id(desk: Desk, broker: str, q: str, where: Row) -> list[Row]:
    """Return the dialogs whose handle, conversation id or group begins so, each once."""
    found: dict[str, Row] = {}
    beginning = q.replace("-", "")[:32] + "*"
    for column in ("conversation_handle", "conversation_id", "conversation_group_id"):
        page = await desk.view(
            broker, "conversation_endpoints", where={**where, column: beginning}, limit=PAGE
        )
        found |= {row["conversation_handle"]: row for row in page.rows}
    return list(found.values())[:PAGE]


async def _by_header(desk: Desk, broker: str, wanted: str, value: str) -> tuple[list[Row], int]:
    """Return the dialogs of waiting messages with a header, and how many messages were searched.

    Headers have no index: the oldest messages of the queues with messages are searched, and the
    oldest that wait to be sent, each queue only if the caller may browse it."""
    handles: dict[str, None] = {}
    searched = 0
    session = await desk.session(broker)
    survey = await desk.survey()
    queues = [one.name for one in survey.worst if one.broker == broker and one.ready + one.parked]
    pages = HEADER_PAGES
    for queue in queues[:pages]:
        if not desk.may(broker, wire.Browse(queue)):
            continue
        after = None
        while pages:
            pages -= 1
            some = await session.browse_page(queue, after, HEADER_ROWS)
            searched += len(some.messages)
            for one in some.messages:
                if _has(one.headers, wanted.strip(), value.strip()):
                    handles[show(one.handle)] = None
            after = some.after
            if after is None:
                break
    sent = await desk.view(broker, "transmission_queue", limit=HEADER_ROWS, bodies=True)
    searched += len(sent.rows)
    for row in sent.rows:
        if _has(row["message_headers"] or {}, wanted.strip(), value.strip()):
            handles[row["conversation_handle"]] = None
    if not handles:
        return [], searched
    where = {"conversation_handle": list(handles)[:PAGE]}
    page = await desk.view(broker, "conversation_endpoints", where=where, limit=PAGE)
    return page.rows, searched


def _has(headers: Mapping[str, Any], wanted: str, value: str) -> bool:
    there = headers.get(wanted)
    if isinstance(there, bytes):
        return not value or there.hex() == value.lower()
    return there is not None and (not value or str(there) == value)


async def _alike(desk: Desk, broker: str, q: str) -> list[str]:
    """Return services of the broker with a name that contains the text."""
    page = await desk.view(broker, "services", limit=1000)
    wanted = q.casefold()
    return [one["name"] for one in page.rows if wanted in one["name"].casefold()][:10]


def draw(data: Row, query: Query, now: Instant) -> Html:
    """Return the list as HTML."""
    kept = {
        "broker": data["broker"],
        "q": data["q"],
        "state": data["state"],
        "side": query.get("side", ""),
    }
    options = [el("option", "any state", value="", selected=not data["state"])]
    options += [
        el("option", word, value=code, selected=code == data["state"])
        for code, word in DIALOG_STATES.items()
    ]
    find = el(
        "form",
        field("q", "Id, service, or header=value", data["q"], maxlength="512"),
        el(
            "p",
            el("label", "State", for_="field-state"),
            el("select", options, name="state", id="field-state"),
            class_="field",
        ),
        el(
            "p",
            el("label", "Service at", for_="field-side"),
            el(
                "select",
                el("option", "this side", value="service_id", selected=data["by"] != "far_service"),
                el(
                    "option",
                    "the far side",
                    value="far_service",
                    selected=data["by"] == "far_service",
                ),
                name="side",
                id="field-side",
            ),
            class_="field",
        ),
        el("input", type="hidden", name="broker", value=data["broker"]),
        el("button", "Find"),
        method="get",
        action="/dialogs",
        class_="find",
    )
    near = [el("li", name(one, "/dialogs", {**kept, "q": one})) for one in data["services"]]
    every = {**kept, "after": query.get("after", "")}
    more = " on this page; there may be more on the next" if data["next"] else ""
    return join(
        el("div", choice("broker", "/dialogs", every, data["brokers"]), find, class_="tools"),
        el(
            "p",
            f"The oldest {data['searched']} messages that wait were searched for this header.",
            class_="remark",
        )
        if data["by"] == "header"
        else None,
        dialog_table(data["dialogs"], data["broker"], now, f"No dialog is like that{more}."),
        join(el("p", "Services with this in their name:"), el("ul", near)) if near else None,
        pager("/dialogs", every, data["next"]),
    )
