"""Where a demo takes place: a directory made anew, with the settings and objects of both instances.

Reads:  the example configurations that brokerd ships.
Never:  empties a directory that no demo has made, or one that a demo is using now.
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
"""Bytes; the operating systems stop at 104 or 108."""
_PORTS: Final = (20_000, 32_000)
"""Below the ports that systems give to outgoing connections: while an instance is down, nothing
else is given its port."""
_METRICS_INTERVAL: Final = "5s"


class DirectoryRefused(Refusal):
    """The directory cannot be used for a demo; nothing in it has been touched."""

    code = "demo_directory"
    hint = "name another one with --dir; it may be new, empty, or that of an earlier demo"


class Site(msgspec.Struct, frozen=True):
    """One instance: its files, and where its clients find it."""

    name: str
    settings: Path
    objects: Path
    data: Path
    log: Path
    address: str


class Place:
    """The directory of one demo; to be closed, so that another one may use it."""

    def __init__(self, directory: Path, *, rng: Random) -> None:
        """Make the directory empty and write both configurations. `DirectoryRefused`, `OSError`."""
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
        """The metrics logs of both instances, a directory each."""
        return self.directory / "metrics"

    @property
    def report(self) -> Path:
        """Where the report goes."""
        return self.directory / "report"

    def __enter__(self) -> Self:
        """The place itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let it go."""
        self.close()

    def close(self) -> None:
        """Let the next demo have the directory; what is in it stays."""
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)
        self._lock = -1

    def remove_stores(self) -> None:
        """Delete the stores, which only a failed demo is remembered by."""
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
        other = EAST if name == WEST else WEST
        objects = with_value(objects, "route", "address", f"TCP://127.0.0.1:{ports[other]}")
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
        """A path that fits into a socket's address, if need be in a short directory elsewhere."""
        path = data / "brokerd.sock"
        if len(os.fsencode(path)) > _LONGEST_SOCKET:
            if self._sockets is None:
                self._sockets = Path(tempfile.mkdtemp(prefix="brokerd-"))
            path = self._sockets / f"{name}.sock"
        return f"unix:{path}"


def with_value(text: str, section: str, key: str, value: str | int) -> str:
    """The TOML text with another value for one key, everything else as it was.

    The key is looked for in the first table of that name; `ValueError` if it is not there.
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
    """Ports of the loopback that nobody listens at just now, all different."""
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
    """The lock of the directory, which is also the mark of a demo's; `DirectoryRefused`."""
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
