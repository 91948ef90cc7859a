"""The locks: requirements/*.txt, made from pyproject.toml with a hash for every file.

Reads:  pyproject.toml, and the present locks (a pin stays until it must move).
Calls:  `uv pip compile`, only when asked to write.
Never:  writes an index address or a host into a lock, or installs anything.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INPUTS = "# inputs: "
HEADER = "# Made from pyproject.toml by `make lock`; not to be edited.\n"

_DEV = (
    "pyproject.toml",
    "--extra",
    "batch",
    "--extra",
    "schemas",
    "--extra",
    "ship",
    "--extra",
    "lake",
    "--extra",
    "dns",
    "--extra",
    "postgresql",
    "--group",
    "dev",
    "--group",
    "docs",
    "--group",
    "build",
)
# dev.txt comes first, because its versions constrain the others.
LOCKS: dict[str, tuple[str, ...]] = {
    "dev": _DEV,
    "fuzz": (*_DEV, "--group", "fuzz"),
    "batch": ("pyproject.toml", "--extra", "batch"),
    "run": ("pyproject.toml",),
    "build": ("--group", "build"),
    "release": ("--group", "release"),
}


def lock_path(name: str, root: Path = ROOT) -> Path:
    """Return the path of the lock of this name."""
    return root / "requirements" / f"{name}.txt"


def inputs_digest(root: Path = ROOT) -> str:
    """Return a hash of everything in pyproject.toml that determines the contents of the locks."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    decisive = [
        project["requires-python"],
        project["dependencies"],
        project.get("optional-dependencies", {}),
        document.get("dependency-groups", {}),
        {name: list(arguments) for name, arguments in LOCKS.items()},
    ]
    return "sha256:" + hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def stale_locks(root: Path = ROOT) -> list[str]:
    """Return a line for each lock that is missing, made from other inputs, or names a host."""
    expected = inputs_digest(root)
    problems = []
    for name in LOCKS:
        path = lock_path(name, root)
        label = path.relative_to(root)
        if not path.is_file():
            problems.append(f"{label} is missing")
            continue
        text = path.read_text(encoding="utf-8")
        if f"{INPUTS}{expected}\n" not in text:
            problems.append(f"{label} was made from another state of pyproject.toml")
        if "://" in text:
            problems.append(f"{label} names an address")
    return problems


def compile_locks(*, upgrade: bool) -> None:
    """Write every lock; exit if uv is missing.

    Raises:
        CalledProcessError: the resolver finds no solution.
    """
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        sys.exit("lock: uv is needed to make the locks; `make lock` installs it into .venv")
    digest = inputs_digest()
    (ROOT / "requirements").mkdir(exist_ok=True)
    for name, arguments in LOCKS.items():
        path = lock_path(name)
        print(f"lock: resolving {path.relative_to(ROOT)}", flush=True)
        command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
        command += ["--generate-hashes", "--no-emit-index-url", "--no-header"]
        command += ["--output-file", str(path.relative_to(ROOT)), *arguments]
        if name != "dev":
            command += ["--constraints", str(lock_path("dev").relative_to(ROOT))]
        if upgrade:
            command.append("--upgrade")
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        body = path.read_text(encoding="utf-8")
        path.write_text(f"{HEADER}{INPUTS}{digest}\n{body}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the locks, or with --check only report whether they fit pyproject.toml."""
    parser = argparse.ArgumentParser(prog="lock", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if one is stale")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions allowed")
    options = parser.parse_args(arguments)
    if not options.check:
        compile_locks(upgrade=options.upgrade)
    problems = stale_locks()
    for problem in problems:
        print(f"lock: {problem}; run `make lock`", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
