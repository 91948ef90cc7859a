"""`brokerd worker`: run an App in a process of its own (SDK-11)."""

import asyncio
import signal
from pathlib import Path

import click

from brokerd.activation.handlers import find, import_from_here
from brokerd.app.app import App
from brokerd.cli.one_program import start_programs
from brokerd.cli.options import SECONDS, daemon_address, daemon_options
from brokerd.cli.output import print_line
from brokerd.cli.session import SERVING_RETRY, waited_for
from brokerd.clock import SystemClock
from brokerd.config.settings import LogSettings
from brokerd.connecting import connect
from brokerd.errors import UsageError
from brokerd.ids import BootId, RandomIds
from brokerd.telemetry.logs import configure


@click.group(name="worker")
def command() -> None:
    """Run handlers in a process of their own."""


@command.command()
@click.argument("app", metavar="MODULE:APP", required=False)
@click.option(
    "--exec",
    "program",
    metavar="COMMAND",
    help="Instead of an app: start this program whenever --queue needs a reader.",
)
@click.option("--queue", help="With --exec: the queue that the program reads.")
@click.option(
    "--max", "most", type=click.IntRange(1), default=1, help="With --exec: so many at a time."
)
@click.option(
    "--idle",
    type=SECONDS,
    help="End when there was no message for so long, as a program that is started by load does.",
)
@click.option(
    "--declare/--no-declare",
    default=True,
    help="Add what is missing: the contracts, queues and service of the app; with --exec the "
    "event notification that tells of work, its queue and service.  [default: yes]",
)
@click.option(
    "--wait", type=SECONDS, default=10.0, show_default=True, help="Wait so long for the daemon."
)
@daemon_options
def run(
    *,
    app: str | None,
    program: str | None,
    queue: str | None,
    most: int,
    idle: float | None,
    declare: bool,
    wait: float,
    address: str | None,
    config: Path | None,
    broker: str,
) -> None:
    """Read the queues of MODULE:APP, a brokerd.App, until SIGTERM or SIGINT.

    After the signal no message is received any more, and running handlers may finish; a second
    signal does not wait for them: what they have received stays in its queue.

    With --exec this is an activator for one queue: the program is a client that receives from the
    queue and ends when it stays empty. It finds BROKERD_ADDRESS, BROKERD_BROKER and BROKERD_QUEUE
    in its environment.
    """
    where = daemon_address(address, config)
    if program is not None:
        if app is not None or not queue:
            raise UsageError("--exec goes with --queue, and without MODULE:APP")
        start_programs(program, queue, where, broker, most=most, declare=declare, wait=wait)
        return
    if app is None:
        raise UsageError("name the app as MODULE:APP, or a program with --exec and --queue")
    if not all(app.partition(":")):
        raise UsageError(
            f"{app!r} is not of the form MODULE:APP",
            hint="the module and its brokerd.App, for instance warehouse:app",
        )
    import_from_here()
    found = find(app)
    if not isinstance(found, App):
        raise UsageError(
            f"{app} is {type(found).__name__}, not a brokerd.App",
            hint='name what is made with brokerd.App("NAME"); a handler of another kind is run by '
            "the daemon, or by --exec",
        )
    asyncio.run(_run(found, where, broker, wait, declare=declare, idle=idle))


async def _run(
    app: App, address: str, broker: str, wait: float, *, declare: bool, idle: float | None
) -> None:
    ids = RandomIds()
    configure(LogSettings(), clock=SystemClock(), instance=app.service, boot_id=BootId(ids.fresh()))
    connecting = connect(address, broker=broker, wait=wait, retry=SERVING_RETRY)
    async with await waited_for(connecting, address, wait) as session:
        if declare:
            await session.declare(app)
        stop = asyncio.Event()
        task = asyncio.ensure_future(app.run(session, stop=stop, idle=idle))

        def on_signal() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        print_line(f"{app.service} reads {', '.join(app.queues)} at {address}")
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
