"""`brokerd event`: event notifications, who is told of what and whether it arrives (EVT, VIEW-11).

Calls:  the session's `create` and `drop`, and the view `event_notifications`.
Never:  judges a name: the daemon knows the events and which of them fit a queue.
"""

from pathlib import Path
from typing import Any

import click

from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, say, table
from brokerd.cli.session import ask
from brokerd.client.session import Session
from brokerd.clock import Instant, show_instant

_KIND = "event_notification"


@click.group(name="event")
def command() -> None:
    """Tell services, in messages, of what happens in a broker."""


@command.command(name="create")
@click.argument("name")
@click.argument("events", nargs=-1, required=True, metavar="EVENT...")
@click.option("--service", required=True, help="The service that is told.")
@click.option("--queue", help="Only of this queue.")
@click.option(
    "--scope",
    type=click.Choice(["instance", "broker"]),
    help="Of every broker of the instance, or of this one.  [default: broker]",
)
@click.option("--target-broker", metavar="GUID", help="The broker of that service, if another.")
@click.option("--fan-in", is_flag=True, help="Share one message with others to the same target.")
@daemon_options
@json_option
def create(
    *,
    name: str,
    events: tuple[str, ...],
    service: str,
    queue: str | None,
    scope: str | None,
    target_broker: str | None,
    fan_in: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Tell a service of each EVENT from now on.

    An EVENT is a name such as BROKER_QUEUE_DISABLED, or a group such as DDL_SSB_EVENTS. The service
    accepts the contract urn:brokerd:PostEventNotification.
    """
    said = {
        "queue": queue,
        "scope": scope,
        "broker": target_broker,
        "fan_in": "on" if fan_in else None,
    }
    given = {key: value for key, value in said.items() if value is not None}

    async def work(session: Session) -> list[object]:
        return await session.create(_KIND, name, events=list(events), service=service, **given)

    _show_changes(ask(work, **options), as_json=as_json)


@command.command(name="drop")
@click.argument("name")
@daemon_options
@json_option
def drop(*, name: str, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Tell nobody any more; the dialog is ended."""
    _show_changes(ask(lambda session: session.drop(_KIND, name), **options), as_json=as_json)


@command.command(name="ls")
@daemon_options
@json_option
def ls(*, address: str | None, config: Path | None, broker: str, as_json: bool) -> None:
    """List who is told of what, and whether it arrives."""
    found = ask(
        lambda session: session.view("event_notifications"),
        address=address,
        config=config,
        broker=broker,
    )
    if as_json:
        print_json(found)
        return
    columns = ("name", "of", "events", "told to", "status", "failures", "undelivered", "last sent")
    table("event notifications", columns, [_row(one) for one in found if isinstance(one, dict)])


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    status = one["status"]
    if one["failures"] and one["last_error"]:
        status = f"{status}: {one['last_error']}"
    sent = one["last_sent_at"]
    return (
        one["name"],
        f"queue {one['queue']}" if one["queue"] else one["scope"],
        ", ".join(one["events"]),
        one["service_name"],
        status,
        one["failures"],
        one["undelivered"],
        "-" if sent is None else show_instant(Instant(sent)),
    )


def _show_changes(changes: list[object], *, as_json: bool) -> None:
    if as_json:
        print_json(changes)
        return
    for change in changes:
        say(str(change["sentence"]) if isinstance(change, dict) else str(change))
