"""What is installed here: the programs of a PostgreSQL server, and as whom they run."""

import os
import pwd
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypedDict

OLDEST = 15
"""The oldest major version that brokerd keeps stores in."""


class NoServer(Exception):
    """There is no PostgreSQL server here that is new enough."""


class Owner(TypedDict, total=False):
    """Arguments with which `subprocess` starts a program as somebody else."""

    user: int
    group: int
    extra_groups: list[int]


@cache
def binaries() -> Path:
    """Return the folder of the newest server's programs.

    Raises:
        NoServer: There is none of version 15 or later, or none that may be run here.
    """
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda folder: int(folder.parent.name) if folder.parent.name.isdigit() else 0,
        reverse=True,
    )
    if (on_path := shutil.which("postgres")) is not None:
        folders.append(Path(on_path).parent)
    for folder in folders:
        if all((folder / name).exists() for name in ("postgres", "initdb", "pg_basebackup")):
            said = subprocess.run(
                [folder / "postgres", "--version"], capture_output=True, text=True, check=False
            ).stdout
            # "postgres (PostgreSQL) 15.18 (Debian …)", or "16beta1" for the number
            number = said.partition(") ")[2].split(".")[0][:2]
            if number.isdigit() and int(number) >= OLDEST:
                return folder
    raise NoServer(f"no PostgreSQL server of version {OLDEST} or later is installed here")


@cache
def owner() -> Owner:
    """Return as whom servers run: as whoever runs the tests, unless that is root.

    Raises:
        NoServer: Nobody here can run one.
    """
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise NoServer("a server does not run as root, and there is no user postgres or nobody here")


def give(folder: Path) -> None:
    """Let the owner of the servers have a folder."""
    if who := owner():
        os.chown(folder, who["user"], who["group"])


def environment() -> dict[str, str]:
    """Return what a server's programs need, and no variable that changes what they do."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
