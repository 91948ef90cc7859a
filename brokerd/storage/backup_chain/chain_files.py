"""Chain files: the pieces in the directory of a backup chain, found, checked and read (REL-48).

Reads:  manifests and files of pages.      Calls: the file system.
Never:  changes a file, or uses a piece whose hash is wrong.
Fails:  `DamagedPiece` names the file; lists name it without an error.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from xxhash import xxh3_128_digest, xxh3_128_hexdigest

from brokerd.storage.backup_chain.manifests import (
    FORMAT,
    Generation,
    Manifest,
    Piece,
    StorePart,
    first_gap,
    name_of_manifest,
    number_of,
)
from brokerd.storage.backup_chain.snapshots import DIGEST_SIZE

LAST_LOOK: Final = "last-look.json"
LOCK: Final = ".lock"
PAGE_HEADER: Final = struct.Struct(">I")
"""Number of the page that follows."""
_MANIFESTS: Final = "[0-9]" * 8 + ".json"
_BLOCK: Final = 1 << 20

Progress = Callable[[str, int, int], None]
"""Function that is told of long work: what is done, bytes done, bytes in all."""


def no_progress(_what: str, _done: int, _all: int) -> None:
    """Report nothing; the default."""


class LastLook(msgspec.Struct, frozen=True):
    """When a follower last found every store as the newest piece has it."""

    looked_at: datetime
    generation: str
    number: int


class DamagedPiece(Exception):  # a finding; callers make an error of it
    """Error for a file of a chain that is missing, or not as it was written."""


def names(directory: Path) -> list[str]:
    """Return the names of the generations in a directory, in the order of their making."""
    found = [(number_of(one.name), one.name) for one in directory.iterdir() if one.is_dir()]
    return [name for _, name in sorted((n, name) for n, name in found if n is not None)]


def read_last_look(directory: Path) -> LastLook | None:
    """Return the last look; None = there is none, or it was cut off."""
    try:
        return msgspec.json.decode((directory / LAST_LOOK).read_bytes(), type=LastLook)
    except (OSError, msgspec.DecodeError):
        return None


def read_chain(
    directory: Path, *, with_hashes: bool, progress: Progress = no_progress
) -> list[Generation]:
    """Return every generation with the pieces that can be used, and its first problem.

    `with_hashes`: read all files and compare their hashes, not only their sizes.
    """
    found = [
        read_generation(directory, name, with_hashes=with_hashes, progress=progress)
        for name in names(directory)
    ]
    last = read_last_look(directory)
    if last is None:
        return found
    newest = found[-1] if found else None
    if newest is None or last.generation > newest.name:
        lost = f"{last.generation} is missing: it was there at {last.looked_at:%FT%TZ}"
        return [*found, Generation(last.generation, (), lost, is_partial_after=True)]
    if last.generation == newest.name and not newest.problem and last.number >= len(newest.pieces):
        missing = f"{newest.name}/{name_of_manifest(len(newest.pieces))} is missing"
        found[-1] = newest._replace(problem=missing, is_partial_after=True)
    return found


def read_generation(
    directory: Path, name: str, *, with_hashes: bool, progress: Progress = no_progress
) -> Generation:
    """Return one generation with the pieces that can be used, and its first problem."""
    place = directory / name
    paths = sorted(place.glob(_MANIFESTS))
    if not paths:
        return Generation(name, (), f"{name}/{name_of_manifest(0)} is missing")
    pieces: list[Piece] = []
    problem = ""
    for path in paths:
        try:
            pieces.append(_read_manifest(path))
        except DamagedPiece as error:
            problem = f"{name}/{error}"
            break
    count, gap = first_gap(pieces)
    if gap:
        problem = f"{name}/{gap}"
    usable: list[Piece] = []
    for piece in pieces[:count]:
        try:
            for part in piece.manifest.stores:
                check_pages(place, part, with_hashes=with_hashes, progress=progress)
        except DamagedPiece as error:
            problem = f"{name}/{error}"
            break
        usable.append(piece)
    return Generation(name, usable, problem, is_partial_after=len(usable) < len(paths))


def _read_manifest(path: Path) -> Piece:
    try:
        content = path.read_bytes()
        manifest = msgspec.json.decode(content, type=Manifest)
    except OSError as error:
        raise DamagedPiece(f"{path.name} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise DamagedPiece(f"{path.name} is no manifest: {error}") from error
    if manifest.format != FORMAT or manifest.generation != path.parent.name:
        raise DamagedPiece(f"{path.name} belongs to another chain, or to another version")
    return Piece(manifest, hashlib.sha256(content).hexdigest())


def check_pages(
    place: Path, part: StorePart, *, with_hashes: bool, progress: Progress = no_progress
) -> None:
    """Raise `DamagedPiece` if the file with the pages of a store is missing or damaged."""
    if not part.file:
        return
    if with_hashes:
        for _ in read_pages(place, part, progress=progress):
            pass
        return
    try:
        size = (place / part.file).stat().st_size
    except OSError as error:
        raise DamagedPiece(f"{part.file} is missing: {error.strerror}") from error
    if size != part.size:
        raise DamagedPiece(f"{part.file} has {size} bytes, not {part.size}")


def read_pages(
    place: Path, part: StorePart, *, progress: Progress = no_progress
) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers and contents of the pages of a store in a piece.

    Raises:
        DamagedPiece: the file is missing, or its hash is wrong; some pages were yielded before.
    """
    if not part.file:
        return
    step = PAGE_HEADER.size + part.page_size
    hashed = hashlib.sha256()
    done = 0
    try:
        with (place / part.file).open("rb") as file:
            while data := file.read(max(1, _BLOCK // step) * step):
                hashed.update(data)
                done += len(data)
                progress(part.broker, done, part.size)
                for at in range(0, len(data) - step + 1, step):
                    (number,) = PAGE_HEADER.unpack_from(data, at)
                    if 0 < number <= part.pages:
                        yield number, data[at + PAGE_HEADER.size : at + step]
    except OSError as error:
        raise DamagedPiece(f"{part.file} cannot be read: {error.strerror}") from error
    if hashed.hexdigest() != part.sha256:
        raise DamagedPiece(f"{part.file} is not the file that was written: its hash is wrong")


def image_of(hashes: bytes | bytearray) -> str:
    """Return the hash of a whole store, made of the hashes of its pages."""
    return xxh3_128_hexdigest(hashes)


def resized(hashes: bytes, pages: int) -> bytearray:
    """Return the hashes of pages for a store that now has this number of pages."""
    size = pages * DIGEST_SIZE
    return bytearray(hashes[:size].ljust(size, b"\0"))


def hashes_after(
    directory: Path, generation: Generation, *, progress: Progress = no_progress
) -> dict[str, bytes]:
    """Return the hashes of the pages of each store after the last piece of a generation.

    Raises:
        DamagedPiece: a piece is not as it was written.
    """
    found: dict[str, bytes] = {}
    for piece in generation.pieces:
        manifest = piece.manifest
        now: dict[str, bytes] = {}
        for part in manifest.stores:
            hashes = resized(found.get(part.broker, b""), part.pages)
            for number, page in read_pages(directory / generation.name, part, progress=progress):
                at = (number - 1) * DIGEST_SIZE
                hashes[at : at + DIGEST_SIZE] = xxh3_128_digest(page, manifest.seed)
            now[part.broker] = bytes(hashes)
        found = now
    for part in generation.pieces[-1].manifest.stores:
        if image_of(found[part.broker]) != part.image:
            raise DamagedPiece(f"{part.broker} is not what was backed up: its hash is wrong")
    return found
