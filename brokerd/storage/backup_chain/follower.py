"""Follower: adds to a backup chain what has changed in the stores of an instance (REL-46, REL-47).

Reads:  the stores, as `snapshots` does.      Calls: the file system.
Never:  writes to a store or its directory, or gives a piece a manifest before all of it is synced.
Fails:  a failed round leaves the chain as it was, and can be repeated.
"""

import fcntl
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from brokerd.clock import Clock, as_datetime
from brokerd.errors import BackupFailed
from brokerd.ids import IdSource, show
from brokerd.model import MSDB
from brokerd.storage.backup_chain.chain_files import (
    LAST_LOOK,
    LOCK,
    PAGE_HEADER,
    DamagedPiece,
    LastLook,
    Progress,
    check_pages,
    hashes_after,
    image_of,
    names,
    no_progress,
    read_generation,
    resized,
)
from brokerd.storage.backup_chain.manifests import (
    Manifest,
    Piece,
    StorePart,
    name_of_generation,
    name_of_manifest,
    name_of_pages,
    number_of,
    removable,
)
from brokerd.storage.backup_chain.snapshots import (
    DIGEST_SIZE,
    Held,
    Position,
    Snapshot,
    Unsettled,
    held_together,
    state_of,
)
from brokerd.storage.files.moved_files import file_at
from brokerd.storage.files.private_files import make_private_directory, sync

_UNFINISHED: Final = ".part"
_REMOVED: Final = ".removed"
_BUFFER: Final = 1 << 20
_SYNC_EVERY: Final = 16 << 20
"""Bytes after which a file is synced: one sync of a gibibyte would hold up those of the daemon."""


class Settings(NamedTuple):
    """The rules for generations."""

    keep: timedelta
    """How far back every state can be rebuilt."""
    full_every: timedelta
    """Time after which a change begins a new generation."""


class Added(NamedTuple):
    """The result of a round."""

    manifest: Manifest | None
    """The new piece; None = nothing had changed."""
    removed: tuple[str, ...] = ()
    """Generations that were removed."""


class _Known(NamedTuple):
    """The state that the newest piece has."""

    piece: Piece
    began_at: datetime
    """When the generation began."""
    hashes: Mapping[str, bytes]
    positions: Mapping[str, Position]
    looks: Mapping[str, bytes]


