"""The directory of a demo, newly made, with the settings and objects of both instances.

Reads:  the example configurations that brokerd ships.
Never:  empties a directory that was not made by a demo, or that another demo is using.
"""

import fcntl
import os
import re
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, Self

import msgspec

from brokerd.errors import Refusal
from brokerd.resources import config_dir

EAST: Final = "east"
WEST: Final = "west"
INSTANCES: Final = (EAST, WEST)

_MARK: Final = "demo.lock"
_LONGEST_SOCKET: Final = 100
"""Longest path of a socket, in bytes; operating systems allow 104 or 108."""
_PORTS: Final = (20_000, 32_000)
"""Range of ports below those that systems use for outgoing connections, so that no connection
occupies the port of an instance while it is down."""
_METRICS_INTERVAL: Final = "5s"


class DirectoryRefused(Refusal):
    """The directory cannot be used for a demo; its contents are unchanged."""

    code = "demo_directory"
    hint = "name another one with --dir; it may be new, empty, or that of an earlier demo"


class Site(msgspec.Struct, frozen=True):
    """One instance: its files, and the address for its clients."""

    name: str
    settings: Path
    objects: Path
    data: Path
    log: Path
    address: str


class Place:
    """The directory of one demo, locked until `close`."""

    def __init__(self, directory: Path, *, rng: Random) -> None:
        """Create the place: empty the directory and write both configurations.

        Raises:
            DirectoryRefused: the directory is in use, or was not made by a demo.
            OSError: a file cannot be removed or written, or no port is free.
        """
        self.directory = directory.absolute()
        self._lock = _taken(self.directory)
        self._sockets: Path | None = None
        try:
            _empty(self.directory)
            ports = dict(zip(INSTANCES, free_ports(len(INSTANCES), rng), strict=True))
            self.sites = {name: self._site(name, ports) for name in INSTANCES}
        except BaseException:
            self.close()
            raise

    @property
    def metrics(self) -> Path:
        """Directory of the metrics logs, with one directory for each instance."""
        return self.directory / "metrics"

    @property
    def report(self) -> Path:
        """Directory of the report."""
        return self.directory / "report"

    def __enter__(self) -> Self:
        """Return the place itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the place."""
        self.close()

    def close(self) -> None:
        """Unlock the directory for the next demo; keep its files, but remove sockets outside it."""
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)
        self._lock = -1

    def remove_stores(self) -> None:
        """Delete the stores, which only a failed demo keeps, as evidence."""
        for site in self.sites.values():
            shutil.rmtree(site.data, ignore_errors=True)

    def _site(self, name: str, ports: dict[str, int]) -> Site:
        data = self.directory / name
        listen = self._socket(data, name)
        config = self.directory / "config"
        config.mkdir(exist_ok=True)
        source = config_dir()
        settings = (source / f"{name}.toml").read_text(encoding="utf-8")
        for section, key, value in (
            ("instance", "data_dir", f"../{name}"),
            ("clients", "listen", listen),
            ("endpoint", "port", ports[name]),
            ("log", "metrics_dir", f"../metrics/{name}"),
            ("log", "metrics_interval", _METRICS_INTERVAL),
        ):
            settings = with_value(settings, section, key, value)
        objects = (source / f"{name}.objects.toml").read_text(encoding="utf-8")
        site = Site(
            name=name,
            settings=config / f"{name}.toml",
            objects=config / f"{name}.objects.toml",
            data=data,
            log=self.directory / f"{name}.log",
            address=listen,
        )
        site.settings.write_text(settings, encoding="utf-8")
        site.objects.write_text(objects, encoding="utf-8")
        return site

    def _socket(self, data: Path, name: str) -> str:
        """Return a path short enough for a socket, if necessary in a temporary directory."""
        path = data / "brokerd.sock"
        if len(os.fsencode(path)) > _LONGEST_SOCKET:
            if self._sockets is None:
                self._sockets = Path(tempfile.mkdtemp(prefix="brokerd-"))
            path = self._sockets / f"{name}.sock"
        return f"unix:{path}"


def with_value(text: str, section: str, key: str, value: str | int) -> str:
    """Return the TOML text with another value for one key, everything else unchanged.

    The first such key in a table of that name is replaced. Raises `ValueError` if there is none.
    """
    here = False
    lines = text.splitlines(keepends=True)
    written = f'"{value}"' if isinstance(value, str) else str(value)
    for number, line in enumerate(lines):
        if line.startswith("["):
            here = line.split("#")[0].strip().strip("[]").strip() == section
        elif here and (found := re.match(rf"({key}\s*=\s*)(\"[^\"]*\"|\S+)", line)):
            lines[number] = found[1] + written + line[found.end() :]
            return "".join(lines)
    raise ValueError(f"there is no {section}.{key} to replace")


def free_ports(count: int, rng: Random) -> list[int]:
    """Return different ports of the loopback on which no process listens at present."""
    found: list[int] = []
    for port in rng.sample(range(*_PORTS), 200):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no free port was found between {_PORTS[0]} and {_PORTS[1]}")


def _taken(directory: Path) -> int:
    """Lock the directory for this demo and return the descriptor of the lock file.

    The lock file also marks the directory as made by a demo. Raise `DirectoryRefused` if another
    demo has the lock, or if the directory has files but no mark.
    """
    mark = directory / _MARK
    if directory.exists() and not directory.is_dir():
        raise DirectoryRefused(f"{directory} is not a directory")
    if not mark.is_file() and directory.is_dir() and any(directory.iterdir()):
        raise DirectoryRefused(f"{directory} holds something that no demo has made")
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise DirectoryRefused(f"another demo is running in {directory}") from error
    return lock


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name == _MARK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
