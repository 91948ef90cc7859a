"""Network: instances, routes, destinations and what passes through (MON-49).

Reads:  the views of transport, routes and the forwarder.      Calls: nothing that changes anything.
"""

from shlex import quote
from typing import Any, Final

from brokerd.clock import Instant
from brokerd.http.page.desk import Desk, Query, Row, broker_of
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.shell import Column, choice, facts, pager, section, table
from brokerd.http.page.words import age, badge, command, ident, link, name, number, sentence, size

PAGE: Final = 50
_TONES: Final = {"online": "good", "suppressed": "bad", "connecting": "warn", "idle": ""}


async def load(desk: Desk, query: Query) -> Row:
    """Return the connections, destinations, routes and the forwarder; routes in pages."""
    broker = broker_of(desk, query)

    async def some(view: str, **options: Any) -> list[Row]:  # noqa: ANN401
        return (await desk.view(broker, view, limit=PAGE, **options)).rows

    routes = await desk.view(broker, "routes", limit=PAGE, after=query.get("after") or None)
    diagnosis = await desk.diagnosis()
    return {
        "broker": broker,
        "brokers": list(desk.brokers),
        "nowhere": []
        if diagnosis is None
        else [one for one in diagnosis.status.destinations if not one.address][:PAGE],
        "endpoint": next(iter(await some("endpoint")), None),
        "connections": await some("connections"),
        "destinations": await some("destinations"),
        "routes": routes.rows,
        "next": routes.next,
        "instance_routes": await some("instance_routes"),
        "bindings": await some("remote_service_bindings"),
        "forwarder": (await some("forwarder_counters"))[0],
        "passing": await some("forwarded_messages"),
    }


def draw(data: Row, query: Query, now: Instant) -> Html:
    """Return the section as HTML."""
    kept = {"broker": data["broker"], "after": query.get("after", "")}
    of_broker = choice("broker", "/network", kept, data["brokers"])
    return join(
        section("This instance", _endpoint(data["endpoint"])),
        section("Destinations", _destinations(data, now)),
        section("Connected instances", _connections(data["connections"], now)),
        section(
            join("Routes of broker ", name(data["broker"])),
            of_broker,
            _routes(data["routes"], now),
            pager("/network", kept, data["next"]),
            id_="routes",
        ),
        section("Routes of the instance", _routes(data["instance_routes"], now)),
        section("Forwarder", _forwarder(data)),
        section("Remote service bindings", _bindings(data["bindings"])),
    )


def _endpoint(row: Row | None) -> Html:
    if row is None:
        return el(
            "p",
            "It has no broker endpoint: it talks to no other instance. "
            "A section [endpoint] in the settings gives it one.",
            class_="empty",
        )
    state = str(row["state"])
    return facts(
        (
            "endpoint",
            join(
                name(row["name"]),
                " ",
                badge(state.lower(), "good" if state.upper() == "STARTED" else "bad"),
            ),
        ),
        ("listens at", ", ".join(map(str, row["listener_address"])) or "nowhere"),
        *(
            [("why it does not listen", sentence(row["listen_error"]))]
            if row["listen_error"]
            else []
        ),
        ("peers prove who they are by", sentence(row["connection_auth"])),
        ("encryption", sentence(row["encryption"])),
        ("forwards", "yes" if row["is_message_forwarding_enabled"] else "no"),
    )