class Follower:
    """The writer of one chain; there is one at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
        progress: Progress = no_progress,
    ) -> None:
        """Open the chain in a directory, which is made if its parent is there.

        The newest generation is read and continued if it is whole; what a killed follower left
        unfinished is removed.

        Raises:
            BackupFailed: another follower writes to this directory.
            OSError: the directory cannot be used.
        """
        self._directory = directory
        self._settings = settings
        self._clock, self._ids, self._progress = clock, ids, progress
        if not directory.is_dir():
            directory.mkdir(mode=0o700)
        self._lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupFailed(
                    f"another follower writes to {directory}",
                    hint="give each follower a directory of its own, or stop the other one",
                ) from None
            found = os.fstat(self._lock)
            self._place = found.st_dev, found.st_ino
            self.problem = ""
            """Why the newest generation is not continued; empty = it is, or there is none."""
            self._known = self._recover()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let another follower write to the directory; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def add(self, find_stores: Callable[[], Mapping[str, Path]]) -> Added:
        """Add what has changed in the stores; remove what is older than is kept.

        `find_stores`: returns the paths of the stores, by broker.

        Raises:
            BackupFailed: the directory was moved or unmounted, or SQLite cannot read a store.
            Unsettled: a store cannot be read now.
            StoreDamaged: a file is not a store, or its log lacks what was confirmed.
            OSError: a file cannot be read or written.
        """
        if file_at(self._directory / LOCK) != self._place:
            raise BackupFailed(
                f"{self._directory} is not the directory any more that it was",
                hint="mount it, or put it back; the follower goes on then",
            )
        stores = find_stores()
        names_ = sorted(stores, key=lambda name: (name != MSDB, name))
        # Both come before the snapshots: a change in between is seen again, never missed.
        looked_at = as_datetime(self._clock.utc())
        looks = {name: state_of(stores[name]) for name in names_}
        manifest = None
        if self._known is None or looks != self._known.looks:
            try:
                manifest = self._add_piece(names_, stores, looks, find_stores)
            except sqlite3.Error as error:
                raise BackupFailed(f"SQLite cannot read a store: {error}") from error
        if self._known is not None:
            newest = self._known.piece.manifest
            self._write_last_look(LastLook(looked_at, newest.generation, newest.number))
        return Added(manifest, tuple(self._remove_old()))

    def _add_piece(
        self,
        names_: Sequence[str],
        stores: Mapping[str, Path],
        looks: Mapping[str, bytes],
        find_stores: Callable[[], Mapping[str, Path]],
    ) -> Manifest | None:
        began_at = as_datetime(self._clock.utc())
        with held_together([stores[name] for name in names_]) as (held, is_one_moment):
            taken_at = as_datetime(self._clock.utc())
            if find_stores() != stores:  # `msdb` may know a broker already that is not here
                raise Unsettled("a broker was made or removed meanwhile")
            known = self._known
            if known is not None and began_at - known.began_at >= self._settings.full_every:
                known = None
            if known is None:
                generation, number, previous = self._next_generation(began_at), 0, ""
                place = self._directory / f".{generation}{_UNFINISHED}"
                make_private_directory(place)
                seed = int.from_bytes(self._ids.fresh()[:7])
            else:
                newest = known.piece.manifest
                generation, number, previous = newest.generation, newest.number + 1, ""
                place, previous, seed = (
                    self._directory / generation,
                    known.piece.sha256,
                    newest.seed,
                )
            round_ = _Round(place, number, seed, known, self._progress)
            try:
                for name, one in zip(names_, held, strict=True):
                    round_.add_store(name, one)
            except BaseException:
                if number == 0:
                    shutil.rmtree(place, ignore_errors=True)
                raise
        if known is not None and not round_.has_changed(known.piece.manifest):
            self._known = known._replace(looks=looks, positions=round_.positions)
            return None
        manifest = Manifest(
            generation=generation,
            number=number,
            began_at=began_at,
            taken_at=taken_at,
            is_one_moment=is_one_moment,
            seed=seed,
            previous=previous,
            stores=tuple(round_.parts),
        )
        content = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
        _write_whole(place / name_of_manifest(number), content)
        sync(place)
        if number == 0:
            place.rename(self._directory / generation)
            sync(self._directory)
        self._known = _Known(
            Piece(manifest, hashlib.sha256(content).hexdigest()),
            began_at if known is None else known.began_at,
            round_.hashes,
            round_.positions,
            looks,
        )
        return manifest

    def _next_generation(self, at: datetime) -> str:
        there = names(self._directory)
        return name_of_generation((number_of(there[-1]) or 0) + 1 if there else 1, at)

    def _recover(self) -> _Known | None:
        """Remove what is unfinished; return the newest state, None = a new generation begins."""
        for suffix in (_UNFINISHED, _REMOVED):
            for left in self._directory.glob(f".g*{suffix}"):
                shutil.rmtree(left)
        there = names(self._directory)
        if not there:
            return None
        generation = read_generation(self._directory, there[-1], with_hashes=False)
        if generation.problem:
            self.problem = generation.problem
            return None
        try:
            hashes = hashes_after(self._directory, generation, progress=self._progress)
        except DamagedPiece as error:
            self.problem = str(error)
            return None
        place = self._directory / there[-1]
        named = {part.file for piece in generation.pieces for part in piece.manifest.stores}
        for path in place.iterdir():
            if path.suffix == _UNFINISHED or (path.suffix == ".pages" and path.name not in named):
                path.unlink()
        first, last = generation.pieces[0].manifest, generation.pieces[-1]
        return _Known(last, first.began_at, hashes, {}, {})

    def _write_last_look(self, last: LastLook) -> None:
        aside = self._directory / f".{LAST_LOOK}{_UNFINISHED}"
        aside.write_bytes(msgspec.json.encode(last) + b"\n")
        aside.rename(self._directory / LAST_LOOK)

    def _remove_old(self) -> Iterator[str]:
        """Remove the generations that nothing needs any more (REL-51)."""
        there = names(self._directory)
        if len(there) < 2:  # noqa: PLR2004  # the newest one always stays
            return
        now = as_datetime(self._clock.utc())
        fulls = [(name, self._full_at(name)) for name in there]
        for name in removable(fulls, now=now, keep=self._settings.keep):
            aside = self._directory / f".{name}{_REMOVED}"
            (self._directory / name).rename(aside)
            shutil.rmtree(aside)
            yield name

    def _full_at(self, name: str) -> datetime | None:
        """Return when the full copy of a generation was taken; None = it is not whole."""
        place = self._directory / name
        with suppress(OSError, msgspec.DecodeError, DamagedPiece):
            content = (place / name_of_manifest(0)).read_bytes()
            manifest = msgspec.json.decode(content, type=Manifest)
            for part in manifest.stores:
                check_pages(place, part, with_hashes=False)
            return manifest.taken_at
        return None


class _Round:
    """One piece in the making; the chain does not have it before its manifest is there."""

    def __init__(
        self, place: Path, number: int, seed: int, known: _Known | None, progress: Progress
    ) -> None:
        self._place, self._number, self._seed = place, number, seed
        self._known, self._progress = known, progress
        self.parts: list[StorePart] = []
        self.hashes: dict[str, bytes] = {}
        self.positions: dict[str, Position] = {}

    def add_store(self, broker: str, held: Held) -> None:
        """Write the changed pages of a store, then let go of its snapshot."""
        snapshot = held.snapshot
        before, since = b"", None
        if self._known is not None and self._page_size_of(broker) == snapshot.page_size:
            before = self._known.hashes[broker]
            since = self._known.positions.get(broker)
        hashes = resized(before, snapshot.pages)
        name = name_of_pages(self._number, broker)
        pages = self._hashed(broker, snapshot, before, since, hashes)
        written = _write_pages(self._place / name, pages)
        held.end()
        facts = snapshot.facts
        self.hashes[broker] = bytes(hashes)
        self.positions[broker] = snapshot.position
        self.parts.append(
            StorePart(
                broker=broker,
                broker_id=show(facts.broker_id),
                incarnation=show(facts.incarnation),
                epoch=facts.epoch,
                page_size=snapshot.page_size,
                pages=snapshot.pages,
                changed=written.size // (PAGE_HEADER.size + snapshot.page_size),
                image=image_of(hashes),
                file=name if written.size else "",
                size=written.size,
                sha256=written.sha256 if written.size else "",
            )
        )

    def _hashed(
        self,
        broker: str,
        snapshot: Snapshot,
        before: bytes,
        since: Position | None,
        hashes: bytearray,
    ) -> Iterator[bytes]:
        """Yield the changed pages as they are written, and note their hashes."""
        size = snapshot.page_size
        for number, page, digest in snapshot.changed(before, seed=self._seed, since=since):
            at = (number - 1) * DIGEST_SIZE
            hashes[at : at + DIGEST_SIZE] = digest
            yield PAGE_HEADER.pack(number) + page
            self._progress(broker, number * size, snapshot.pages * size)

    def _page_size_of(self, broker: str) -> int:
        """Return the size of the pages of a store in the newest piece; 0 = it is not in that."""
        newest = self._known.piece.manifest.stores if self._known is not None else ()
        return next((one.page_size for one in newest if one.broker == broker), 0)

    def has_changed(self, newest: Manifest) -> bool:
        """Return whether any store is another than in the newest piece."""
        return [(one.broker, one.image, one.pages) for one in self.parts] != [
            (one.broker, one.image, one.pages) for one in newest.stores
        ]


class _Written(NamedTuple):
    size: int
    sha256: str


def _write_pages(path: Path, pages: Iterable[bytes]) -> _Written:
    """Write a file with pages durably, and only then give it its name; no pages make no file."""
    aside = Path(f"{path}{_UNFINISHED}")
    file = -1
    buffer = bytearray()
    hashed = hashlib.sha256()
    size = unsynced = 0
    try:
        for page in pages:
            buffer += page
            if len(buffer) < _BUFFER:
                continue
            file = file if file >= 0 else _create(aside)
            hashed.update(buffer)
            _write_all(file, buffer)
            size += len(buffer)
            unsynced += len(buffer)
            buffer.clear()
            if unsynced >= _SYNC_EVERY:
                os.fsync(file)
                unsynced = 0
        if buffer:
            file = file if file >= 0 else _create(aside)
            hashed.update(buffer)
            _write_all(file, buffer)
            size += len(buffer)
        if file >= 0:
            os.fsync(file)
            aside.rename(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    finally:
        if file >= 0:
            os.close(file)
    return _Written(size, hashed.hexdigest())


def _write_whole(path: Path, content: bytes) -> None:
    """Write a small file durably, and only then give it its name."""
    aside = Path(f"{path}{_UNFINISHED}")
    file = _create(aside)
    try:
        _write_all(file, content)
        os.fsync(file)
    finally:
        os.close(file)
    aside.rename(path)


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def _write_all(file: int, content: bytes | bytearray) -> None:
    with memoryview(content) as rest:
        at = 0
        while at < len(rest):
            at += os.write(file, rest[at:])
