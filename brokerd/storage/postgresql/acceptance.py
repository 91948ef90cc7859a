"""Acceptance: an administrator lets the stores go on at another server, or in an older history.

Reads:  the note of the last history, the servers of the URL.      Calls: the server.
Never:  changes a store that a daemon has open, or is called by the daemon itself.
Fails:  at any moment, and can then be repeated: the note is written last.

Rows that were confirmed may be missing there. So each store is marked, and gets a new incarnation
when it is opened next (REL-60): peers compare what they know at the first contact of each dialog.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from brokerd.errors import StoreFault
from brokerd.model import MSDB
from brokerd.storage.postgresql import history, ownership
from brokerd.storage.postgresql.connecting import Primary, connect_to_newest
from brokerd.storage.postgresql.connection import ServerConnection, as_connection, in_thread
from brokerd.storage.postgresql.errors import ServerError
from brokerd.storage.postgresql.last_history import History, note_history
from brokerd.storage.postgresql.opening import ServerOptions
from brokerd.storage.postgresql.survey import exists, schema_of, unreachable
from brokerd.storage.rows import known_brokers

_SETTINGS: Final = {"application_name": "brokerd store accept-server"}


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The server of the stores, and what the data directory notes of it."""

    server: str
    """The address of the server."""
    found: History
    noted: History | None
    """None = nothing is noted."""
    brokers: tuple[str, ...]
    """The brokers whose stores are there, `msdb` among them."""

    @property
    def is_refused(self) -> bool:
        """Return whether a daemon passes the server over."""
        return self.noted is not None and (
            self.noted.system != self.found.system or self.found.is_older_than(self.noted)
        )

    def show(self) -> str:
        """Return what is noted and what is there, as text."""
        noted = "nothing" if self.noted is None else self.noted.show()
        stores = f"stores of {', '.join(self.brokers)}" if self.brokers else "no stores"
        return f"{self.server} is {self.found.show()}, with {stores}; {noted} is noted here"


_Work = Callable[[ServerConnection, Primary, ServerOptions], Difference]


def find_difference(url: str, options: ServerOptions) -> Difference:
    """Return what a daemon would find. Waits on another thread's loop.

    Raises:
        StoreFault: no server takes changes, or it failed meanwhile.
    """
    return _at_server(url, options, _compare)


def accept_server(url: str, options: ServerOptions) -> Difference:
    """Let the stores at the server be opened, in a new incarnation; return what was accepted.

    Raises:
        StoreLocked: a daemon has a store open.
        StoreFault: no server takes changes, it failed meanwhile, or nothing can be noted.
    """
    return _at_server(url, options, _accept)


def _at_server(url: str, options: ServerOptions, work: _Work) -> Difference:
    schema = schema_of(options, MSDB)
    try:
        primary = in_thread(
            connect_to_newest(
                url, schema, settings=_SETTINGS, patience=options.connect_timeout, last=None
            )
        )
    except ServerError as error:
        raise unreachable(error) from error
    server = ServerConnection(primary.session, in_thread)
    try:
        return work(server, primary, options)
    except ServerError as error:
        raise StoreFault(
            f"the server failed: {error}", hint="run the same command again"
        ) from error
    finally:
        server.close()


def _compare(server: ServerConnection, primary: Primary, options: ServerOptions) -> Difference:
    names: list[str] = []
    if exists(server, schema_of(options, MSDB)):
        known = {MSDB, *known_brokers.load(as_connection(server))}
        names = sorted(name for name in known if exists(server, schema_of(options, name)))
    return Difference(
        server=primary.server,
        found=primary.history,
        noted=options.last_history(),
        brokers=tuple(names),
    )


def _accept(server: ServerConnection, primary: Primary, options: ServerOptions) -> Difference:
    found = _compare(server, primary, options)
    schemas = [schema_of(options, name) for name in found.brokers]
    for schema in schemas:
        ownership.own(as_connection(server), schema, options.lock_wait)
    if schemas:
        server.execute_all([history.forget(schema) for schema in schemas])
    if options.history_file is not None:
        try:
            note_history(options.history_file, found.found)
        except OSError as error:
            raise StoreFault(
                f"the history of the server cannot be noted in {options.history_file}: "
                f"{error.strerror}",
                hint="run this as the user of the daemon",
            ) from error
    return found
