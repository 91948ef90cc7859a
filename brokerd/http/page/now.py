"""Now: what is wrong, and what the instance does at this moment (MON-46).

Reads:  the diagnosis, the survey, the destinations.      Calls: nothing that changes anything.
"""

from itertools import pairwise
from typing import Final

from brokerd.admin.doctor.findings import Level
from brokerd.admin.views.survey import SurveyedQueue, rates
from brokerd.clock import SECOND, Instant
from brokerd.http.page.cards import cards
from brokerd.http.page.desk import Desk, Query, Row
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.shell import Column, section, table, tiles
from brokerd.http.page.words import age, badge, link, name, number, sentence, size
from brokerd.units import counted

MOST: Final = 50
"""Findings and destinations that are shown."""
QUEUES: Final = 8


async def load(desk: Desk, _query: Query) -> Row:
    """Return the content of the section."""
    diagnosis = await desk.diagnosis()
    survey = await desk.survey()
    found: Row = {
        "instance": desk.instance,
        "brokers": list(desk.brokers),
        "as_of_at": survey.at,
        "rates": rates(survey.samples),
        "samples": [
            {"at": one.at, "enqueued": one.enqueued, "received": one.received}
            for one in survey.samples
        ],
        "queues": survey.queues,
        "queues_with_messages": survey.busy,
        "queues_ill": survey.ill,
        "ready": survey.ready,
        "parked": survey.parked,
        "oldest_ready_at": survey.oldest_ready_at,
        "worst": [one for one in survey.worst if one.pain or one.ready][:QUEUES],
        "findings": None,
    }
    if diagnosis is None:
        return found
    status = diagnosis.status
    return found | {
        "findings": list(diagnosis.found[:MOST]),
        "findings_total": len(diagnosis.found),
        "left_out": list(diagnosis.left_out),
        "diagnosed_at": diagnosis.at,
        "state": status.state,
        "version": status.version,
        "started_at": status.started_at,
        "clients": status.clients,
        "peers": status.peers,
        "dialogs": status.dialogs,
        "readers": sum(one.readers for one in status.queues),
        "destinations": [one for one in status.destinations if one.messages or one.state != "idle"][
            :MOST
        ],
        "waiting": sum(one.messages for one in status.destinations),
        "stores": list(status.stores),
        "certificates": list(status.certificates),
    }


def draw(data: Row, _query: Query, now: Instant) -> Html:
    """Return the content of the section as HTML."""
    return join(
        _verdict(data, now),
        _figures(data, now),
        _worst(data["worst"], now, shows_broker=len(data["brokers"]) > 1),
        _destinations(data, now) if data["findings"] is not None else None,
        _stores(data) if data["findings"] is not None else None,
    )


def _verdict(data: Row, now: Instant) -> Html:
    findings = data["findings"]
    if findings is None:
        return section(
            "What is wrong",
            el(
                "p",
                "To see what the doctor finds you need control on every broker: "
                "brokerd grant “control on msdb to USER”.",
                class_="empty",
            ),
            class_="verdict",
        )
    grave = [one for one in findings if one.level is not Level.INFO]
    rest = [one for one in findings if one.level is Level.INFO]
    if not grave and data["queues_ill"] and data["as_of_at"] > data["diagnosed_at"]:
        # The survey is newer: "all is well" would contradict the queues below (MON-116).
        head: Child = el(
            "p",
            badge("see the queues below", "warn"),
            " the doctor found nothing wrong ",
            age(data["diagnosed_at"], now),
            f" ago; {counted(data['queues_ill'], 'queue needs', 'queues need')} somebody now",
            class_="well",
        )
    elif not grave:
        head = el(
            "p", badge("all is well", "good"), " the doctor finds nothing wrong", class_="well"
        )
    else:
        head = cards(grave, now)
    more = data["findings_total"] - len(findings)
    return section(
        "What is wrong",
        head,
        el("p", counted(more, "more finding"), ": brokerd doctor", class_="empty")
        if more > 0
        else None,
        el(
            "details",
            el("summary", f"{counted(len(rest), 'remark')}"),
            cards(rest, now),
        )
        if rest
        else None,
        el("p", "not checked: ", "; ".join(data["left_out"]), class_="empty")
        if data["left_out"]
        else None,
        class_="verdict",
    )


def _figures(data: Row, now: Instant) -> Html:
    per: dict[str, float] = data["rates"]
    many = [
        (
            "messages in queues",
            number(data["ready"] + data["parked"]),
            f"in {data['queues_with_messages']} of {data['queues']} queues"
            + (f", {data['parked']} parked" if data["parked"] else ""),
        ),
        ("oldest message", age(data["oldest_ready_at"], now), "of those that are not parked"),
        ("arriving", _rate(per, "enqueued"), sparkline(data["samples"], "enqueued")),
        ("received", _rate(per, "received"), sparkline(data["samples"], "received")),
        (
            "parked messages",
            number(data["parked"]),
            link("/parked", "see why") if data["parked"] else "",
        ),
    ]
    if data["findings"] is not None:
        destinations = sum(to.messages > 0 for to in data["destinations"])
        open_ones = sum(count for state, count in data["dialogs"].items() if state != "CD")
        many += [
            (
                "waiting to leave",
                number(data["waiting"]),
                f"for {counted(destinations, 'destination')}",
            ),
            ("open dialogs", number(open_ones), f"{data['dialogs'].get('ER', 0)} in error"),
            ("clients", number(data["clients"]), f"{counted(data['peers'], 'peer')} connected"),
        ]
    return section("Figures", tiles(*many))