def _destinations(data: Row, now: Instant) -> Html:
    columns = (
        Column("address"),
        Column("state"),
        Column("waiting", is_number=True),
        Column("dialogs", is_number=True),
        Column("failed in a row", is_number=True),
        Column("next attempt", is_number=True),
        Column("losses", is_number=True),
        Column("last error", is_wide=True),
    )
    cells: list[list[Child]] = [
        [
            join(name(one["address"]), el("small", "this instance") if one["is_self"] else None),
            badge(one["state"], _TONES.get(one["state"], "")),
            number(one["pending_messages"]),
            number(one["dialogs"]),
            number(one["consecutive_failures"]),
            age(one["suppressed_until"], now),
            number(one["losses"]),
            join(
                sentence(one["last_error"]),
                " ",
                el("small", age(one["last_error_at"], now), " ago") if one["last_error"] else None,
                _retry(one),
            ),
        ]
        for one in data["destinations"]
    ]
    cells += [
        [
            link("/dialogs", f"no destination ({to.broker})", {"broker": to.broker}),
            badge(to.state, "bad"),
            number(to.messages),
            number(None),
            number(to.failures),
            age(to.next_attempt_at, now),
            number(None),
            sentence(to.text),
        ]
        for to in data["nowhere"]
    ]
    return table(
        "Addresses to which messages are sent",
        columns,
        cells,
        "Nothing was sent to another instance yet.",
    )


def _retry(row: Row) -> Html | None:
    if row["state"] != "suppressed":
        return None
    return el("p", command(f"brokerd destination retry {quote(row['address'])}"))


def _connections(rows: list[Row], now: Instant) -> Html:
    columns = (
        Column("peer"),
        Column("address"),
        Column("state"),
        Column("connected", is_number=True),
        Column("last activity", is_number=True),
        Column("sent", is_number=True),
        Column("received", is_number=True),
        Column("encryption"),
        Column("error", is_wide=True),
    )
    cells: list[list[Child]] = [
        [
            name(one["principal_name"])
            if one["principal_name"]
            else ident(one["peer_arbitration_id"]),
            name(one["peer_address"]),
            badge(
                one["state_desc"].lower().replace("_", " "), "good" if one["login_time"] else "warn"
            ),
            age(one["connect_time"], now),
            age(one["last_activity_time"], now),
            size(one["total_bytes_sent"]),
            size(one["total_bytes_received"]),
            sentence(one["encryption_algorithm_desc"]),
            sentence(one["error"]),
        ]
        for one in rows
    ]
    return table("Connections", columns, cells, "No other instance is connected.")


def _routes(rows: list[Row], now: Instant) -> Html:
    columns = (
        Column("route"),
        Column("to service"),
        Column("address"),
        Column("mirror", is_wide=True),
        Column("broker"),
        Column("expires", is_number=True),
        Column("state"),
    )
    cells: list[list[Child]] = [
        [
            name(one["name"]),
            name(one["remote_service_name"]) if one["remote_service_name"] else "any service",
            name(one["address"]),
            join(
                name(one["mirror_address"]),
                el("small", sentence(one["mirror_state"])) if one["mirror_state"] else None,
            ),
            ident(one["broker_instance"]),
            age(one["lifetime"], now),
            badge("expired", "bad")
            if one["is_expired"]
            else badge("dynamic" if one["is_dynamic"] else "in use", "good"),
        ]
        for one in rows
    ]
    return table("Routes", columns, cells, "There is no route.")


def _forwarder(data: Row) -> Html:
    row = data["forwarder"]
    if not row["is_forwarding"] and not row["pending_messages"]:
        return el("p", "Forwarding is off: no message passes through.", class_="empty")
    shown = [
        (key.removesuffix("_total").replace("_", " "), _value(value)) for key, value in row.items()
    ]
    return join(
        facts(*shown),
        el("p", f"{len(data['passing'])} messages or more are passing through.", class_="remark")
        if data["passing"]
        else None,
    )


def _value(value: object) -> Child:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
    return number(value) if isinstance(value, int | float) else sentence(value)


def _bindings(rows: list[Row]) -> Html:
    columns = (Column("binding"), Column("to service"), Column("principal"), Column("anonymous"))
    cells: list[list[Child]] = [
        [
            name(one["name"]),
            name(one["remote_service_name"]),
            name(one["remote_principal_id"]),
            "yes" if one["is_anonymous_on"] else "no",
        ]
        for one in rows
    ]
    return table("Remote service bindings", columns, cells, "There is none.")
