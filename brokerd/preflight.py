"""Preflight: what would make a start fail is found before anything on disk changes.

Reads:  directories, stores, addresses, handlers.
Calls:  storage.files, transport.network, activation.handlers.
Never:  writes, creates or removes a file; what it lets pass is checked again where it is used.
Fails:  a `Refusal` that names the thing and the setting to change.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from brokerd.activation.handlers import handler_problems, import_from_here
from brokerd.errors import BrokerError, ConfigError, PortTaken, StoreMissing, UnsafeFile
from brokerd.ids import show
from brokerd.model import MSDB
from brokerd.objects import Declared
from brokerd.settings import Settings
from brokerd.storage.files import is_missing, look_at, look_for_known
from brokerd.storage.private_files import survey
from brokerd.transport.network import try_listening, unix_path


def look_ahead(settings: Settings, declared: Declared | None) -> None:
    """Refuse a start that cannot succeed.

    Raises:
        ConfigError: a directory cannot be used, or a handler cannot be imported (BI-C5).
        UnsafeFile: a file is a link, belongs to somebody else, or others may write to it (FD-11).
        StoreLocked, StoreDamaged, StoreVersion, StoreMissing: a store that is needed cannot be
            opened (REL-16, BI-D1, MAN-17).
        PortTaken: an address cannot be listened at.
    """
    problems = list(_directory_problems(settings))
    if problems:
        raise ConfigError(
            "\n".join(["files cannot be made where the settings say", *problems]),
            hint="change the setting, or the owner and mode of the directory",
        )
    _refuse_unsafe_files(settings, declared)
    _look_at_stores(settings, declared)
    for taken in listening_problems(settings):
        raise taken
    if declared is not None:
        look_at_handlers(declared)


def needed_stores(declared: Declared | None) -> set[str]:
    """The brokers without which an instance does not start."""
    return {MSDB, *(one.broker for one in declared.brokers)} if declared is not None else {MSDB}


def optional_stores(data_dir: Path, declared: Declared | None) -> list[Path]:
    """The stores without which an instance starts; their brokers are absent then (CLK-6)."""
    needed = needed_stores(declared)
    return sorted(path for path in data_dir.glob("*.db") if path.stem not in needed)


def _refuse_unsafe_files(settings: Settings, declared: Declared | None) -> None:
    """All at once. A store without which the instance starts keeps out its broker alone (CLK-6)."""
    data_dir = settings.instance.data_dir
    optional = tuple(str(path) for path in optional_stores(data_dir, declared))
    refused = [
        one
        for one in survey(settings.store_dirs, socket=settings.client_socket)
        if one.is_refused and not one.path.startswith(optional)
    ]
    if refused:
        lines = [f"{one.path} {one.problem}; {one.mend}" for one in refused]
        raise UnsafeFile(
            "\n".join(["files of the instance are not its alone (FD-11)", *lines]),
            hint="mend them as said; what is in such a file may not be what was written",
        )


def _look_at_stores(settings: Settings, declared: Declared | None) -> None:
    """Those that are shared with a partner are left alone: it may have them open (RTE-55)."""
    data_dir, shared = settings.instance.data_dir, settings.mirroring.brokers
    for name in shared:
        if (stray := data_dir / f"{name}.db").exists():
            raise ConfigError(
                f"broker {name} is shared with a partner, but {stray} is there as well",
                hint=f"move the file to {settings.mirroring.directory}, or away",
            )
    optional = optional_stores(data_dir, declared)
    for path in sorted(set(data_dir.glob("*.db")) - set(optional)):
        look_at(path)
    gone = missing_stores(settings)
    for name in sorted(gone.keys() & needed_stores(declared) - set(shared)):
        raise gone[name]
    refusals: list[BrokerError] = list(gone.values())
    for path in optional:
        try:
            look_at(path)
        except BrokerError as error:
            refusals.append(error)
    all_there_are = len(optional) + len(gone)
    if refusals and declared is None and len(refusals) == all_there_are and not shared:
        raise refusals[0]  # no broker would serve


def missing_stores(settings: Settings) -> dict[str, StoreMissing]:
    """The brokers that the instance has and whose files are not there (MAN-17)."""
    path_of = settings.store_path
    return {
        name: StoreMissing.of(name, path_of(name), show(broker_id))
        for name, broker_id in sorted(look_for_known(path_of(MSDB)).items())
        if is_missing(path_of(name))
    }


def listening_problems(settings: Settings) -> Iterator[PortTaken]:
    """What is wrong with the addresses to listen at: in use, or not of this machine (BI-C5)."""
    wanted = [(address, "endpoint.port or endpoint.listen") for address in settings.peer_addresses]
    for address, setting in [*wanted, (settings.client_address, "clients.listen")]:
        try:
            try_listening(address)
        except OSError as error:
            yield PortTaken(
                f"cannot listen at {address}: {error.strerror or error}",
                hint=f"stop the program that uses it, or change {setting}",
            )


def look_at_handlers(declared: Declared) -> None:
    """Import the handlers of all queues. `ConfigError` says what is wrong with each (BI-C5)."""
    import_from_here()
    problems = handler_problems(declared)
    if problems:
        raise ConfigError(
            "\n".join(["handlers cannot be used", *problems]),
            hint="they are looked for among the installed packages, on PYTHONPATH, and in this "
            "directory",
        )


def _directory_problems(settings: Settings) -> Iterator[str]:
    data_dir, socket = settings.instance.data_dir, unix_path(settings.client_address)
    wanted = [("instance.data_dir", data_dir), ("log.metrics_dir", settings.metrics_dir)]
    if settings.mirroring.brokers and (shared := settings.mirroring.directory) is not None:
        wanted.append(("mirroring.directory", shared))
    for setting, path in wanted:
        if problem := _problem(path):
            yield f"{setting}: {path}: {problem}"
    for setting, file in (("log.file", settings.log.file), ("clients.listen", socket)):
        folder = Path(file).absolute().parent if file else data_dir
        if folder == data_dir:
            continue
        if not folder.is_dir():
            yield f"{setting}: {folder}: there is no such directory"
        elif problem := _problem(folder):
            yield f"{setting}: {folder}: {problem}"


def _problem(path: Path) -> str:
    """Why no file can be made in a directory, which may not exist yet; "" if one can."""
    there = path
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    which = "it" if there == path else str(there)
    if not there.is_dir():
        return f"{which} is not a directory"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{which} cannot be written to by user {os.geteuid()}"
    return ""
