"""Report: what a run did and found, as a table, as text and as JSON."""

from collections.abc import Sequence

import msgspec

from tests.chaos.schedule import Form


class Report(msgspec.Struct, kw_only=True):
    """One run."""

    form: Form
    seed: int
    folder: str
    """Where its files are, or were."""
    problems: list[str] = []
    seconds: float = 0.0
    dialogs: int = 0
    messages: int = 0
    replies: int = 0
    bytes: int = 0
    transactions: int = 0
    """Those in which something was sent or received."""
    faults: dict[str, int] = {}
    resets: dict[str, int] = {}
    passed: dict[str, int] = {}
    """Bytes that crossed each way."""
    peaks: dict[str, int] = {}
    """Most bytes of memory of each daemon."""
    stores: dict[str, int] = {}
    """Bytes of each daemon's store at the end."""


def show_json(reports: Sequence[Report]) -> bytes:
    return msgspec.json.format(msgspec.json.encode({"runs": list(reports)})) + b"\n"


_HEAD = (
    "form",
    "seed",
    "minutes",
    "dialogs",
    "messages",
    "replies",
    "MiB",
    "faults",
    "resets",
    "MiB of memory",
    "MiB of stores",
    "found",
)


def show_table(reports: Sequence[Report]) -> str:
    rows = [_HEAD, *(_row(one) for one in reports)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _row(one: Report) -> tuple[str, ...]:
    return (
        one.form.value,
        str(one.seed),
        f"{one.seconds / 60:.1f}",
        str(one.dialogs),
        str(one.messages),
        str(one.replies),
        _mebibytes(one.bytes),
        str(sum(one.faults.values())),
        str(sum(one.resets.values())),
        "/".join(_mebibytes(size) for size in one.peaks.values()),
        "/".join(_mebibytes(size) for size in one.stores.values()),
        str(len(one.problems)) if one.problems else "clean",
    )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f}"
