"""History: a stream made of a bare git repository, one message for each file a commit touches.

    python -m tests.chaos.history GITDIR OUT [--commits N] [--first N] [--max-bytes SIZE]

Each path is a dialog. Every message has a line about its file, some have the file itself.

Reads:  git.      Calls: `stream.Writer`.      Never:  changes the repository.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from brokerd.units import parse_size
from tests.chaos.stream import Stream, Writer

_LARGEST: Final = 8 * 1024 * 1024
"""Bytes of a file; those of larger ones are left out."""


class _Touch(NamedTuple):
    """A file that a commit has touched."""

    commit: str
    path: bytes
    status: str
    blob: str


def stream_of_history(
    repository: Path, folder: Path, *, first: int, commits: int, most: int
) -> Stream:
    """Make a stream of a bare repository's history, oldest first.

    `most` bounds the bytes of all contents: every message has the line about its file, and as many
    have the file itself as there is room for, evenly spread. `subprocess.CalledProcessError` if git
    refuses."""
    touches = _touches(repository, first, commits)
    sizes = _sizes(repository, {one.blob for one in touches})
    whole = sum(min(sizes.get(one.blob, 0), _LARGEST) for one in touches)
    share = min(1.0, most / whole) if whole else 0.0
    rng, writer = Random(commits), Writer(folder)
    dialogs: dict[bytes, int] = {}
    with _Blobs(repository) as blobs:
        for touch in touches:
            has_file = sizes.get(touch.blob, _LARGEST + 1) <= _LARGEST and rng.random() < share
            line = {
                "commit": touch.commit,
                "path": touch.path.decode("utf-8", "backslashreplace"),
                "status": touch.status,
            }
            content = blobs.read(touch.blob) if has_file else b""
            dialog = dialogs.setdefault(touch.path, len(dialogs))
            writer.add(dialog, json.dumps(line).encode() + b"\n" + content)
    return writer.close(rng)


def _touches(repository: Path, first: int, commits: int) -> list[_Touch]:
    words = ["log", "--reverse", "--no-merges", "--raw", "--no-abbrev", "--no-renames", "-z"]
    told = _git(repository, *words, "--format=commit %H").split(b"\0")
    found: list[_Touch] = []
    commit, number, parts = "", -1, iter(told)
    for part in parts:
        line = part.lstrip(b"\n")
        if line.startswith(b"commit "):
            name, _, line = line.removeprefix(b"commit ").partition(b"\n")
            commit, line = name.decode("ascii").strip(), line.strip()
            number += 1
        if not line.startswith(b":"):
            continue
        _, mode, _, blob, status = line.decode("ascii").split(" ")
        path = next(parts)
        if first <= number < first + commits and mode != "160000":  # a submodule has no file
            found.append(_Touch(commit, path, status, blob))
    return found


def _sizes(repository: Path, blobs: set[str]) -> dict[str, int]:
    told = _git(
        repository,
        "cat-file",
        "--batch-check=%(objectname) %(objectsize)",
        given="\n".join(sorted(blobs)).encode(),
    )
    rows = [line.split() for line in told.decode("ascii").splitlines()]
    return {row[0]: int(row[1]) for row in rows if row[1].isdigit()}


class _Blobs:
    """Reads blobs, one after the other, from one process of git's."""

    def __init__(self, repository: Path) -> None:
        self._git = subprocess.Popen(
            ["git", "-C", str(repository), "cat-file", "--batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> "_Blobs":
        return self

    def __exit__(self, *_error: object) -> None:
        self._git.communicate()

    def read(self, blob: str) -> bytes:
        assert self._git.stdin is not None
        assert self._git.stdout is not None
        self._git.stdin.write(blob.encode() + b"\n")
        self._git.stdin.flush()
        size = int(self._git.stdout.readline().split()[2])
        return self._git.stdout.read(size + 1)[:size]


def _git(repository: Path, *words: str, given: bytes | None = None) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(repository), *words], input=given, stdout=subprocess.PIPE, check=True
    )
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.history",
        description="Make a stream of the history of a bare git repository.",
    )
    parser.add_argument("repository", type=Path, metavar="GITDIR")
    parser.add_argument("folder", type=Path, metavar="OUT", help="a directory for the stream")
    parser.add_argument("--first", type=int, default=0, help="leave so many commits out")
    parser.add_argument("--commits", type=int, default=sys.maxsize, help="take so many at most")
    parser.add_argument("--max-bytes", default="300MiB", help="of all contents (300MiB)")
    options = parser.parse_args()
    made = stream_of_history(
        options.repository,
        options.folder,
        first=options.first,
        commits=options.commits,
        most=parse_size(options.max_bytes),
    )
    lengths = sorted((one.messages for one in made.dialogs), reverse=True)
    sys.stdout.write(
        f"{options.folder}: {len(made)} messages of {len(made.dialogs)} dialogs, "
        f"{made.size / 2**20:.0f} MiB; the longest dialog has {lengths[0]}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
