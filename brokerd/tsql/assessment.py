"""Assessment: a verdict for each statement, with its line, as text, Markdown and JSON. PURE.

Reads:  entries that `declaring` and `verdicts` have made.      Calls: units.
Never:  leaves out a statement of the broker, or hides one that could not be read (IMP-5).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from brokerd.units import counted


class Verdict(StrEnum):
    """The fate of a statement."""

    MOVES = "moves"
    """In the files that the import writes, or with nothing to do."""
    HAND = "hand"
    """There is a counterpart, which somebody has to write or to choose."""
    NONE = "none"
    """There is no counterpart."""
    UNREAD = "unread"
    """Not read, although it begins as a statement of the broker."""


TITLES: Final = {
    Verdict.MOVES: "Moves",
    Verdict.HAND: "Needs a hand",
    Verdict.NONE: "Has no counterpart",
    Verdict.UNREAD: "Could not be read",
}


class Entry(Struct, kw_only=True):
    """The verdict for one statement; a later statement may add a note or make it worse."""

    path: str
    line: int
    column: int
    statement: str
    verdict: Verdict
    ours: str = ""
    """The counterpart."""
    note: str = ""
    """Things to know, or to do."""

    def needs(self, note: str, verdict: Verdict = Verdict.HAND) -> None:
        """Add a note, and make the verdict no better than this one."""
        if _RANK[verdict] > _RANK[self.verdict]:
            self.verdict = verdict
        self.add(note)

    def add(self, note: str) -> None:
        """Add a note, once."""
        if note not in self.note:
            self.note = f"{self.note}; {note}" if self.note else note


_RANK: Final = {Verdict.MOVES: 0, Verdict.HAND: 1, Verdict.NONE: 2, Verdict.UNREAD: 3}


class Assessment(Struct, kw_only=True):
    """All entries of an import, and remarks about the whole."""

    entries: list[Entry]
    remarks: list[str] = []
    files: int = 0
    batches: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of statements of each verdict."""
        found = Counter(entry.verdict for entry in self.entries)
        return {verdict.value: found[verdict] for verdict in Verdict}

    @property
    def summary(self) -> str:
        """The figures in one line."""
        counts = self.counts
        if not self.entries:
            return f"no statement of the broker in {counted(self.files, 'file')}: nothing to import"
        return (
            f"{counted(len(self.entries), 'statement')} of the broker in "
            f"{counted(self.files, 'file')}: {counts['moves']} move, {counts['hand']} need a hand, "
            f"{counts['none']} have no counterpart, {counts['unread']} could not be read"
        )


def lines(assessment: Assessment) -> Iterator[str]:
    """Yield the assessment as lines of text: by file and line, the remarks last."""
    path = None
    for entry in assessment.entries:
        if entry.path != path:
            path = entry.path
            yield f"{path}:"
        yield f"  {entry.line}:{entry.column}  {entry.verdict.value:6}  {entry.statement}"
        if entry.ours:
            yield f"      here: {entry.ours}"
        if entry.note:
            yield f"      note: {entry.note}"
    for remark in assessment.remarks:
        yield f"remark: {remark}"
    yield assessment.summary


def markdown(assessment: Assessment) -> str:
    """Return the assessment as a page: one table for each verdict, the most work first."""
    made = ["# Assessment", "", assessment.summary + ".", ""]
    if assessment.remarks:
        made += [*(f"- {_cell(one)}" for one in assessment.remarks), ""]
    for verdict in sorted(Verdict, key=lambda one: -_RANK[one]):
        found = [entry for entry in assessment.entries if entry.verdict is verdict]
        if not found:
            continue
        made += [f"## {TITLES[verdict]} ({len(found)})", ""]
        made += ["| Where | Statement | Here | Note |", "| --- | --- | --- | --- |"]
        made += [_row(entry) for entry in found]
        made.append("")
    return "\n".join(made)


def as_json(assessment: Assessment) -> dict[str, Any]:
    """Return the assessment as a value for `--json`."""
    return {
        "files": assessment.files,
        "batches": assessment.batches,
        "counts": assessment.counts,
        "remarks": assessment.remarks,
        "rows": assessment.entries,
    }


def _row(entry: Entry) -> str:
    where = f"{entry.path}:{entry.line}:{entry.column}"
    cells = (where, f"`{entry.statement}`", entry.ours, entry.note)
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def ordered(entries: Iterable[Entry], paths: list[str]) -> list[Entry]:
    """Return the entries by file, in the order of the files, and place."""
    rank = {path: number for number, path in enumerate(paths)}
    return sorted(entries, key=lambda one: (rank[one.path], one.line, one.column))
