"""Sealed segments of the metrics log: compressed, a directory per day, each with a manifest (D12).

Reads:  a segment that is complete but still has the name of an open one.   Calls: the file system.
Never:  lets a reader see half a file, or trust a segment without its manifest: every file is
        written under another name and renamed, the manifest last, and only then is the open segment
        removed. Sealing again gives the same bytes, which repairs a seal that a crash interrupted.

The file is `<directory>/<day>/<instance>-<boot>-<first seq>.jsonl.gz`, its manifest has the same
name with `.manifest`. The day is the UTC date of the segment's first line, or the day that its
lines close (a line for each dialog that is still open is written just after midnight); a line
belongs to the day of its segment.
"""

import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from brokerd.clock import SECOND
from brokerd.telemetry.private import open_private

VERSION: Final = 1
"""The field `v` of a manifest."""
OPEN: Final = ".jsonl.open"
"""Suffix of an open segment, which only its writer may read."""
SEALED: Final = ".jsonl.gz"
MANIFEST: Final = ".manifest"

CHUNK: Final = 1024 * 1024
_LEVEL = 5
_GZIP = 16 + zlib.MAX_WBITS
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


class Facts(msgspec.Struct, kw_only=True):
    """The facts about a segment, kept up to date while it is written."""

    instance: str
    boot_id: str
    first_seq: int
    last_seq: int
    first_at: int
    last_at: int
    day: str
    """UTC day to which the segment belongs."""
    lines: dict[str, int]
    """Number of lines of each kind."""


class Manifest(Facts, kw_only=True):
    """The facts about a sealed segment, checked when it is shipped or read."""

    v: int
    segment: str
    """Name of the segment's file, in the directory of the manifest."""
    bytes: int
    """Size of the segment's file."""
    sha256: str
    """Hash of the segment's file."""


def day_of(at: int) -> str:
    """Return the UTC date of an instant in microseconds, such as 2026-11-18."""
    return datetime.fromtimestamp(at // SECOND, UTC).date().isoformat()


def seal(path: Path, facts: Facts) -> Manifest:
    """Compress the open segment `path` into its day's directory, with a manifest, and remove it.

    Raises:
        OSError: sealing failed; the open segment is unchanged, and may be sealed again.
    """
    # The order makes a crash at any point harmless: readers go by manifests, so the data has its
    # name before the manifest, and the open segment is removed only when both names are durable.
    name = path.name.removesuffix(OPEN)
    directory = path.parent / facts.day
    directory.mkdir(mode=0o700, exist_ok=True)
    aside = directory / f".{name}.part"
    with open_private(aside, "wb") as written, path.open("rb") as read:
        size, digest = _compress(read, written)
        _sync(written)
    aside.replace(directory / f"{name}{SEALED}")
    manifest = Manifest(
        v=VERSION,
        segment=f"{name}{SEALED}",
        bytes=size,
        sha256=digest,
        **msgspec.structs.asdict(facts),
    )
    with open_private(aside, "wb") as written:
        written.write(msgspec.json.encode(manifest) + b"\n")
        _sync(written)
    aside.replace(directory / f"{name}{MANIFEST}")
    sync_directory(directory)
    sync_directory(path.parent)
    path.unlink()
    return manifest


def manifests(directory: Path) -> Iterator[Path]:
    """Yield the manifests of the sealed segments below a directory, day by day."""
    for day in sorted(directory.iterdir()):
        if _DAY.fullmatch(day.name) and day.is_dir():
            yield from sorted(
                path for path in day.glob(f"*{MANIFEST}") if not path.name.startswith(".")
            )


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        ValueError: the file is not a manifest, or its name or day differs from the content.
        OSError: the file cannot be read.
    """
    manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    beside = path.name.removesuffix(MANIFEST) + SEALED
    if manifest.segment != beside or manifest.day != path.parent.name:
        raise ValueError(f"{path} is the manifest of {manifest.day}/{manifest.segment}")
    return manifest


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    with suppress(PermissionError):  # the directory may be written but not read
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _compress(read: BinaryIO, written: BinaryIO) -> tuple[int, str]:
    """Compress a stream; return the size and hash of the output.

    The gzip header has no time, so the bytes are always the same. Compressing and hashing release
    the interpreter lock, so other threads can run meanwhile."""
    packer, digest, size = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP), hashlib.sha256(), 0
    while chunk := read.read(CHUNK):
        packed = packer.compress(chunk)
        digest.update(packed)
        size += written.write(packed)
    packed = packer.flush()
    digest.update(packed)
    return size + written.write(packed), digest.hexdigest()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
