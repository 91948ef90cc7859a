"""A root that is thrown away: this machine's own, with everything that is written kept aside.

Root and overlay mounts are needed. No service manager runs in it.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class Root:
    """A root to install into; each command is a process in it, as root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell script in the root."""
        inside = f"""
            set -e
            mount --bind /proc {self.folder}/proc
            mount --bind /dev {self.folder}/dev
            exec chroot {self.folder} /bin/sh -ec "$SCRIPT"
        """
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SCRIPT": script, "LC_ALL": "C.UTF-8"}
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside]
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=600
        )
        assert not check or done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    memory, whole = tmp_path / "memory", tmp_path / "root"
    for path in (memory, whole):
        path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(memory)], check=True)
    try:
        (memory / "upper").mkdir()
        (memory / "work").mkdir()
        options = f"lowerdir=/,upperdir={memory}/upper,workdir={memory}/work"
        mounted = ["mount", "-t", "overlay", "overlay", "-o", options, str(whole)]
        if subprocess.run(mounted, capture_output=True, check=False).returncode:
            pytest.skip("no overlay can be mounted here")
        (whole / "var/lib/man-db/auto-update").unlink(missing_ok=True)  # an index of all pages
        yield Root(whole)
        subprocess.run(["umount", "-l", str(whole)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(memory)], check=False)
