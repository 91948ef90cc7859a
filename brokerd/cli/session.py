"""The session of a command with a daemon: connect, run the command's requests, disconnect."""

import asyncio
import enum
import os
import pwd
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from brokerd.cli.options import daemon_address
from brokerd.cli.output import warn
from brokerd.client.connecting import START
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


class Absence(enum.Enum):
    """Why no daemon answers at an address."""

    STOPPED = enum.auto()
    """No program listens there."""
    SILENT = enum.auto()
    """Something accepts connections, and says nothing."""
    FORBIDDEN = enum.auto()
    """The socket, or a directory on the way to it, is not for this user."""


def cause(address: str) -> Absence:
    """Return why no daemon answers at an address, as far as the socket shows it."""
    if not address.startswith("unix:"):
        return Absence.STOPPED
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address.removeprefix("unix:"))
        except BlockingIOError:  # the socket's backlog of clients is full
            return Absence.SILENT
        except PermissionError:
            return Absence.FORBIDDEN
        except OSError:
            return Absence.STOPPED
        return Absence.SILENT


def explain(address: str, why: Absence, message: str) -> tuple[str, str]:
    """Return what is wrong, and what to do about it; `message`: the error of the client."""
    if why is not Absence.FORBIDDEN:
        return message, SILENT if why is Absence.SILENT else _ABSENT
    path = Path(address.removeprefix("unix:"))
    owner = next((one for one in map(_owner, (path, *path.parents)) if one is not None), None)
    me = _user_name(os.geteuid())
    text = f"user {me} may not use {path}"
    text += "" if owner is None else f", which belongs to {_user_name(owner)}"
    as_owner = (
        "the daemon's user" if owner is None else f"that user (sudo -u {_user_name(owner)} ...)"
    )
    return text, (
        f"run the command as {as_owner}; or give the socket a place that other users can reach "
        "(clients.listen), and grant them what they need: brokerd grant --help"
    )


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"#{user}"


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
            if error.hint != START:  # something answers there
                raise
            text, hint = explain(where, cause(where), error.message)
            raise DaemonUnreachable(text, hint=hint) from error
        async with session:
            return await work(session)

    return asyncio.run(run())
