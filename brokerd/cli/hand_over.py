"""`brokerd broker hand-over`: another daemon takes the stores over, at the present one's request.

Reads:  options.      Calls: the daemon that has the stores, then those at all addresses.
Fails:  with 75 if no other daemon waits, and if the stores are at no daemon within `--wait`.
"""

import asyncio
from pathlib import Path
from typing import Final

import click

from brokerd.cli.options import daemon_address, instance_options, json_option
from brokerd.cli.output import print_json, print_line, warn
from brokerd.cli.session import ask
from brokerd.cli.view_commands import duration
from brokerd.client.session import Session, connect
from brokerd.clock import Clock, SystemClock
from brokerd.errors import BrokerError, BrokerUnavailable, Busy, DaemonUnreachable
from brokerd.model import MSDB

_PAUSE: Final = 0.1
"""Seconds between two looks at the daemons."""


@click.command(name="hand-over")
@click.option(
    "--wait",
    metavar="DURATION",
    default="60s",
    show_default=True,
    help="Longest wait for the other daemon.",
)
@instance_options
@json_option
def hand_over(*, wait: str, address: str | None, config: Path | None, as_json: bool) -> None:
    """Hand the stores in PostgreSQL over to the daemon that waits for them.

    All brokers of the instance move together, since their dialogs belong together. The present
    daemon lets open transactions finish, for daemon.drain at most, and then waits itself. With the
    addresses of both daemons, separated by commas, the command ends when the other one lets clients
    in; with one address, when the other one has the stores.
    """
    where = daemon_address(address, config).split(",")
    clock = SystemClock()
    began = clock.monotonic()
    former, waiting = _begin(where)
    if not as_json:
        warn(f"handing over to a daemon on {' or '.join(waiting)}")
    others = [one for one in where if one != former]
    found = asyncio.run(_until_held(former, others, duration(wait), clock))
    took = clock.monotonic() - began
    if as_json:
        print_json({"from": former, "waiting": waiting, "to": found, "seconds": round(took, 3)})
    else:
        print_line(f"handed over in {took:.1f} s: {found}")


def _begin(where: list[str]) -> tuple[str, list[str]]:
    """Ask the daemon that has the stores; return its address, and the machines that wait."""

    async def begin(session: Session) -> list[str]:
        return await session.admin.hand_over()

    refused: BrokerError | None = None
    for address in where:
        try:
            return address, ask(begin, address=address, config=None, broker=MSDB)
        except (BrokerUnavailable, DaemonUnreachable) as error:
            # The one that says for whom it waits explains more than one that does not answer.
            if refused is None or isinstance(error, BrokerUnavailable):
                refused = error
    assert refused is not None, "there is an address"
    raise refused


async def _until_held(former: str, others: list[str], seconds: float, clock: Clock) -> str:
    """Return who has the stores, as soon as another daemon has them.

    Raises:
        Busy: none has, or the former one has them again.
    """
    until = clock.monotonic() + seconds
    has_stopped = False
    while clock.monotonic() < until:
        for address in others:
            if not await _why_not(address):
                return f"the daemon at {address} has the stores"
        why_not = await _why_not(former)
        if isinstance(why_not, BrokerUnavailable) and "held by" in why_not.message:
            has_stopped = True
            if not others:
                return f"this daemon is {why_not.message}"
        elif why_not is None and has_stopped:
            raise Busy(
                f"the stores came back to the daemon at {former}: the other one did not start",
                hint="the event log of the other daemon says why",
            )
        has_stopped = has_stopped or why_not is not None
        await clock.sleep_until(clock.monotonic() + _PAUSE)
    raise Busy(
        f"no other daemon let clients in within {seconds:g} s",
        hint="brokerd status at both daemons says what they wait for",
    )


async def _why_not(address: str) -> BrokerError | None:
    """Return why the daemon at an address lets no client in; None = it does."""
    try:
        async with await connect(address, broker=MSDB):
            return None
    except BrokerError as error:
        return error
