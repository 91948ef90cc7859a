"""Restoring: stores are rebuilt from a backup chain, as new histories of the same brokers (REL-49).

Reads:  a chain.      Calls: `chain_files`; `verifying`, before a store gets its name.
Never:  replaces a file, or writes to a directory whose daemon runs.
Fails:  without a store of this restore in place, or with `msdb` first, so that a start names what
        is missing.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from xxhash import xxh3_128_digest

from brokerd.clock import Clock
from brokerd.errors import BackupFailed, ObjectNotFound, RestoreFailed, UnsafeFile
from brokerd.ids import IdSource, Incarnation, show
from brokerd.model import MSDB
from brokerd.storage import file_checks, opening
from brokerd.storage.backup_chain.chain_files import (
    DamagedPiece,
    LastLook,
    Progress,
    image_of,
    no_progress,
    read_chain,
    read_last_look,
    read_pages,
)
from brokerd.storage.backup_chain.manifests import (
    Generation,
    Manifest,
    StorePart,
    newest_until,
    states_lost,
)
from brokerd.storage.connections import connect_without_record
from brokerd.storage.files.lock import OwnerLock
from brokerd.storage.files.log_head import index_path, log_path
from brokerd.storage.files.private_files import (
    make_private_directory,
    make_private_file,
    owner_of,
    sync,
)
from brokerd.storage.schema import REVISIONS, upgrade
from brokerd.storage.sqlite_errors import is_full
from brokerd.storage.verifying import refuse_damaged

_ASIDE: Final = ".brokerd-restore"
_READ: Final = 256
"""Number of pages that are read at a time."""


class RestoredStore(msgspec.Struct, frozen=True):
    """A store that was restored."""

    broker: str
    path: str
    size: int
    incarnation: str
    """The new incarnation (REL-15)."""
    former_incarnation: str
    """The incarnation in the backup."""


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore."""

    generation: str
    number: int
    began_at: datetime
    """Whatever was confirmed before this moment is there."""
    taken_at: datetime
    """Whatever was confirmed after this moment is not there."""
    is_one_moment: bool
    newest_at: datetime
    """When the newest state of the chain was taken."""
    last_look: LastLook | None
    """The last look of the follower, if it found the restored state; None = it found another."""
    stores: list[RestoredStore]


def restore(
    chain: Path,
    target: Path,
    *,
    at: datetime | None,
    brokers: Sequence[str],
    ids: IdSource,
    clock: Clock,
    progress: Progress = no_progress,
) -> Restored:
    """Rebuild the newest state that has nothing confirmed after `at`, in the directory `target`.

    `brokers`: the stores to rebuild; empty = all of the state.

    Raises:
        BackupFailed: the directory has no chain, or no state that old.
        ObjectNotFound: the state has no such broker.
        RestoreFailed: a piece is missing or damaged, a store is in the way, or there is no room.
        StoreLocked: a daemon has the target open.
        StoreDamaged, StoreVersion: the rebuilt store is not sound, or of a newer version.
        UnsafeFile: the target belongs to another user.
    """
    generations = read_chain(chain, with_hashes=False, progress=progress)
    generation, manifest = _choose(chain, generations, at)
    pieces = [one.manifest for one in generation.pieces[: manifest.number + 1]]
    parts = _parts(manifest, brokers)
    _refuse_owner(target)
    make_private_directory(target)
    with ExitStack() as stack:
        for name in dict.fromkeys((MSDB, *(one.broker for one in parts))):
            lock = OwnerLock(target / f"{name}.db", clock=clock)
            stack.callback(lock.release)
        for part in parts:
            _refuse_existing(target / f"{part.broker}.db")
        made: list[tuple[Path, Path, RestoredStore]] = []
        for part in parts:
            path = target / f"{part.broker}.db"
            aside = stack.enter_context(_aside(path))
            with _refusing(path):
                _rebuild(chain / generation.name, pieces, part, aside, progress)
                incarnation = Incarnation(ids.fresh())
                _begin_history(aside, part, incarnation)
                sync(aside)
            store = RestoredStore(
                part.broker,
                str(path),
                aside.stat().st_size,
                show(incarnation),
                part.incarnation,
            )
            made.append((aside, path, store))
        for aside, path, _ in made:
            with _refusing(path):
                os.link(aside, path)  # unlike a rename, a link replaces nothing
                aside.unlink()
                sync(target)
    newest = newest_until(generations, None)
    assert newest is not None
    look = read_last_look(chain)
    is_last = look is not None and (look.generation, look.number) == (
        manifest.generation,
        manifest.number,
    )
    return Restored(
        manifest.generation,
        manifest.number,
        manifest.began_at,
        manifest.taken_at,
        manifest.is_one_moment,
        newest[1].manifest.taken_at,
        look if is_last and at is None else None,
        [store for _, _, store in made],
    )


