"""Connecting: opens a session for an address, with a daemon or on a file (SDK-14).

Reads:  the address.      Calls: client, app; for a file `instance.embedded`, imported only then.
Never:  decides what a session can do: sessions are the same whichever of the two answers.
"""

import os
from functools import partial
from typing import Final, Unpack

from brokerd.app.session import Session
from brokerd.client.connecting import Connecting, Options, open_session
from brokerd.errors import InvalidArgument

FILE: Final = "file:"
DEFAULT_BROKER: Final = "main"


def connect(
    address: str | None = None,
    *,
    broker: str | None = None,
    service: str | None = None,
    **options: Unpack[Options],
) -> Connecting[Session]:
    """Connect to a broker: `await connect(...)` or `async with connect(...) as bk`.

    `address`: unix:/path or tcp://host:port of a daemon, by default BROKERD_ADDRESS, else
    unix:/run/brokerd/brokerd.sock (not where commands look: see docs/reference/files.md); or
    file:path.db, which runs the broker of that file in this process, without a daemon.
    `broker`: which one of the daemon, by default BROKERD_BROKER or "main"; a file is one broker.
    `service`: in whose name `dialog` and `post` speak. `wait`: seconds for which the first
    connection is tried; `retry`: the same for each later one. `client_id` is drawn if it is not
    given; the same one must not be in use twice (CLP-13). `pid` is what the daemon shows of this
    process.

    Raises, when it is awaited or entered:
        DaemonUnreachable: nobody answered for `wait` seconds.
        TooManyOpenFiles: this process may open no file for a connection.
        StoreLocked, StoreDamaged, StoreVersion: the file is in use, damaged, or of another version.
        InvalidArgument: the address or an option has the wrong form.
        ObjectNotFound, BrokerUnavailable, AccessDenied: the daemon does not let this client in.
    """
    return Connecting(partial(_open, address, broker, service, **options))


def default_broker() -> str:
    """Return the broker a program is for unless it says another: BROKERD_BROKER, or `main`.

    Raises: nothing.
    """
    return os.environ.get("BROKERD_BROKER", DEFAULT_BROKER)


async def _open(
    address: str | None, broker: str | None, service: str | None, **options: Unpack[Options]
) -> Session:
    if address is not None and not isinstance(address, str):
        raise InvalidArgument(
            f"address is {address!r}, not a text",
            hint="unix:/path, tcp://host:port or file:path.db",
        )
    if address is not None and address.lower().startswith(FILE):
        from brokerd.instance.embedded import open_file  # noqa: PLC0415  # a client need not load the engine

        session = await open_file(address[len(FILE) :], broker, **options)
    else:
        session = await open_session(Session, address, broker or default_broker(), **options)
    session.service = service
    return session
