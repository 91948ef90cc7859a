"""`brokerd activator`: start programs when a broker reports that a queue needs readers (ACT-40)."""

import asyncio
import signal
from pathlib import Path

import click

from brokerd.activator.activator import Activator
from brokerd.activator.config import ActivatorConfig, load
from brokerd.activator.recovery import RecoveryLog
from brokerd.cli.options import json_option
from brokerd.cli.output import print_line, print_rows
from brokerd.clock import SystemClock
from brokerd.ids import BootId, RandomIds
from brokerd.telemetry.logs import configure
from brokerd.units import counted


@click.group(name="activator")
def command() -> None:
    """Start programs on this machine when a broker, on this or another machine, has work for them.

    Queues report work by event notifications of QUEUE_ACTIVATION; see docs/how-to/activation.md.
    """


@command.command()
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
def serve(config: Path) -> None:
    """Run the activator of the file CONFIG until SIGTERM or SIGINT; then end the programs.

    After a second signal, do not wait for the programs.
    """
    run(load(config), str(config))


@command.command(name="ls")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def list_instances(*, config: Path, as_json: bool) -> None:
    """List the running instances of the applications in the file CONFIG."""
    found = load(config)
    log = RecoveryLog(found.state_dir)
    rows = [
        {"instance": slot.number, **slot.read()}
        for one in found.applications
        for slot in log.slots(one.name, one.instances.max)
        if slot.is_held()
    ]
    if as_json:
        print_rows(rows)
        return
    for row in rows:
        print_line(
            f"{row.get('application')} {row['instance']}: {row.get('pid')} {row.get('started_at')}"
        )
    print_line(counted(len(rows), "instance runs", "instances run"))


def run(config: ActivatorConfig, name: str) -> None:
    """Run an activator until a signal; `name`: the name of the activator in messages."""
    ids = RandomIds()
    boot_id = BootId(ids.fresh())
    clock = SystemClock()
    log = configure(config.log, clock=clock, instance="activator", boot_id=boot_id).log
    asyncio.run(_run(Activator(config, clock=clock, log=log), config, name))


async def _run(activator: Activator, config: ActivatorConfig, name: str) -> None:
    task = asyncio.ensure_future(activator.run())
    is_stopping = [False]

    def on_signal() -> None:
        if is_stopping[0]:
            task.cancel()
        is_stopping[0] = True
        activator.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    names = ", ".join(one.name for one in config.applications if one.enabled)
    queues = counted(len(config.services), "queue tells", "queues tell")
    print_line(f"{name}: starts {names or 'nothing'}, as {queues}")
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