def _choose(
    chain: Path, generations: Sequence[Generation], at: datetime | None
) -> tuple[Generation, Manifest]:
    if not generations:
        raise BackupFailed(
            f"{chain} has no backup chain",
            hint="give the directory of brokerd store backup DIR --follow",
        )
    found = newest_until(generations, at)
    if found is None:
        oldest = next((one.pieces[0].manifest for one in generations if one.pieces), None)
        if oldest is None:
            problems = "; ".join(one.problem for one in generations)
            raise RestoreFailed(f"{chain} has no state that can be rebuilt: {problems}")
        raise BackupFailed(
            f"{chain} has no state of {_show(at)} or before",
            hint=f"the oldest state is of {_show(oldest.taken_at)}",
        )
    generation, piece = found
    lost = states_lost(generations, piece.manifest, at)
    if lost is not None and (at is None or at > piece.manifest.taken_at):
        # Nobody should get less than what was asked for without having said so.
        raise RestoreFailed(
            f"{lost.problem}: states after {_show(piece.manifest.taken_at)} cannot be rebuilt; "
            "nothing was restored",
            hint="put the file back; or restore the newest state before it: "
            f"--at {_show(piece.manifest.taken_at)}",
        )
    return generation, piece.manifest


def _show(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"


def _parts(manifest: Manifest, brokers: Sequence[str]) -> list[StorePart]:
    """Return the stores to rebuild, `msdb` first."""
    there = {one.broker: one for one in manifest.stores}
    for name in brokers:
        if name not in there:
            raise ObjectNotFound(
                f"the backup has no broker {name}", hint=f"it has: {', '.join(sorted(there))}"
            )
    chosen = brokers or list(there)
    return [there[name] for name in sorted(set(chosen), key=lambda name: (name != MSDB, name))]


def _refuse_owner(target: Path) -> None:
    owner = owner_of(target)
    if owner not in (None, os.geteuid()):
        raise UnsafeFile(
            f"{target} belongs to user {owner}, who could not use what user {os.geteuid()} makes",
            hint=f"run this as that user: sudo -u '#{owner}' brokerd store restore ...",
        )


def _refuse_existing(path: Path) -> None:
    for one in (path, log_path(path), index_path(path)):
        if one.exists() or one.is_symlink():
            raise RestoreFailed(
                f"{one} is there already; nothing was restored",
                hint=f"move {path} and {path}-* to another directory, or give an empty one",
            )


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """Make an empty file in the directory of a store; remove it, and its journals, at the end."""
    aside = path.with_name(f".{path.name}{_ASIDE}")
    left = (aside, log_path(aside), index_path(aside), Path(f"{aside}-journal"))
    for one in left:
        one.unlink(missing_ok=True)
    make_private_file(aside)
    try:
        yield aside
    finally:
        for one in left:
            one.unlink(missing_ok=True)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except DamagedPiece as error:
        raise RestoreFailed(
            f"{error}; nothing was restored",
            hint="brokerd store restore --list --verify DIR names every damaged piece; "
            "--at restores a state before it",
        ) from error
    except (OSError, sqlite3.Error) as error:
        if is_full(error):
            raise RestoreFailed(f"{path}: the disk has no room for it") from error
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise RestoreFailed(f"{path} cannot be written: {text}") from error


def _rebuild(
    place: Path, pieces: Sequence[Manifest], wanted: StorePart, aside: Path, progress: Progress
) -> None:
    """Write the file of a store as it was; its hash shows that no page is missing or wrong."""
    handle = os.open(aside, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = 0
        for piece in pieces:
            part = next((one for one in piece.stores if one.broker == wanted.broker), None)
            if part is None or part.page_size != size:
                os.ftruncate(handle, 0)  # the broker was not there, or its file was made anew
            if part is None:
                continue
            size = part.page_size
            for number, page in read_pages(place, part, progress=progress):
                os.pwrite(handle, page, (number - 1) * size)
            os.ftruncate(handle, part.pages * size)
        hashes = bytearray()
        for first in range(0, wanted.pages, _READ):
            data = os.pread(handle, _READ * size, first * size)
            for at in range(0, len(data), size):
                hashes += xxh3_128_digest(data[at : at + size], pieces[-1].seed)
    finally:
        os.close(handle)
    if image_of(hashes) != wanted.image:
        raise DamagedPiece(
            f"{wanted.broker} is not what was backed up: the hash of its file is wrong"
        )


def _begin_history(aside: Path, part: StorePart, incarnation: Incarnation) -> None:
    """Check the rebuilt store, and give it a new incarnation (REL-15), as a file without a log."""
    file_checks.check_header(aside)
    revision = file_checks.check_schema(aside, name=part.broker)
    with closing(connect_without_record(aside)) as connection:
        if revision != REVISIONS[-1]:
            upgrade(connection, aside)
        opening.change_facts(connection, {"incarnation": incarnation})
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    refuse_damaged(aside, name=f"the rebuilt store of broker {part.broker}")
