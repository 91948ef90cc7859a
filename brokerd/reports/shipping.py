"""Shipping: copies sealed segments for the nightly report: at least once, never half a file.

Reads:  manifests and segments below a metrics directory.   Calls: the file system, or `fsspec`.
Never:  touches a segment that is still being written, or removes one before it has landed safely.
Fails:  `LandingRefused` if the landing cannot be written; a segment that does not match its
        manifest stays where it is and is named in the result.

A segment counts as landed once its manifest has landed. Both are written under temporary names and
renamed, the manifest last; so an interrupted shipment is resumed by repeating it, and shipping
twice changes nothing.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol, cast

import msgspec

from brokerd.errors import Refusal
from brokerd.telemetry.segments import CHUNK, Manifest, manifests, read_manifest, sync_directory
from brokerd.units import counted


class LandingRefused(Refusal):
    """Segments cannot be written to their landing."""

    code = "landing_refused"
    hint = "check that the path exists for this user, and that there is room; then ship again"


class Shipped(msgspec.Struct, kw_only=True):
    """The result of a shipment."""

    shipped: int = 0
    already: int = 0
    """Number of segments that had landed before this shipment."""
    removed: int = 0
    """Number of segments removed from the source after they had landed."""
    bytes: int = 0
    damaged: list[str] = []
    """Damaged segments, which stay in the source, each with the reason."""


class Landing(Protocol):
    """The destination of segments; names are relative paths with "/"."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        ...

    def write(self, name: str, source: BinaryIO) -> None:
        """Write all of a file or nothing; the file is durable on return."""
        ...


class LocalLanding:
    """A landing that is a directory of this machine, perhaps on a shared file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        try:
            return (self._directory / name).stat().st_size
        except FileNotFoundError:
            return None

    def write(self, name: str, source: BinaryIO) -> None:
        """Write a temporary file, over any left by an earlier attempt; sync and rename it."""
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with aside.open("wb") as target:
                while chunk := source.read(CHUNK):
                    target.write(chunk)
                target.flush()
                os.fsync(target.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        sync_directory(path.parent)


class FileSystem(Protocol):
    """The part of an `fsspec` file system that `RemoteLanding` uses."""

    def exists(self, path: str) -> bool: ...
    def cat_file(self, path: str) -> bytes: ...
    def size(self, path: str) -> int: ...
    def makedirs(self, path: str, exist_ok: bool) -> None: ...
    def open(self, path: str, mode: str) -> BinaryIO: ...
    def mv(self, path: str, to: str) -> None: ...


class RemoteLanding:
    """A landing in a file system that `fsspec` supports: s3, hdfs, sftp and so on."""

    def __init__(self, system: FileSystem, root: str) -> None:
        self._system = system
        self._root = root.rstrip("/")

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        path = f"{self._root}/{name}"
        return self._system.cat_file(path) if self._system.exists(path) else None

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        path = f"{self._root}/{name}"
        return self._system.size(path) if self._system.exists(path) else None

    def write(self, name: str, source: BinaryIO) -> None:
        """Write a temporary file, then move it."""
        path = PurePosixPath(f"{self._root}/{name}")
        aside = f"{path.parent}/.{path.name}.{os.getpid()}.part"
        self._system.makedirs(str(path.parent), exist_ok=True)
        with self._system.open(aside, "wb") as target:
            while chunk := source.read(CHUNK):
                target.write(chunk)
        self._system.mv(aside, str(path))


def landing_at(where: str) -> Landing:
    """Return the landing at a directory, or at a URL of `fsspec` such as s3://bucket/brokerd.

    Raises:
        LandingRefused: the package for such URLs is not installed, or such URLs are not supported.
    """
    if "://" not in where:
        return LocalLanding(Path(where))
    try:
        import fsspec  # noqa: PLC0415  # only installed for such landings
    except ImportError as error:
        raise LandingRefused(
            f"{where} needs the package fsspec (pip install 'brokerd[ship]', and what it needs for "
            f"{where.split('://', maxsplit=1)[0]})"
        ) from error
    try:
        system, root = fsspec.core.url_to_fs(where)
    except (ImportError, ValueError) as error:  # the error names the missing package
        raise LandingRefused(f"{where}: {error}") from error
    return RemoteLanding(cast("FileSystem", system), cast("str", root))


def ship(
    source: Path,
    landing: Landing,
    *,
    remove: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Shipped:
    """Copy every sealed segment below `source` to the landing, oldest day first.

    `remove`: delete segments from `source` once they have landed. `say`: called with the name of
    each copied segment.

    Raises:
        LandingRefused: the landing cannot be read or written, or `source` cannot be read.
    """
    done = Shipped()
    try:
        for path in list(manifests(source)):
            _ship_one(path, landing, done, remove=remove, say=say)
    except OSError as error:
        raise LandingRefused(f"after {counted(done.shipped, 'segment')}: {error}") from error
    return done


def _ship_one(
    path: Path, landing: Landing, done: Shipped, *, remove: bool, say: Callable[[str], None]
) -> None:
    try:
        manifest = read_manifest(path)
    except FileNotFoundError:
        return  # another shipment has removed it
    except ValueError as error:
        done.damaged.append(f"{path}: {error}")
        return
    name = f"{manifest.day}/{path.name}"
    beside = f"{manifest.day}/{manifest.segment}"
    segment = path.with_name(manifest.segment)
    written = path.read_bytes()
    if landing.read(name) == written and landing.size(beside) == manifest.bytes:
        done.already += 1
    else:
        reason = _damage(segment, manifest)
        if reason is not None:
            done.damaged.append(f"{segment}: {reason}")
            return
        with segment.open("rb") as opened:
            landing.write(beside, opened)
        with path.open("rb") as opened:
            landing.write(name, opened)
        done.shipped += 1
        done.bytes += manifest.bytes
        say(beside)
    if remove:
        path.unlink(missing_ok=True)
        segment.unlink(missing_ok=True)
        done.removed += 1


def _damage(segment: Path, manifest: Manifest) -> str | None:
    """Return why a segment does not match its manifest; None if it matches."""
    digest = hashlib.sha256()
    try:
        with segment.open("rb") as opened:
            while chunk := opened.read(CHUNK):
                digest.update(chunk)
    except FileNotFoundError:
        return "it is gone, but its manifest is here"
    return None if digest.hexdigest() == manifest.sha256 else "its hash is not its manifest's"
