"""`brokerd peer pair`: pair this instance with another, by a code that is shown once (SEC-60).

Calls:  the verbs of pairing, then a ping of the whole way.
Never:  shares a service that the administrator has not named.
Fails:  if the code was not used; what was begun is undone by the daemon.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, print_line, quoted, warn
from brokerd.cli.ping import verdict
from brokerd.cli.session import ask
from brokerd.client.admin_answers import PingAnswer
from brokerd.client.pairing import Paired, PairingState
from brokerd.client.session import Session
from brokerd.clock import SystemClock
from brokerd.errors import BrokerError, UsageError
from brokerd.process.exit_statuses import FAILED, OK

_STEP = 10.0
_MOST_WRONG = 5
_PING_WAIT = 10.0
_FOR_DAEMON = 10.0
"""Seconds to wait for a daemon and its services, which a set-up starts just before."""
_AGAIN = 0.25
"""Seconds until services are looked up again."""
_OVER = {
    "expired": "nobody has used the code in time: show a new one",
    "guessed": "the code is void after five wrong ones: show a new one, if those were mistyped",
    "cancelled": "the code was cancelled, or another was shown since",
}


class Ended(msgspec.Struct, frozen=True):
    """A pairing that is over, for `--json`."""

    paired: Paired | None
    ping: PingAnswer | None
    problem: str
    """Why the instances are not paired, or why the ping did not come back; empty = all is well."""


@click.command(name="pair")
@click.argument("code", required=False)
@click.option("--name", help="The name of the other machine here.  [default: the name it says]")
@click.option(
    "--share",
    "shares",
    multiple=True,
    metavar="SERVICE",
    help="A service that the other machine may send to; repeatable.",
)
@click.option(
    "--create",
    "created",
    multiple=True,
    metavar="SERVICE",
    help="A service of this machine to create before, with its queue, if it is missing.",
)
@click.option(
    "--own-address",
    metavar="TCP://HOST:PORT",
    help="The address at which the other machine reaches this one.  [default: found out]",
)
@click.option("--no-wait", is_flag=True, help="Print the code and end; it stays valid.")
@daemon_options
@json_option
def command(
    *,
    code: str | None,
    name: str | None,
    shares: tuple[str, ...],
    created: tuple[str, ...],
    own_address: str | None,
    no_wait: bool,
    as_json: bool,
    **daemon: Any,  # noqa: ANN401  # as click gives them
) -> int:
    """Pair this machine with another, so that their services can send to each other.

    Without CODE, a code is printed, which is valid once and for 10 minutes; with it, on the other
    machine, both install each other's certificates, routes and permissions. A CODE of - is read
    from standard input. With --json, each line is one object.
    """
    if code is not None and no_wait:
        raise UsageError("--no-wait is for the machine that shows the code")
    if code == "-":
        code = sys.stdin.readline().strip()

    async def run(session: Session) -> Ended | None:
        if created:
            await session.apply(_declared(created), ensure=True)
        await _await_services(session, shares)
        chosen = shares or await _choose(session, as_json=as_json)
        wishes: dict[str, Any] = {
            "name": name,
            "shares": chosen,
            "address": own_address,
        }
        if code is not None:
            return await _ended(session, await session.admin.join_peer(code, **wishes), chosen)
        return await _invite(session, wishes, waits=not no_wait, as_json=as_json)

    ended = ask(run, wait=_FOR_DAEMON, **daemon)
    if ended is None:
        return OK
    if as_json:
        print_json(ended, indent=0)
    else:
        _show(ended)
    return FAILED if ended.problem else OK


def _declared(services: Sequence[str]) -> dict[str, object]:
    """Return the declaration of services, as a program makes it that begins dialogs (SDK-4)."""
    return {
        "queue": [{"name": f"{one}_q"} for one in services],
        "service": [{"name": one, "queue": f"{one}_q"} for one in services],
    }


async def _await_services(session: Session, names: Sequence[str]) -> None:
    """Wait a moment for services that a program declares while it starts, such as a worker.

    One that does not come is refused by the daemon, which names it."""
    clock, warned = SystemClock(), False
    deadline = clock.monotonic() + _FOR_DAEMON
    while missing := {*names} - {str(row["name"]) for row in await session.objects("service")}:
        if clock.monotonic() >= deadline:
            return
        if not warned:
            warn(f"waiting up to {_FOR_DAEMON:g} s for a program to declare {', '.join(missing)}")
            warned = True
        await clock.sleep_until(clock.monotonic() + _AGAIN)


async def _choose(session: Session, *, as_json: bool) -> list[str]:
    """Ask on a terminal which services the other machine may send to."""
    services = [str(row["name"]) for row in await session.objects("service")]
    if as_json or not services or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return []
    print_line(f"services of this broker: {', '.join(services)}")
    print_line("which may the other machine send to? (names with commas, nothing for none)")
    said = await asyncio.to_thread(sys.stdin.readline)
    return [one.strip() for one in said.split(",") if one.strip()]


async def _invite(
    session: Session, wishes: dict[str, Any], *, waits: bool, as_json: bool
) -> Ended | None:
    shown = await session.admin.invite_peer(**wishes)
    if as_json:
        print_json(
            {"code": shown.code, "address": shown.address, "seconds_left": shown.seconds_left},
            indent=0,
        )
    else:
        print_line(f"code of this machine ({shown.address}), valid once and for 10 minutes:")
        print_line()
        print_line(f"    {shown.code}")
        print_line()
        print_line("on the other machine: brokerd peer pair CODE")
    if not waits:
        return None
    try:
        state = await _wait(session, shown, as_json=as_json)
    except asyncio.CancelledError:
        await session.admin.cancel_pairing()
        raise
    if state.result is None:
        return Ended(None, None, _OVER.get(state.phase, state.error))
    return await _ended(session, state.result, wishes["shares"])


async def _wait(session: Session, state: PairingState, *, as_json: bool) -> PairingState:
    """Return the state once the code has been used, or is void; report what happens meanwhile."""
    if not as_json:
        print_line("waiting for it; Ctrl-C cancels the code")
    while state.result is None and not state.is_over:
        before = state
        state = await session.admin.await_pairing(state.number, wait=_STEP)
        if as_json:
            continue
        if state.wrong > before.wrong:
            warn(f"somebody has tried a wrong code: {state.wrong} of {_MOST_WRONG} attempts")
        elif state.error and state.error != before.error:
            warn(f"not paired: {state.error}; the code may be tried again")
        elif state.peer and state.peer != before.peer:
            print_line(f"{state.peer} has the code")
    return state


async def _ended(session: Session, paired: Paired, shares: Sequence[str]) -> Ended:
    """Return the result of a pairing, with that of a ping of the whole way (SEC-63)."""
    ours = [*shares, *(str(row["name"]) for row in await session.objects("service"))]
    left_out = paired.left_out.keys() | set(ours)
    service = next((one for one in paired.services if one not in left_out), None)
    from_service = next((one for one in ours if one not in paired.services), None)
    if service is None or from_service is None:
        return Ended(paired, None, "")
    try:
        answer = await session.admin.ping(service, from_service=from_service, wait=_PING_WAIT)
    except BrokerError as error:
        return Ended(paired, None, error.message)
    return Ended(paired, answer, "" if answer.is_complete else verdict(answer))


def _show(ended: Ended) -> None:
    paired = ended.paired
    if paired is None:
        warn(ended.problem)
        return
    again = "" if paired.is_new else ", which was known here already"
    print_line(f"paired with {paired.principal} at {paired.address}{again}")
    for grant in paired.grants:
        print_line(f"  granted: {grant}")
    for change in paired.changes:
        print_line(f"  {change}")
    for service, why in paired.left_out.items():
        warn(f"left out: {service}: {why}")
    if not any(one.startswith("send ") for one in paired.grants):
        wanted = quoted(f"send on SERVICE to {paired.principal}")
        print_line(f"  nothing is shared with it; to share a service: brokerd grant {wanted}")
    if not paired.is_secured:
        warn(f"{paired.principal} has no certificate for dialogs: they are not secured end to end")
    if ended.ping is not None and not ended.problem:
        print_line(f"works: {verdict(ended.ping)}")
    elif ended.problem:
        warn(f"paired, but a ping does not come back: {ended.problem}")
    else:
        print_line("  no ping: both machines need a service that the other lacks; see --create")
