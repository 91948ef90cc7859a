"""Manifests of a backup chain: what a piece has, which state to rebuild, what to remove. PURE.

Reads:  manifests and times.      Calls: nothing.
Never:  reads a file or a clock.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

FORMAT: Final = 1
"""Version of the form of a chain."""


class StorePart(msgspec.Struct, frozen=True, kw_only=True):
    """One store in a piece: its identity, and the pages of it that the piece has."""

    broker: str
    broker_id: str
    incarnation: str
    epoch: int
    page_size: int
    pages: int
    """Number of pages of the store's file in this state."""
    changed: int
    """Number of pages in this piece."""
    image: str
    """Hash of the whole file in this state, made of the hashes of its pages."""
    file: str = ""
    """Name of the file with the pages; empty = no page has changed."""
    size: int = 0
    """Bytes of that file."""
    sha256: str = ""
    """Hash of that file."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a chain."""

    generation: str
    number: int
    """Place in the generation; 0 = the full copy with which it begins."""
    began_at: datetime
    """Whatever was confirmed before this moment is in the state."""
    taken_at: datetime
    """Whatever was confirmed after this moment is not in the state."""
    is_one_moment: bool
    """Whether no store changed between the moments at which the stores were read."""
    seed: int
    """Seed of the hashes of pages, the same for the whole generation."""
    previous: str
    """SHA-256 of the previous manifest of the generation; empty = this is the first one."""
    stores: tuple[StorePart, ...]
    format: int = FORMAT

    @property
    def size(self) -> int:
        """Bytes of the files of this piece."""
        return sum(one.size for one in self.stores)


class Piece(NamedTuple):
    """A manifest as it was found, and the SHA-256 of its file."""

    manifest: Manifest
    sha256: str


class Generation(NamedTuple):
    """The pieces of a generation that can be rebuilt, and the reason why the next one cannot."""

    name: str
    pieces: Sequence[Piece]
    problem: str = ""
    """The first missing or damaged piece; empty = the generation is whole."""
    is_partial_after: bool = False
    """Whether there are pieces after the problem, so that states are lost."""


def name_of_manifest(number: int) -> str:
    """Return the name of the manifest of a piece in its generation's directory."""
    return f"{number:08}.json"


def name_of_pages(number: int, broker: str) -> str:
    """Return the name of the file with the pages of one store."""
    return f"{number:08}-{broker}.pages"


def name_of_generation(number: int, at: datetime) -> str:
    """Return the name of a generation, which sorts in the order of their making."""
    return f"g{number:06}-{at:%Y%m%dT%H%M%SZ}"


def number_of(generation: str) -> int | None:
    """Return the number in the name of a generation; None = this is not such a name."""
    head, dash, _ = generation.partition("-")
    digits = head.removeprefix("g")
    return int(digits) if dash and head[:1] == "g" and digits.isdecimal() else None


def first_gap(found: Sequence[Piece]) -> tuple[int, str]:
    """Return how many of these manifests, in order, continue each other, and what is wrong then.

    The text is empty if nothing is wrong.
    """
    previous = ""
    for number, piece in enumerate(found):
        manifest = piece.manifest
        if manifest.number != number:
            return number, f"{name_of_manifest(number)} is missing"
        if manifest.previous != previous:
            return number, f"{name_of_manifest(number)} does not continue the piece before it"
        previous = piece.sha256
    return len(found), ""


def newest_until(
    generations: Sequence[Generation], at: datetime | None
) -> tuple[Generation, Piece] | None:
    """Return the newest state that has nothing confirmed after `at`; None = there is none.

    `at=None`: the newest state of all. Newer means later in the chain, whatever the clock did.
    """
    for generation in reversed(generations):
        for piece in reversed(generation.pieces):
            if at is None or piece.manifest.taken_at <= at:
                return generation, piece
    return None


def states_lost(
    generations: Sequence[Generation], chosen: Manifest, at: datetime | None
) -> Generation | None:
    """Return the generation of a broken piece that may hide a newer state than the chosen one.

    None: no state between the chosen one and `at` can be missing, because the pieces go on without
    a gap until after `at`, or to the end of the chain.
    """
    names = [one.name for one in generations]
    for generation in generations[names.index(chosen.generation) :]:
        if at is not None and any(one.manifest.taken_at > at for one in generation.pieces):
            return None
        if generation.problem:
            return generation
    return None


def removable(
    generations: Sequence[tuple[str, datetime | None]], *, now: datetime, keep: timedelta
) -> list[str]:
    """Return the generations that no state of the last `keep` needs (REL-51).

    `generations`: in order, each with the time of its full copy; None = that is not whole. All
    before the newest one that is whole and as old as `keep` are removable, and no other.
    """
    for at in range(len(generations) - 1, -1, -1):
        taken_at = generations[at][1]
        if taken_at is not None and taken_at <= now - keep:
            return [name for name, _ in generations[:at]]
    return []
