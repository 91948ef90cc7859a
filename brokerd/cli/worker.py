"""`brokerd worker`: run an App in a process of its own (SDK-11)."""

import asyncio
import signal
from pathlib import Path

import click

from brokerd.activation.handlers import find, import_from_here
from brokerd.app.app import App
from brokerd.cli.options import SECONDS, daemon_address, daemon_options
from brokerd.cli.output import say
from brokerd.cli.session import SERVING_RETRY
from brokerd.clock import SystemClock
from brokerd.connecting import connect
from brokerd.errors import UsageError
from brokerd.ids import BootId, RandomIds
from brokerd.logs import configure
from brokerd.settings import LogSettings


@click.group(name="worker")
def command() -> None:
    """Run handlers in a process of their own."""


@command.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--declare/--no-declare",
    default=True,
    help="Add the contracts, queues and the service of the app that are missing.  [default: yes]",
)
@click.option("--wait", type=SECONDS, default=10.0, help="Wait so long for the daemon.")
@daemon_options
def run(
    *,
    app: str,
    declare: bool,
    wait: float,
    address: str | None,
    config: Path | None,
    broker: str,
) -> None:
    """Read the queues of MODULE:APP, a brokerd.App, until SIGTERM or SIGINT.

    Then no message is taken any more, and handlers that run are let finish; a second signal does
    not wait for them: what they have received stays in its queue.
    """
    import_from_here()
    found = find(app)
    if not isinstance(found, App):
        raise UsageError(f"{app} is {type(found).__name__}, not a brokerd.App")
    where = daemon_address(address, config)
    asyncio.run(_run(found, where, broker, wait, declare=declare))


async def _run(app: App, address: str, broker: str, wait: float, *, declare: bool) -> None:
    ids = RandomIds()
    configure(LogSettings(), clock=SystemClock(), instance=app.service, boot_id=BootId(ids.fresh()))
    async with connect(address, broker=broker, wait=wait, retry=SERVING_RETRY) as session:
        if declare:
            await session.declare(app)
        stop = asyncio.Event()
        task = asyncio.ensure_future(app.run(session, stop=stop))

        def on_signal() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        say(f"{app.service} reads {', '.join(app.queues)} at {address}")
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
