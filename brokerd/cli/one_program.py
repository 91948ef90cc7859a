"""`brokerd worker run --exec`: an activator for one program and one queue (ACT-40).

Calls:  the activator, once the notification that reports work exists.
Never:  removes what it has declared: the next run finds it.
"""

import asyncio
import os
import re
import shlex
import shutil
import stat
import tempfile
from pathlib import Path

from brokerd.activator.config import OF_WORKERS, for_one_queue
from brokerd.cli.activator import run
from brokerd.cli.session import waited_for
from brokerd.connecting import connect
from brokerd.errors import ObjectExists, QueueNotFound, UsageError
from brokerd.model import POST_EVENT_NOTIFICATION


def start_programs(
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
    run(config, f"queue {queue}")


async def _declare(queue: str, address: str, broker: str, wait: float) -> None:
    """Declare the notification, with the service and queue that receive it."""
    name = f"{queue}{OF_WORKERS}"
    told = {"service": name, "queue": queue, "events": ["QUEUE_ACTIVATION"]}
    connecting = connect(address, broker=broker, wait=wait)
    async with await waited_for(connecting, address, wait) as session:
        if not await session.view("service_queues", where={"name": queue}):
            # Checked before anything is made for it.
            raise QueueNotFound(f"queue {queue!r} is not in broker {broker!r}")
        for kind, fields in (
            ("queue", {}),
            ("service", {"queue": name, "contracts": [POST_EVENT_NOTIFICATION]}),
            ("event_notification", told),
        ):
            try:
                await session.create(kind, name, **fields)
            except ObjectExists:
                continue


def _state_dir(queue: str, address: str, broker: str) -> Path:
    """Return the state directory of a queue, private to this user; a restart finds it again."""
    own = Path(tempfile.gettempdir()) / f"brokerd-workers-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    found = own.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{own} is not a directory of yours", hint="set TMPDIR to another place")
    return own / re.sub(r"[^A-Za-z0-9_.-]", "_", f"{address}-{broker}-{queue}")
