"""Preflight: finds the reasons why a start would fail, before anything on disk changes.

Reads:  directories, stores, addresses, handlers.
Calls:  storage.file_checks, transport.network, activation.handlers.
Never:  writes, creates or removes a file; files it accepts are checked again where they are used.
Fails:  a `Refusal` that names the thing and the setting to change.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from brokerd.activation.handlers import handler_problems, import_from_here
from brokerd.config.database_url import shown
from brokerd.config.settings import Settings
from brokerd.errors import (
    BrokerError,
    ConfigError,
    InUse,
    NoMasterKey,
    PortTaken,
    StoreMissing,
    UnsafeFile,
)
from brokerd.ids import show
from brokerd.instance import store_engine
from brokerd.instance.store_engine import missing_store, survey_of
from brokerd.model import MSDB
from brokerd.objects.declared import Declared
from brokerd.storage.file_checks import (
    is_missing,
    is_moved,
    read_known_brokers,
    refusals_of,
    refuse_contracts_in_use,
)
from brokerd.storage.files.key_file import NAME as KEY_FILE
from brokerd.storage.files.lock import is_held, last_owner
from brokerd.storage.files.private_files import survey
from brokerd.transport.listeners import is_listener, listener_at
from brokerd.transport.network import try_listening, unix_path


class Start(NamedTuple):
    """A start to be checked."""

    settings: Settings
    declared: Declared | None
    user: int | None = None
    """Id of the user as whom the daemon would run; None = the user of this process."""


class StartCheck(NamedTuple):
    """One condition of a start."""

    about: str
    problems: Callable[[Start], Iterable[BrokerError]]
    """Function that yields the refusals of a start, each with the resulting exit status."""


def check_start(settings: Settings, declared: Declared | None, *, user: int | None = None) -> None:
    """Refuse a start that cannot succeed; `user` as in `Start`.

    Raises:
        ConfigError: a directory or a file cannot be used, or a handler cannot be imported (BI-C5).
        UnsafeFile: a file is a link, belongs to another user, or others may write to it (SX-24).
        StoreLocked, StoreDamaged, StoreVersion, StoreMissing: a store that is needed cannot be
            opened (REL-16, BI-D1, MAN-17).
        StoreFault: the server of the stores cannot be reached.
        NoMasterKey: this daemon would wait for stores whose keys it cannot use (REL-54).
        PostgresqlExtraMissing: the stores are on a server whose driver is not installed.
        PortTaken: listening on an address fails.
    """
    for problem in all_problems(Start(settings, declared, user)):
        raise problem


def all_problems(start: Start) -> Iterator[BrokerError]:
    """Yield every reason for refusing a start, in the order of the checks."""
    for check in START_CHECKS:
        yield from check.problems(start)


def first_broker(settings: Settings) -> Declared | None:
    """Return the broker to create if none exists: `main`, with no objects (SDK-15).

    None: a broker exists, or will come from the mirroring directory.

    Raises:
        Refusal: the stores are on a server that cannot be used.
        StoreFault: that server cannot be reached.
    """
    if settings.is_on_server:
        return None if survey_of(settings).brokers else Declared()
    there = any(settings.instance.data_dir.glob("*.db")) or settings.mirroring.brokers
    return None if there else Declared()


def _place_problems(start: Start) -> Iterator[ConfigError]:
    problems = list(_directory_problems(start.settings))
    if problems:
        yield ConfigError(
            "\n".join(["files cannot be made where the settings say", *problems]),
            hint="change the setting, or the owner and mode of the directory",
        )


def needed_stores(declared: Declared | None) -> set[str]:
    """Return the names of the brokers without which an instance does not start."""
    return {MSDB, *(one.broker for one in declared.brokers)} if declared is not None else {MSDB}


def optional_stores(data_dir: Path, declared: Declared | None) -> list[Path]:
    """Return the stores without which an instance starts; their brokers are then absent (CLK-6)."""
    needed = needed_stores(declared)
    return sorted(path for path in data_dir.glob("*.db") if path.stem not in needed)


def _unsafe_file_problems(start: Start) -> Iterator[UnsafeFile]:
    """Yield one error that names all unsafe files.

    A store without which the instance starts makes only its own broker absent, so it is not
    listed (CLK-6).
    """
    settings = start.settings
    stores = optional_stores(settings.instance.data_dir, start.declared)
    optional = tuple(str(path) for path in stores)
    refused = [
        one
        for one in survey(settings.store_dirs, socket=settings.client_socket, user=start.user)
        if one.is_refused and not one.path.startswith(optional)
    ]
    if refused:
        lines = [f"{one.path} {one.problem}; {one.mend}" for one in refused]
        yield UnsafeFile(
            "\n".join(["others can change files of this instance, or read keys (SX-24)", *lines]),
            hint="mend them as said; what is in such a file may not be what was written",
        )


def _stray_problems(start: Start) -> Iterator[ConfigError]:
    """Refuse files of shared brokers outside the shared directory (RTE-55).

    Files of stores are refused as well if the stores are on a server (REL-56): nobody would
    receive the messages in them.
    """
    settings = start.settings
    if settings.is_on_server:
        for stray in sorted(settings.instance.data_dir.glob("*.db")):
            if is_moved(stray):
                continue
            yield ConfigError(
                f"store.url says that the stores are in {shown(settings.store.url)}, but {stray} "
                "is there as well: its messages would be left",
                hint="move the stores with their dialogs: brokerd store copy -c FILE --to URL",
            )
    for name in settings.mirroring.brokers:
        if (stray := settings.instance.data_dir / f"{name}.db").exists():
            yield ConfigError(
                f"broker {name} is shared with a partner, but {stray} is there as well",
                hint=f"move the file to {settings.mirroring.directory}, or away",
            )


def _store_problems(start: Start) -> Iterator[BrokerError]:
    """Yield why needed stores cannot be opened, or why no broker would serve.

    Stores shared with a partner are not inspected, because it may have them open (RTE-55).
    """
    settings, declared = start.settings, start.declared
    if settings.is_on_server:
        yield from _server_problems(start)
        return
    data_dir, shared = settings.instance.data_dir, settings.mirroring.brokers
    optional = optional_stores(data_dir, declared)
    for path in sorted(set(data_dir.glob("*.db")) - set(optional) - _strays(settings)):
        refused = refusals_of(path, user=start.user)
        # unsafe files are reported by `_unsafe_file_problems`
        yield from (one for one in refused if not isinstance(one, UnsafeFile))
    try:
        gone = missing_stores(settings)
    except BrokerError:
        gone = {}  # msdb cannot be read, which the loop above reported
    needed = gone.keys() & needed_stores(declared) - set(shared)
    yield from (gone[name] for name in sorted(needed))
    refusals: list[BrokerError] = list(gone.values())
    failed = 0
    for path in optional:
        found = list(refusals_of(path, user=start.user))
        failed += bool(found)
        refusals += found
    all_there_are = len(optional) + len(gone)
    # An absent broker does not prevent a start (CLK-6), but with every broker absent the instance
    # would serve no client. A declaration makes or needs a broker, and a shared broker may come
    # from the partner.
    if refusals and declared is None and len(gone) + failed == all_there_are and not shared:
        yield refusals[0]  # no broker would serve


def _server_problems(start: Start) -> Iterator[BrokerError]:
    """Yield why the stores on a server cannot be opened, except that another daemon has them."""
    try:
        found = survey_of(start.settings)
    except BrokerError as error:
        yield error
        return
    key = start.settings.instance.data_dir / KEY_FILE
    if found.holder and not key.exists():
        yield NoMasterKey(
            f"the stores are open in {found.holder}, and {key} is not there: after a takeover "
            "this daemon could not use the private keys in them",
            hint="copy master.key from the data directory of that daemon, readable for this "
            "daemon's user alone",
        )
    needed = needed_stores(start.declared)
    for name in found.missing:
        if name in needed or found.brokers.keys() == set(found.missing):
            yield missing_store(start.settings, name, found.brokers[name])


def _strays(settings: Settings) -> set[Path]:
    return {settings.instance.data_dir / f"{name}.db" for name in settings.mirroring.brokers}


def missing_stores(settings: Settings) -> dict[str, StoreMissing]:
    """Return the brokers that the instance has and whose files do not exist (MAN-17)."""
    path_of = settings.store_path
    if settings.is_on_server:
        found = survey_of(settings)
        return {name: missing_store(settings, name, found.brokers[name]) for name in found.missing}
    return {
        name: StoreMissing.for_broker(name, path_of(name), show(broker_id))
        for name, broker_id in sorted(read_known_brokers(path_of(MSDB)).items())
        if is_missing(path_of(name))
    }


def listening_problems(settings: Settings) -> Iterator[PortTaken]:
    """Yield why listening on addresses fails: in use, or not of this machine (BI-C5)."""
    wanted = [(address, "endpoint") for address in settings.peer_addresses]
    wanted += [(address, "clients") for address in settings.client_addresses]
    if settings.http_address:
        wanted.append((settings.http_address, "http"))
    for address, section in wanted:
        try:
            try_listening(address)
        except OSError as error:
            also = "endpoint.port or " if section == "endpoint" else ""
            hint = f"stop the program that uses it, or change {also}{section}.listen"
            if error.errno == errno.EADDRNOTAVAIL:
                hint = f"this machine has no such address; change {section}.listen"
            problem = PortTaken(f"cannot listen at {address}: {error.strerror or error}", hint=hint)
            problem.in_use_at = address if error.errno == errno.EADDRINUSE else ""
            yield problem


def is_own_listener(settings: Settings, address: str) -> bool | None:
    """Return whether the process listening on `address` is the daemon of these settings.

    None: that cannot be determined, because no daemon on this machine has the store open. With
    stores on a server, the daemon is the process at the socket for clients while the server says
    that a daemon has the stores open (REL-84).
    """
    if settings.is_on_server:
        if not survey_of(settings).holder:
            return False
        pid = None if settings.client_socket is None else listener_at(str(settings.client_socket))
        return None if pid is None else is_listener(pid, address)
    path = settings.store_path(MSDB)
    owner = last_owner(path) if is_held(path) else None
    if owner is None or owner.host != socket.gethostname():
        return None
    return is_listener(owner.pid, address)


def check_handlers(declared: Declared) -> None:
    """Import the handlers of all queues; raise `ConfigError` with all problems (BI-C5)."""
    import_from_here()
    problems = handler_problems(declared)
    if problems:
        raise ConfigError(
            "\n".join(["handlers cannot be used", *problems]),
            hint="they are looked for among the installed packages, on PYTHONPATH, and in this "
            "directory",
        )


def _directory_problems(settings: Settings) -> Iterator[str]:
    data_dir = settings.instance.data_dir
    wanted = [("instance.data_dir", data_dir), ("log.metrics_dir", settings.metrics_dir)]
    if settings.mirroring.brokers and (shared := settings.mirroring.directory) is not None:
        wanted.append(("mirroring.directory", shared))
    for setting, path in wanted:
        if problem := _problem(path):
            yield f"{setting}: {path}: {problem}"
    if settings.log.file is not None and (problem := _file_problem(settings.log.file)):
        yield f"log.file: {settings.log.file}: {problem}"
    files = (
        ("log.file", settings.log.file),
        ("clients.listen", settings.client_socket),
        ("http.listen", unix_path(settings.http_address)),
    )
    for setting, file in files:
        folder = Path(file).absolute().parent if file else data_dir
        if folder == data_dir:
            continue
        if not folder.is_dir():
            yield f"{setting}: {folder}: there is no such directory"
        elif problem := _problem(folder):
            yield f"{setting}: {folder}: {problem}"


def _file_problem(path: Path) -> str:
    """Return why a file that exists cannot be appended to; "" if it can, or does not exist."""
    if not path.exists():
        return ""
    if path.is_dir():
        return "it is a directory"
    return "" if os.access(path, os.W_OK) else f"it cannot be written to by user {os.geteuid()}"


def _problem(path: Path) -> str:
    """Return why no file can be created in a directory, which may not exist yet; "" if one can."""
    there = path
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    which = "it" if there == path else str(there)
    if not there.is_dir():
        return f"{which} is not a directory"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{which} cannot be written to by user {os.geteuid()}"
    return ""


def _address_problems(start: Start) -> Iterator[PortTaken]:
    return listening_problems(start.settings)


def _handler_problems(start: Start) -> Iterator[ConfigError]:
    if start.declared is not None:
        try:
            check_handlers(start.declared)
        except ConfigError as error:
            yield error


def _object_problems(start: Start) -> Iterator[BrokerError]:
    """Yield the declared contracts that differ from the stored ones and are in use (OBJ-25).

    A start creates and alters declared objects and drops nothing, so only such contracts can
    prevent it.
    """
    settings = start.settings
    for one in start.declared.brokers if start.declared is not None else ():
        path = settings.store_path(one.broker)
        try:
            if settings.is_on_server:
                store_engine.refuse_contracts_in_use(settings, one.broker, one.contracts)
            elif one.broker not in settings.mirroring.brokers and path.exists():
                refuse_contracts_in_use(path, one.contracts)
        except InUse as error:
            about = f"broker {one.broker}: {error.message}"
            yield InUse(about, hint="let the dialogs end first, or give the contract a new name")
        except BrokerError:
            continue  # a problem of the store itself is reported by the check of stores


START_CHECKS: Final = (
    StartCheck("directories and the log file", _place_problems),
    StartCheck("owners and modes of files", _unsafe_file_problems),
    StartCheck("stores that are shared with a partner", _stray_problems),
    StartCheck("stores", _store_problems),
    StartCheck("objects against those in the stores", _object_problems),
    StartCheck("addresses to listen at", _address_problems),
    StartCheck("handlers", _handler_problems),
)
"""The checks of a start: `serve` stops at the first problem, and `config check` reports all.

Every check that may refuse a start belongs in this table.
"""
