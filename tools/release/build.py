"""Build: the source archive and the wheels of a release, from one tree.

Reads:  the tree as git knows it.      Calls: hatchling, once for the sources and once a platform.
Never:  builds a wheel from the tree itself: each is made from the source archive, which so proves
        to be complete.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.lock import ROOT, lock_path
from tools.release import contents
from tools.release.client_part import client_of, rest_of
from tools.release.toolchains import Platform
from tools.release.wheel_files import Wheel

PLATFORM_VARIABLE = "BROKERD_WHEEL_PLATFORM"
"""Variable that tells tools/build_compiled.py for which platform it makes a wheel, or `any`."""
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "tools/setup.py")


class ReleaseError(Exception):
    """A release cannot be made; the text says why."""


def client_settings(root: Path = ROOT) -> dict[str, Any]:
    """Return what pyproject.toml says about the client."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    settings: dict[str, Any] = document["tool"]["brokerd"]["client"]
    return settings


def build(to: Path, platforms: Sequence[Platform], *, root: Path = ROOT, work: Path) -> list[Path]:
    """Build everything into `to`, and check it; return the paths.

    Raises:
        ReleaseError: something cannot be built, or is not fit to be published.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    to.mkdir(parents=True, exist_ok=True)
    sources = _hatch(root, work, "sdist")
    with tarfile.open(sources) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    settings = client_settings(unpacked)
    faults = list(contents.faults_of_sources(sources, NEEDED))
    made = [Path(shutil.copy(sources, to))]
    client: Wheel | None = None
    for platform in (None, *platforms):
        whole = Wheel.read(_hatch(unpacked, work / "whole", "wheel", platform))
        if platform is not None and platform.patchelf:
            _name_musl(whole, platform, work)
        if client is None:
            client = client_of(whole, settings)
            faults += contents.faults_of_wheel(client)
            made.append(client.write(to))
        rest = rest_of(whole, client)
        faults += contents.faults_of_wheel(rest)
        faults += contents.faults_of_pair(client, rest)
        made.append(rest.write(to))
    if faults:
        raise ReleaseError("\n".join(faults))
    return made


def _hatch(root: Path, to: Path, kind: str, platform: Platform | None = None) -> Path:
    """Build one file with hatchling; return its path."""
    shutil.rmtree(to / kind, ignore_errors=True)
    environ = os.environ | {PLATFORM_VARIABLE: "any"}
    if platform is not None:
        cache = to / "zig-cache"
        environ |= {PLATFORM_VARIABLE: platform.tag, "CC": platform.compiler}
        environ |= dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(cache))
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(to / kind)]
    done = subprocess.run(
        command, cwd=root, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        what = kind if platform is None else f"{kind} for {platform.tag}"
        raise ReleaseError(f"{what} cannot be built:\n{done.stdout}{done.stderr}")
    (made,) = (to / kind).iterdir()
    return made


def _name_musl(wheel: Wheel, platform: Platform, work: Path) -> None:
    """Have the compiled part require musl by the name that distributions give it.

    Zig calls it libc.so, which musl understands everywhere; auditwheel wants the other name.
    """
    file = work / "patched.so"
    for path in (one for one in wheel.files if one.endswith(".so")):
        file.write_bytes(wheel.files[path])
        soname = f"libc.musl-{platform.machine}.so.1"
        command = [platform.patchelf, "--replace-needed", "libc.so", soname, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ReleaseError(f"patchelf: {done.stderr}")
        wheel.files[path] = file.read_bytes()


def release_tools(to: Path) -> Path:
    """Install the locked release tools into an environment of their own; return its Python.

    Raises:
        ReleaseError: they cannot be installed.
    """
    python = to / "bin" / "python"
    lock = lock_path("release")
    stamp = to / "lock.txt"
    if stamp.is_file() and stamp.read_bytes() == lock.read_bytes():
        return python
    venv.create(to, clear=True, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    command += ["--require-hashes", "--no-deps", "-r", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"the release tools cannot be installed:\n{done.stderr}")
    shutil.copy(lock, stamp)
    return python