def _rate(per: dict[str, float], what: str) -> Html:
    if what not in per:
        return el("span", "–", class_="none", title="known after the second look")  # noqa: RUF001
    return el("span", number(round(per[what], 1)), " /s")


def sparkline(samples: list[Row], what: str) -> Html | str:
    """Return the rates between samples as a small drawing; "" with fewer than three samples."""
    pairs = list(pairwise(samples))[-60:]
    values = [
        max(0, after[what] - before[what]) * SECOND / max(1, after["at"] - before["at"])
        for before, after in pairs
    ]
    if len(values) < 2:  # noqa: PLR2004
        return ""
    top = max(values) or 1.0
    step = 120 / (len(values) - 1)
    points = " ".join(
        f"{at * step:.1f},{22 - 20 * value / top:.1f}" for at, value in enumerate(values)
    )
    return el(
        "svg",
        el("polyline", points=points, fill="none"),
        viewBox="0 0 120 24",
        class_="spark",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"at most {top:.1f} per second",
    )


QUEUE_COLUMNS: Final = (
    Column("queue"),
    Column("state"),
    Column("waiting", is_number=True),
    Column("oldest", is_number=True),
    Column("parked", is_number=True),
    Column("readers", is_number=True),
)


def queue_row(one: SurveyedQueue, now: Instant, *, shows_broker: bool) -> list[Child]:
    """Return the cells of a surveyed queue. `shows_broker`: whether several brokers are shown."""
    tone = "bad" if one.pain > 2 else "warn" if one.pain else "good"  # noqa: PLR2004
    readers: Child = f"{one.readers} of {one.max_readers}" if one.max_readers else number(None)
    return [
        join(
            name(one.name, "/queue", {"broker": one.broker, "name": one.name}),
            el("small", name(one.broker)) if shows_broker else None,
        ),
        badge(one.why or "fine", tone),
        number(one.ready),
        age(one.oldest_ready_at, now),
        number(one.parked),
        readers,
    ]


def _worst(worst: list[SurveyedQueue], now: Instant, *, shows_broker: bool) -> Html:
    return section(
        join("Queues ", link("/queues", "all", class_="more")),
        table(
            "The queues that need somebody most",
            QUEUE_COLUMNS,
            [queue_row(one, now, shows_broker=shows_broker) for one in worst],
            "No queue has a message, and nothing is wrong with any.",
        ),
    )


def _destinations(data: Row, now: Instant) -> Html:
    columns = (
        Column("destination"),
        Column("state"),
        Column("waiting", is_number=True),
        Column("since", is_number=True),
        Column("next attempt", is_number=True),
        Column("why", is_wide=True),
    )
    tones = {"online": "good", "suppressed": "bad", "delayed": "bad", "connecting": "warn"}
    rows: list[list[Child]] = [
        [
            name(to.address, "/network")
            if to.address
            else link("/dialogs", f"no destination ({to.broker})", {"broker": to.broker}),
            badge(to.state, tones.get(to.state, "")),
            number(to.messages),
            age(to.since, now),
            age(to.next_attempt_at, now),
            sentence(to.text),
        ]
        for to in data["destinations"]
    ]
    return section(
        join("Destinations ", link("/network", "all", class_="more")),
        table("Where messages go", columns, rows, "Nothing waits to leave this instance."),
    )


def _stores(data: Row) -> Html:
    columns = (
        Column("store"),
        Column("state"),
        Column("file", is_number=True),
        Column("log", is_number=True),
        Column("free on the disk", is_number=True),
        Column("remark", is_wide=True),
    )
    rows: list[list[Child]] = [
        [
            name(one.broker),
            badge(one.state, "good" if one.state == "ok" else "bad"),
            size(one.size_bytes),
            size(one.wal_bytes),
            size(one.free_bytes),
            sentence(one.reason or one.loss),
        ]
        for one in data["stores"]
    ]
    near = [
        el(
            "li",
            name(one.owner or "this instance"),
            f": the {one.purpose} certificate ",
            "has expired" if one.days_left < 0 else f"expires in {counted(one.days_left, 'day')}",
        )
        for one in data["certificates"]
    ]
    return join(
        section("Disk", table("The stores of the brokers", columns, rows)),
        section(
            "Certificates",
            el("ul", near) if near else el("p", "None expires within 30 days.", class_="empty"),
        ),
    )
