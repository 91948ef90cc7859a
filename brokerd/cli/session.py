"""The session of a command with a daemon: connect, run the command's requests, disconnect."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from brokerd.cli.options import daemon_address
from brokerd.cli.output import warn
from brokerd.client.session import Session, connect
from brokerd.errors import AccessDenied, BrokerUnavailable, DaemonUnreachable, ObjectNotFound
from brokerd.model import MSDB

_T = TypeVar("_T")
_RETRY = 5.0
"""Seconds for which a command tries to reach a daemon again."""
SERVING_RETRY: Final = 300.0
"""Seconds for which a command that serves tries to reach its daemon again."""


_MOMENT: Final = 1.0
_ABSENT: Final = (
    "start it with: brokerd serve -c FILE; or say where it is with --address, or with -c and its "
    "settings"
)
SILENT: Final = (
    "something listens there and says nothing: the daemon may be held up or stopped (its event "
    "log says so), or it is another program; try again, or restart it"
)


async def waited_for(connecting: Awaitable[_T], address: str, seconds: float) -> _T:
    """Return the result of connecting; print a line on standard error if that takes long."""
    text = f"waiting up to {seconds:g} s for a daemon at {address}"
    timer = asyncio.get_running_loop().call_later(_MOMENT, warn, text)
    try:
        return await connecting
    finally:
        timer.cancel()


def is_there(address: str) -> bool:
    """Return whether a program accepts connections at the socket."""
    if not address.startswith("unix:"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address.removeprefix("unix:"))
        except BlockingIOError:  # the socket's backlog of clients is full
            return True
        except OSError:
            return False
        return True


async def session_with(
    where: str, broker: str, *, retry: float, of_instance: bool = False, wait: float = 0.0
) -> Session:
    """Return a session on a broker, or on the only broker if the default does not exist.

    `of_instance`: the request is about the whole instance, so that `msdb`, which every instance
    has, is used if --broker is not given and the instance has several brokers, or the default is
    off. `wait`: seconds to wait for a daemon that is being started.

    Raises `ObjectNotFound`, which names the existing brokers, if there are several to choose from.
    """
    try:
        connecting = connect(where, broker=broker, wait=wait, retry=retry)
        return await (waited_for(connecting, where, wait) if wait else connecting)
    except (ObjectNotFound, BrokerUnavailable) as refused:
        if not _is_assumed():
            raise
        found = isinstance(refused, BrokerUnavailable)
        only = None if found else await _only_broker(where, retry)
        if only is None and not of_instance:
            raise
    return await connect(where, broker=only or MSDB, retry=retry)


def _is_assumed() -> bool:
    """Return whether the broker is the default of `--broker`."""
    context = click.get_current_context(silent=True)
    said = None if context is None else context.get_parameter_source("broker")
    return said is ParameterSource.DEFAULT


async def _only_broker(where: str, retry: float) -> str | None:
    """Return the only open broker besides `msdb`.

    None if there is none or more than one, or if the user lacks access."""
    async with connect(where, broker=MSDB, retry=retry) as session:
        try:
            rows = await session.view("brokers")
        except AccessDenied:
            return None
    names = [
        str(row["name"]) for row in rows if row["name"] != MSDB and not row.get("start_failure")
    ]
    return names[0] if len(names) == 1 else None


def ask(
    work: Callable[[Session], Awaitable[_T]],
    *,
    address: str | None,
    config: Path | None,
    broker: str,
    of_instance: bool = False,
    wait: float = 0.0,
) -> _T:
    """Run `work` with a session on one broker of the daemon; options as for `session_with`.

    Raises:
        DaemonUnreachable: no daemon answers at the address.
    """
    where = daemon_address(address, config)

    async def run() -> _T:
        try:
            session = await session_with(
                where, broker, retry=_RETRY, of_instance=of_instance, wait=wait
            )
        except DaemonUnreachable as error:
            raise DaemonUnreachable(
                error.message, hint=SILENT if is_there(where) else _ABSENT
            ) from error
        async with session:
            return await work(session)

    return asyncio.run(run())
