"""Deb: the Debian package of brokerd, an environment in /opt/brokerd around the system's Python.

Reads:  deploy/, deploy/debian/, requirements/run.txt, the tree.
Calls:  pip, for the locked wheels; hatchling; dpkg-deb.
Never:  lets anything of the machine that it is made on into the package: the same tree gives the
        same bytes (MAN-26).

    python -m tools.package.deb --to dist
"""

import argparse
import gzip
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.lock import ROOT, lock_path
from tools.package.man_pages import pages, version

PLACE = "opt/brokerd"
WORK = ROOT / "build" / "deb"
_EPOCH = "1580601600"
"""The time of all files in the package, 2020-02-02: the same tree gives the same bytes."""
_MAINTAINER = "The brokerd developers <maintainers@brokerd.invalid>"
_SCRIPTS = ("postinst", "prerm", "postrm")
_CONFFILES = ("etc/brokerd/brokerd.toml", "etc/logrotate.d/brokerd")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_COMMAND = """#!/{place}/bin/python
import sys

from brokerd.__main__ import main

sys.exit(main())
"""
_TEXTS = {"bash": "bash-completion/completions/brokerd", "zsh": "zsh/vendor-completions/_brokerd"}
_TEXTS |= {"fish": "fish/vendor_completions.d/brokerd.fish"}


class DebError(Exception):
    """The package cannot be made; the text says why."""


def debian_version() -> str:
    """Return the version of the package: 1.0.0rc1 is 1.0.0~rc1-1, which is before 1.0.0-1."""
    return re.sub(r"(a|b|rc)(\d+)$", r"~\1\2", version()) + "-1"


def build(to: Path, *, python: Path, work: Path = WORK) -> Path:
    """Build the package for the Python interpreter of a system; return its path.

    Raises:
        DebError: a step failed.
    """
    number = debian_version()
    root = work / "root"
    shutil.rmtree(work, ignore_errors=True)
    root.mkdir(parents=True)
    to.mkdir(parents=True, exist_ok=True)
    _environment(root, python, work)
    _files_of_system(root, number)
    _control(root, python, number)
    _same_modes(root)
    architecture = _ARCHITECTURES[platform.machine()]
    path = to / f"brokerd_{number}_{architecture}.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z9", "--build", str(root), str(path)]
    run_step(command, environ={"SOURCE_DATE_EPOCH": _EPOCH})
    return path


def _environment(root: Path, python: Path, work: Path) -> None:
    """Lay out the environment: a link to the system's Python, and the locked packages."""
    place = root / PLACE
    short = f"python{_version_of(python)}"
    packages = place / "lib" / short / "site-packages"
    (place / "bin").mkdir(parents=True)
    packages.mkdir(parents=True)
    for name in ("python", "python3"):
        (place / "bin" / name).symlink_to(f"/usr/bin/{short}")
    (place / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {_version_of(python)}\n"
    )
    run_step([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(work / "wheel")])
    (wheel,) = (work / "wheel").glob("*.whl")
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
    pip += ["--no-compile", "--quiet", "--target", str(packages)]
    run_step([*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(lock_path("run"))])
    run_step([*pip, "--no-index", str(wheel)])
    shutil.rmtree(packages / "bin", ignore_errors=True)
    for one in packages.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            (one / name).unlink(missing_ok=True)  # they name paths of this machine, or pip
    # In a process of its own: what is compiled depends on the order of sets and on what was shared.
    compiling = [str(python), "-m", "compileall", "-q", "-s", str(root), "-p", "/"]
    compiling += ["--invalidation-mode", "unchecked-hash", str(packages)]
    run_step(compiling, environ={"PYTHONHASHSEED": "0"})
    (place / "bin" / "brokerd").write_text(_COMMAND.format(place=PLACE))


def _files_of_system(root: Path, number: str) -> None:
    """Put the files of the system into their places."""
    from brokerd.cli.completion import VARIABLE  # noqa: PLC0415  # only a package needs these
    from brokerd.cli.main import cli  # noqa: PLC0415

    deploy = ROOT / "deploy"
    document = "usr/share/doc/brokerd"
    for source, target in (
        (deploy / "brokerd.service", "usr/lib/systemd/system/brokerd.service"),
        (deploy / "brokerd.logrotate", "etc/logrotate.d/brokerd"),
        (deploy / "debian/brokerd.toml", "etc/brokerd/brokerd.toml"),
        (deploy / "debian/brokerd.sysusers", "usr/lib/sysusers.d/brokerd.conf"),
        (deploy / "debian/lintian-overrides", "usr/share/lintian/overrides/brokerd"),
        (deploy / "debian/copyright", f"{document}/copyright"),
    ):
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, root / target)
    _compress(root / document / "NEWS.gz", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    changes = f"brokerd ({number}) unstable; urgency=medium\n\n  * See NEWS.gz.\n\n"
    changes += f" -- {_MAINTAINER}  Sun, 02 Feb 2020 00:00:00 +0000\n"
    _compress(root / document / "changelog.Debian.gz", changes)
    for name, text in pages().items():
        _compress(root / "usr/share/man" / f"man{name[-1]}" / f"{name}.gz", text)
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    for shell, target in _TEXTS.items():
        kind = get_completion_class(shell)
        assert kind is not None
        path = root / "usr/share" / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(kind(cli, {}, "brokerd", VARIABLE).source(), encoding="utf-8")
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    (root / "usr/bin/brokerd").symlink_to(f"/{PLACE}/bin/brokerd")


def _control(root: Path, python: Path, number: str) -> None:
    """Write what dpkg has to know."""
    control = root / "DEBIAN"
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    control.mkdir()
    text = (ROOT / "deploy/debian/control").read_text(encoding="utf-8")
    words = {
        "VERSION": number,
        "ARCHITECTURE": _ARCHITECTURES[platform.machine()],
        "SIZE": str(size),
        "PYTHON": f"python{_version_of(python)}",
    }
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    (control / "control").write_text(text, encoding="utf-8")
    (control / "conffiles").write_text("".join(f"/{name}\n" for name in _CONFFILES))
    for name in _SCRIPTS:
        shutil.copyfile(ROOT / "deploy/debian" / name, control / name)


def _same_modes(root: Path) -> None:
    """Give all files modes that do not depend on the umask."""
    for path in root.rglob("*"):
        if path.is_symlink():
            continue
        is_program = path.parent.name in ("bin", "DEBIAN") and path.name in (*_SCRIPTS, "brokerd")
        path.chmod(0o755 if path.is_dir() or is_program else 0o644)
    for path in (root, root / PLACE):
        path.chmod(0o755)


def _compress(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _version_of(python: Path) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run_step(command: Sequence[str], *, environ: dict[str, str] | None = None) -> None:
    """Run a command.

    Raises:
        DebError: it failed.
    """
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | (environ or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DebError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the package."""
    parser = argparse.ArgumentParser(prog="make deb", description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", type=Path, default=Path("/usr/bin/python3"))
    options = parser.parse_args(arguments)
    try:
        path = build(options.to.resolve(), python=options.python)
    except (DebError, OSError) as error:
        print(f"deb: {error}", file=sys.stderr)
        return 1
    print(f"deb: {path}, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
