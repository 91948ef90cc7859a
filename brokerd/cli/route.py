"""`brokerd route`: a broker's routes; the target of a service or a dialog, with the reasons."""

import asyncio
import signal
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import click

from brokerd.cli.object_commands import route as command
from brokerd.cli.options import SECONDS, daemon_address, daemon_options, json_option
from brokerd.cli.output import print_json, print_line
from brokerd.cli.session import SERVING_RETRY, ask, waited_for
from brokerd.cli.short_ids import BROKER_ID, HANDLE
from brokerd.client.admin_answers import RouteExplanation
from brokerd.client.session import Session, connect
from brokerd.clock import show_instant
from brokerd.dynamic_routing.route_service import RouteService, declare
from brokerd.errors import UsageError
from brokerd.process.exit_statuses import FAILED, OK
from brokerd.routing.reasons import status_text
from brokerd.units import counted

for usual, short in (("create", "add"), ("drop", "rm")):
    known = copy(command.commands[usual])
    known.hidden = True
    command.add_command(known, short)


def _question(name: str, text: str, tell: Callable[[RouteExplanation], None]) -> click.Command:
    """Return a command that asks for a route; exit status 0 if messages have a target, else 1."""

    def run(*, as_json: bool, **asked: Any) -> int:  # noqa: ANN401  # as click gives them
        found = _fetch(**asked)
        if as_json:
            print_json(found)
        else:
            tell(found)
        return OK if found.outcome in ("local", "remote") else FAILED

    for option in (
        json_option,
        daemon_options,
        click.option("--reply", is_flag=True, help="For a message from the target's side."),
        click.option("--arriving", is_flag=True, help="For a message from another instance."),
        click.option(
            "--broker-id", type=BROKER_ID, help="The broker that the sender names with the service."
        ),
        click.option("--handle", type=HANDLE, help="The handle of a dialog, instead of a service."),
        click.argument("service", required=False),
    ):
        run = option(run)
    return click.command(name=name, help=text)(run)


@command.command(name="serve")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--declare/--no-declare",
    "declares",
    default=True,
    help="Create the queue, the service and its route if they are missing.  [default: yes]",
)
@click.option("--wait", type=SECONDS, default=10.0, help="Longest wait for the daemon.")
@daemon_options
def serve(
    *,
    file: Path,
    declares: bool,
    wait: float,
    address: str | None,
    config: Path | None,
    broker: str,
) -> None:
    """Answer requests for missing routes from FILE, until SIGTERM or SIGINT (BCN).

    FILE is TOML: a table [[service]] for each service, with its `name` and `addresses`, or `srv`,
    the name of an SRV record; `lifetime` is the lifetime of its routes in seconds. FILE is read
    again whenever it changes.
    """
    service = RouteService(file, print_line)
    asyncio.run(_serve(service, daemon_address(address, config), broker, wait, declares=declares))


async def _serve(
    service: RouteService, address: str, broker: str, wait: float, *, declares: bool
) -> None:
    connecting = connect(address, broker=broker, wait=wait, retry=SERVING_RETRY)
    async with await waited_for(connecting, address, wait) as session:
        if declares:
            await declare(session)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        print_line(f"answering requests for routes of broker {broker!r} at {address}")
        await service.run(session, stop)


def _fetch(
    *,
    service: str | None,
    handle: bytes | None,
    broker_id: bytes | None,
    arriving: bool,
    reply: bool,
    **daemon: Any,  # noqa: ANN401  # as click gives them
) -> RouteExplanation:
    if (service is None) == (handle is None):
        raise UsageError("give the name of a service, or --handle of a dialog")

    async def fetch(session: Session) -> RouteExplanation:
        return await session.admin.explain_route(
            service, handle=handle, broker_id=broker_id, arriving=arriving, reply=reply
        )

    return ask(fetch, **daemon)


def _say_steps(found: RouteExplanation) -> None:
    table = None
    for step in found.steps:
        if step.table != table:
            table = step.table
            if table:
                print_line("routes of the broker:" if table == "own" else "routes of the instance:")
        print_line(f"  {step.step:>8}  {step.finding}{_names(step.routes)}")
    _say_verdict(found)


def _names(routes: tuple[str, ...]) -> str:
    return f" ({', '.join(routes)})" if routes else ""


def _say_verdict(found: RouteExplanation) -> None:
    print_line(_verdict(found))


def _verdict(found: RouteExplanation) -> str:
    to = f"{found.service!r}"
    match found.outcome:
        case "local":
            return f"{to} goes to broker {found.where!r} here{_by(found)}"
        case "remote":
            return f"{to} goes to {found.where}{_by(found)}"
        case "delayed":
            return f"{to} waits: {found.reason}: {status_text(found.reason)}{_tried(found)}"
        case "refused":
            return (
                f"{to} is refused by broker {found.where!r}{_by(found)}, which has no such service"
            )
        case _:
            return f"{to} is dropped: {found.reason}: {status_text(found.reason)}"


def _tried(found: RouteExplanation) -> str:
    """Return text about the attempts to route a waiting dialog, and the time of the next."""
    if found.next_attempt_at is None:
        return ""
    return f"; tried {counted(found.attempts, 'time')}, next {show_instant(found.next_attempt_at)}"


def _by(found: RouteExplanation) -> str:
    return f", by route {found.route!r}" if found.route else ""


command.add_command(
    _question("explain", "Show every step of routing a service name, or a dialog.", _say_steps)
)
command.add_command(
    _question(
        "test",
        "Show the target of a service name, or a dialog; exit status 1 if it has none.",
        _say_verdict,
    )
)
