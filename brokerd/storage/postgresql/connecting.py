"""Connecting: finds the server of a URL that takes changes, and opens a session there.

Reads:  nothing.      Calls: asyncpg.
Never:  connects to a standby, which may show an older state than was confirmed, or puts a password
        into a message.
Fails:  with `ServerError`, which names each server and why it was passed over.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import asyncpg

from brokerd.storage.postgresql.addresses import each_address, shown
from brokerd.storage.postgresql.errors import (
    DRIVER_ERRORS,
    FORMER,
    OTHER_SYSTEM,
    STANDBY,
    ServerError,
    server_error,
)
from brokerd.storage.postgresql.last_history import History

Session = Any
"""A connection of the driver, whose class has no types."""

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


_OTHERS: Final = 1.0
"""Seconds that the other servers have to answer after the first primary was found."""


class Primary(NamedTuple):
    """A server that takes changes, with a session there."""

    server: str
    """The address of the server, for messages."""
    session: Session
    history: History
    passed_over: tuple[str, ...]
    """Servers that take changes as well, and must not have them, each with the reason."""


class Rivals(NamedTuple):
    """The servers of a URL that take changes, and do not have the stores of this daemon."""

    former: tuple[str, ...]
    """Former primaries, and servers of other systems, each with the reason."""
    newer: tuple[str, ...]
    """Servers in a later history, each with that: what this daemon confirms is not there."""


async def connect(
    url: str,
    schema: str,
    *,
    settings: Mapping[str, str],
    patience: float,
    limit: float | None = None,
    history: History | None = None,
    last: History | None = None,
) -> Session:
    """Return a session in the schema of a store, at a server of the URL that can write.

    The server that was the primary last is tried first, then the others in their order.

    `settings`: more parameters of the session. `patience`: seconds until the attempt is given up
    with each server. `limit`: seconds until a statement without an answer is given up. `history`:
    the server and timeline that are wanted; None = any. `last`: the history that the daemon was in
    last; a server in an older one, or of another system, is passed over.
    `ServerError`: no server can be reached, or lets this user in, or is the primary.
    """
    given = _session_settings(schema, settings)
    errors: list[tuple[str, ServerError]] = []
    latest = _PRIMARIES.get(url)
    for one in sorted(_addresses(url), key=lambda address: address != latest):
        try:
            session, found = await _connect_to(one, given, patience, limit)
        except ServerError as error:
            errors.append((shown(one), error))
            continue
        reason = _reason_against(found, last)
        if reason is None and history not in (None, found):
            reason = ServerError(
                "it is not the server on which the store was opened", name="CONNECTION_LOST"
            )
        if reason is None:
            _PRIMARIES[url] = one
            return session
        session.terminate()
        errors.append((shown(one), reason))
    raise _joined(errors)


async def connect_to_newest(
    url: str, schema: str, *, settings: Mapping[str, str], patience: float, last: History | None
) -> Primary:
    """Return the server of the URL that takes changes, the newest one if several do (REL-59).

    All are asked at once. Once one takes changes the others have a second to say so as well.
    Arguments and errors as for `connect`.
    """
    given = _session_settings(schema, settings)
    errors: list[tuple[str, ServerError]] = []
    taking: list[_Taking] = []
    for address, answer in await _ask_all(_addresses(url), given, patience):
        if isinstance(answer, ServerError):
            errors.append((shown(address), answer))
        elif (reason := _reason_against(answer[1], last)) is not None:
            answer[0].terminate()
            errors.append((shown(address), reason))
        else:
            taking.append(_Taking(address, *answer))
    if not taking:
        raise _joined(errors)
    # Of several systems the first one counts, as if the others were not there.
    system = taking[0].history.system
    newest = max(
        (one for one in taking if one.history.system == system),
        key=lambda one: one.history.timeline,
    )
    passed = [
        f"{server}: {error}"
        for server, error in errors
        if error.sqlite_errorname in (FORMER, OTHER_SYSTEM)
    ]
    for one in taking:
        if one is not newest:
            one.session.terminate()
        if one.history.is_older_than(newest.history):
            passed.append(f"{shown(one.address)}: {_former(one.history, newest.history)}")
    _PRIMARIES[url] = newest.address
    return Primary(shown(newest.address), newest.session, newest.history, tuple(passed))


async def find_rivals(
    url: str, schema: str, *, settings: Mapping[str, str], patience: float, history: History
) -> Rivals:
    """Return the servers of the URL that take changes beside the one of a history (REL-87).

    Arguments as for `connect`, but `history`: that of the server where the daemon has its stores.
    """
    former: list[str] = []
    newer: list[str] = []
    addresses = _addresses(url)
    given = _session_settings(schema, settings)
    # The server of the stores is among them, so that no answer is waited for longer than a second.
    answers = await _ask_all(addresses, given, patience) if len(addresses) > 1 else []
    for address, answer in answers:
        if isinstance(answer, ServerError):
            continue
        answer[0].terminate()
        if (reason := _reason_against(answer[1], history)) is not None:
            former.append(f"{shown(address)}: {reason}")
        elif answer[1] != history:
            newer.append(f"{shown(address)} is {answer[1].show()}")
    return Rivals(tuple(former), tuple(newer))


class _Taking(NamedTuple):
    """A server that takes changes."""

    address: str
    session: Session
    history: History


async def _ask_all(
    addresses: Sequence[str], settings: dict[str, str], patience: float
) -> list[tuple[str, "ServerError | tuple[Session, History]"]]:
    """Return what each server has answered, within a second of the first that takes changes."""
    asked = [asyncio.ensure_future(_connect_to(one, settings, patience, None)) for one in addresses]
    waiting = set(asked)
    try:
        while waiting and not any(_takes_changes(one) for one in asked):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=_OTHERS)
    except BaseException:
        for one in asked:
            if _takes_changes(one):
                one.result()[0].terminate()
        raise
    finally:
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    found: list[tuple[str, ServerError | tuple[Session, History]]] = []
    for address, one in zip(addresses, asked, strict=True):
        if one.cancelled():
            found.append((address, ServerError("it has not answered", name="CONNECTION_LOST")))
        else:
            error = one.exception()
            if error is not None and not isinstance(error, ServerError):
                raise error
            found.append((address, one.result() if error is None else error))
    return found


def _takes_changes(asked: "asyncio.Task[tuple[Session, History]]") -> bool:
    return asked.done() and not asked.cancelled() and asked.exception() is None


def _reason_against(found: History, last: History | None) -> ServerError | None:
    """Return why a server that takes changes is passed over; None = it is not (REL-59, REL-60)."""
    if last is None:
        return None
    if found.is_older_than(last):
        return _former(found, last)
    if found.system != last.system:
        return ServerError(
            f"it is another database system: it is {found.show()}, and this daemon was in "
            f"{last.show()}",
            name=OTHER_SYSTEM,
        )
    return None


def _former(found: History, last: History) -> ServerError:
    there, known = (int(one.timeline, 16) for one in (found, last))
    return ServerError(
        f"it was the primary before: its timeline is {there}, and this daemon was in {known}",
        name=FORMER,
    )


def _addresses(url: str) -> list[str]:
    try:
        return each_address(url)
    except ValueError:
        raise _bad_url() from None


def _bad_url() -> ServerError:
    return ServerError(
        "the URL of the database cannot be read; special characters in its user and"
        " password are written as % and two digits",
        name="BAD_URL",
    )


def _joined(errors: list[tuple[str, ServerError]]) -> ServerError:
    """Return one error for those of all servers; it has the name of the most telling one."""
    worst = max((error for _, error in errors), key=_tells)
    if len(errors) == 1:
        return worst
    message = "; ".join(f"{server}: {error}" for server, error in errors)
    return ServerError(message, name=worst.sqlite_errorname, sqlstate=worst.sqlstate)


def _tells(error: ServerError) -> int:
    """Return how much an error tells: a server that does not answer tells least."""
    if error.sqlstate:
        return 2
    return {OTHER_SYSTEM: 4, FORMER: 3, STANDBY: 1}.get(error.sqlite_errorname, 0)


def _session_settings(schema: str, more: Mapping[str, str]) -> dict[str, str]:
    quoted = '"' + schema.replace('"', '""') + '"'
    return {**_SETTINGS, "search_path": quoted, **more}


async def _connect_to(
    url: str, settings: dict[str, str], patience: float, limit: float | None
) -> tuple[Session, History]:
    """Return a session at one server, and the history of the server.

    Raises:
        ServerError: it cannot be reached, lets this user not in, or takes no changes.
    """
    try:
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
            history = History(*await connection.fetchrow(HISTORY, timeout=patience))
            # A sum of numbers is a number of another type; all sums here are whole.
            await connection.set_type_codec(
                "numeric", schema="pg_catalog", encoder=str, decoder=int, format="text"
            )
        except BaseException:
            connection.terminate()
            raise
    except DRIVER_ERRORS as error:
        raise server_error(error) from error
    except ValueError:  # the driver's own message may quote a part of the password
        raise _bad_url() from None
    return connection, history


def _keep_alive(connection: "asyncpg.Connection[Any]") -> None:
    """Have the kernel end a connection on which the server has not answered for some seconds."""
    transport: asyncio.BaseTransport = connection._transport  # no public way
    found = transport.get_extra_info("socket")
    if found is not None and found.family != socket.AF_UNIX:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _ALIVE:
            if hasattr(socket, option):  # not on every system
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
