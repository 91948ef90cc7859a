"""Connecting: finds the server of a URL that takes changes, and opens a session there.

Reads:  nothing.      Calls: asyncpg.
Never:  connects to a standby, which may show an older state than was confirmed, or puts a password
        into a message.
Fails:  with `ServerError`, which names each server and why it was passed over.
"""

import asyncio
import socket
from collections.abc import Mapping
from typing import Any, Final

import asyncpg

from brokerd.storage.postgresql.addresses import each_address, shown
from brokerd.storage.postgresql.errors import DRIVER_ERRORS, ServerError, server_error

History = tuple[Any, ...]
"""A server and the timeline of its log (`HISTORY`)."""

_PRIMARIES: Final[dict[str, str]] = {}
"""The server at which each URL has found the primary last. It is tried first: a server that hangs
would cost each connection of a start its whole patience (REL-81)."""
_SETTINGS: Final = {
    # Each statement was made for an index; without statistics the planner might not use it.
    "enable_seqscan": "off",
    "jit": "off",
    "timezone": "UTC",
    # What a role or a database may have otherwise: a flush is not cut short, and an idle session
    # lives on.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed",
    # A commit that did not wait for a standby is only warned of (REL-53).
    "client_min_messages": "warning",
    # A daemon that is gone, or cut off, must lose its lock soon (REL-54).
    "tcp_keepalives_idle": "3",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "6000",
    "idle_in_transaction_session_timeout": "30000",
}
HISTORY: Final = (
    "SELECT (SELECT system_identifier::text FROM pg_control_system()),"
    # The name of a file of the log begins with its timeline.
    " substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
)
"""Statement for the server and the timeline, which a promoted standby does not share."""
_ALIVE: Final = (
    ("TCP_KEEPIDLE", 3),
    ("TCP_KEEPINTVL", 1),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 6000),
)
"""Options of the socket: a server that no longer answers is noticed as soon as this side is."""


async def connect(
    url: str,
    schema: str,
    *,
    settings: Mapping[str, str],
    patience: float,
    limit: float | None = None,
    history: History | None = None,
) -> "asyncpg.Connection[Any]":
    """Return a connection to the schema of a store, at a server of the URL that can write.

    The server that was the primary last is tried first, then the others in their order.


    `settings`: more parameters of the session. `patience`: seconds until the attempt is given up
    with each server. `limit`: seconds until a statement without an answer is given up. `history`:
    the server and timeline that are wanted; None = any.
    `ServerError`: no server can be reached, or lets this user in, or is the primary.
    """
    quoted = '"' + schema.replace('"', '""') + '"'
    given = {**_SETTINGS, "search_path": quoted, **settings}
    errors: list[tuple[str, ServerError]] = []
    try:
        latest = _PRIMARIES.get(url)
        for one in sorted(each_address(url), key=lambda address: address != latest):
            try:
                connection = await _connect_to(one, given, patience, limit, history)
            except DRIVER_ERRORS as error:
                errors.append((shown(one), server_error(error)))
            else:
                _PRIMARIES[url] = one
                return connection
    except ValueError:  # the driver's own message may quote a part of the password
        raise ServerError(
            "the URL of the database cannot be read; special characters in its user and"
            " password are written as % and two digits",
            name="BAD_URL",
        ) from None
    _, worst = next((each for each in errors if each[1].sqlstate), errors[-1])
    if len(errors) > 1:
        message = "; ".join(f"{server}: {error}" for server, error in errors)
        worst = ServerError(message, name=worst.sqlite_errorname, sqlstate=worst.sqlstate)
    raise worst


async def _connect_to(
    url: str,
    settings: dict[str, str],
    patience: float,
    limit: float | None,
    history: History | None,
) -> "asyncpg.Connection[Any]":
    connection = await asyncpg.connect(
        url,
        timeout=patience,
        command_timeout=limit,
        statement_cache_size=64,  # of the driver's own; `ServerConnection` keeps the others
        server_settings=settings,
        # Also for reads: a standby may show an older state than was confirmed.
        target_session_attrs="primary",
    )
    try:
        _keep_alive(connection)
        if history is not None:
            await _refuse_another(connection, history)
        # A sum of numbers is a number of another type; all sums here are whole.
        await connection.set_type_codec(
            "numeric", schema="pg_catalog", encoder=str, decoder=int, format="text"
        )
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _refuse_another(connection: "asyncpg.Connection[Any]", history: History) -> None:
    """Refuse a primary that failed and was started again: it has the store as it was before."""
    if tuple(await connection.fetchrow(HISTORY)) != history:
        raise asyncpg.InterfaceError("it is not the server on which the store was opened")


def _keep_alive(connection: "asyncpg.Connection[Any]") -> None:
    """Have the kernel end a connection on which the server has not answered for some seconds."""
    transport: asyncio.BaseTransport = connection._transport  # no public way
    found = transport.get_extra_info("socket")
    if found is not None and found.family != socket.AF_UNIX:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _ALIVE:
            if hasattr(socket, option):  # not on every system
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
