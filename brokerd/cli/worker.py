"""`brokerd worker`: runs an App (SDK-11), or programs with --exec (ACT-40), without the daemon.

Calls:  the SDK for an App; the activator for programs, once the notification exists that reports
        work.
Never:  removes the objects that it has declared: the next run uses them again.
"""

import asyncio
import os
import re
import shlex
import shutil
import signal
import stat
import tempfile
from pathlib import Path

import click

from brokerd.activation.handlers import find, import_from_here
from brokerd.activator.config import OF_WORKERS, for_one_queue
from brokerd.app.app import App
from brokerd.cli.activator import run as run_activator
from brokerd.cli.options import SECONDS, daemon_address, daemon_options
from brokerd.cli.output import print_line
from brokerd.cli.session import SERVING_RETRY, waited_for
from brokerd.clock import SystemClock
from brokerd.config.settings import LogSettings
from brokerd.config.toml_file import did_you_mean
from brokerd.connecting import connect
from brokerd.errors import QueueNotFound, UsageError
from brokerd.ids import BootId, RandomIds
from brokerd.model import POST_EVENT_NOTIFICATION
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
    "--max", "most", type=click.IntRange(1), default=1, help="With --exec: most programs at a time."
)
@click.option(
    "--idle",
    type=SECONDS,
    help="End after this time without a message, like a program that is started by load.",
)
@click.option(
    "--declare/--no-declare",
    default=True,
    help="Create missing objects: the contracts, queues and service of the app; with --exec the "
    "event notification that reports work, its queue and service.  [default: yes]",
)
@click.option(
    "--wait", type=SECONDS, default="10s", show_default=True, help="Longest wait for the daemon."
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

    After the signal no further message is received, and running handlers may finish. A second
    signal does not wait for them: the messages that they have received stay in their queue.

    With --exec this is an activator for one queue: the program is a client that receives from the
    queue and ends when the queue stays empty. Its environment has BROKERD_ADDRESS, BROKERD_BROKER
    and BROKERD_QUEUE.

    Missing objects are created, which needs `control on BROKER`; where all are there, `receive` on
    the queues is enough.
    """
    where = daemon_address(address, config)
    if program is not None:
        if app is not None or not queue:
            raise UsageError("--exec goes with --queue, and without MODULE:APP")
        _start_programs(program, queue, where, broker, most=most, declare=declare, wait=wait)
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


# With --exec: an activator for one program and one queue (ACT-40).


def _start_programs(
    program: str, queue: str, address: str, broker: str, *, most: int, declare: bool, wait: float
) -> None:
    """Start the program whenever the queue needs a reader, until SIGTERM or SIGINT."""
    command = shlex.split(program)
    if not command:
        raise UsageError("--exec names a program")
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"there is no program {command[0]!r} that could be started",
            hint="give its path, or see that it is executable and in PATH",
        )
    if declare:
        asyncio.run(_declare(queue, address, broker, wait))
    folder = _state_dir(queue, address, broker)
    config = for_one_queue(
        queue, command, address=address, broker=broker, state_dir=folder, most=most
    )
    run_activator(config, f"queue {queue}")


async def _declare(queue: str, address: str, broker: str, wait: float) -> None:
    """Declare the notification, and the service and queue that receive its events."""
    name = f"{queue}{OF_WORKERS}"
    notification = {
        "name": name,
        "service": name,
        "queue": queue,
        "events": ["QUEUE_ACTIVATION"],
    }
    connecting = connect(address, broker=broker, wait=wait)
    async with await waited_for(connecting, address, wait) as session:
        queues = {str(one["name"]) for one in await session.objects("queue")}
        if queue not in queues:  # checked before any object is created for the queue
            near = did_you_mean(queue, queues)
            raise QueueNotFound(f"queue {queue!r} is not in broker {broker!r}{near}")
        await session.apply(
            {
                "broker": {"name": session.welcome.broker},
                "queue": [{"name": queue}, {"name": name}],
                "service": [{"name": name, "queue": name, "contracts": [POST_EVENT_NOTIFICATION]}],
                "event_notification": [notification],
            },
            ensure=True,
        )


def _state_dir(queue: str, address: str, broker: str) -> Path:
    """Return the state directory of a queue, private to this user; a restart finds it again."""
    own = Path(tempfile.gettempdir()) / f"brokerd-workers-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    found = own.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{own} is not a directory of yours", hint="set TMPDIR to another place")
    return own / re.sub(r"[^A-Za-z0-9_.-]", "_", f"{address}-{broker}-{queue}")
