"""Connecting: opens a session for an address, with a daemon or on a file (SDK-14).

Reads:  the address.      Calls: client, app; for a file `instance.embedded`, imported only then.
Never:  decides what a session can do: sessions are the same with a daemon and on a file.
"""

import os
from functools import partial
from typing import Final, Unpack

from brokerd.app.session import Session
from brokerd.app.tracing import Tracing
from brokerd.client.connecting import Connecting, Options, open_session, refuse_unknown
from brokerd.errors import InvalidArgument

FILE: Final = "file:"
DEFAULT_BROKER: Final = "main"


def connect(
    address: str | None = None,
    *,
    broker: str | None = None,
    service: str | None = None,
    tracing: Tracing | None = None,
    **options: Unpack[Options],
) -> Connecting[Session]:
    """Connect to a broker: `await connect(...)` or `async with connect(...) as bk`.

    `address`: unix:/path or TCP://host:port of a daemon, by default BROKERD_ADDRESS, else
    unix:/run/brokerd/brokerd.sock (commands have another default: see docs/reference/files.md);
    several, separated by commas, if one of them has the stores and the others wait (REL-58); or
    file:path.db, which runs the broker of that file in this process, without a daemon.
    `broker`: the name of a broker of the daemon, by default BROKERD_BROKER or "main"; a file is one
    broker. `service`: the local service that begins the dialogs of `dialog` and `post`. `wait`:
    seconds for which the first connection is tried; `retry`: seconds for which each later
    connection is tried. `client_id`: 16 bytes, drawn if not given; no two sessions may use the same
    id at a time (CLP-13). `tls`: the files for an encrypted TCP connection, by default those that
    BROKERD_TLS_CERTIFICATE, BROKERD_TLS_KEY and BROKERD_TLS_SERVER name. `tracing`: makes spans of
    what the session sends, receives and handles; None = no spans. `pid`: the process id that the
    daemon shows for this client.

    Raises, when it is awaited or entered:
        DaemonUnreachable: no daemon answered for `wait` seconds.
        TooManyOpenFiles: this process or machine may open no further file for a connection.
        StoreLocked, StoreDamaged, StoreVersion: the file is in use, damaged, or of another version.
        InvalidArgument: the address or an option has the wrong form, or there is no such option.
        ObjectNotFound, BrokerUnavailable, AccessDenied: the daemon does not let this client in.
    """
    return Connecting(partial(_open, address, broker, service, tracing, **options))


def default_broker() -> str:
    """Return the name of the default broker of a program: BROKERD_BROKER, or `main`.

    Raises: nothing.
    """
    return os.environ.get("BROKERD_BROKER", DEFAULT_BROKER)


_DATABASES: Final = ("postgresql:", "postgres:")


async def _open(
    address: str | None,
    broker: str | None,
    service: str | None,
    tracing: Tracing | None,
    **options: Unpack[Options],
) -> Session:
    refuse_unknown(options, ("service", "tracing"))
    if address is not None and not isinstance(address, str):
        raise InvalidArgument(
            f"address is {address!r}, not a text",
            hint="unix:/path, TCP://host:port or file:path.db",
        )
    if address is not None and address.lower().startswith(_DATABASES):
        raise InvalidArgument(
            "the address is that of a database, and no program opens stores in one by itself",
            hint="run a daemon with it as store.url, and give the daemon's address here",
        )
    if address is not None and address.lower().startswith(FILE):
        session = await _open_file(address[len(FILE) :], broker, **options)
    else:
        session = await open_session(Session, address, broker or default_broker(), **options)
    session.service = service
    session.tracing = tracing
    return session


async def _open_file(path: str, broker: str | None, **options: Unpack[Options]) -> Session:
    try:
        from brokerd.instance.embedded import open_file  # noqa: PLC0415  # a client need not load it
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"file:{path}: this installation cannot run a broker inside a program: no {error.name}",
            hint="brokerd-client is for programs that connect to a daemon; for files, on Linux or "
            "another POSIX system: pip install brokerd",
        ) from error
    return await open_file(path, broker, **options)
