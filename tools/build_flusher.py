"""Compiles the flusher while brokerd is installed, where there is a C compiler; goes on without.

Reads:  brokerd/storage/_flusher.c.      Calls: $CC, or the compiler Python itself was built with.
Never:  stops an installation: without it Python writes flushes (brokerd/storage/compiled.py).
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("brokerd", "storage", "_flusher.c")
MADE = SOURCE.with_name("_flusher.abi3.so")
SHARED = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]


class FlusherHook(BuildHookInterface[Any]):
    """Adds the compiled flusher to a wheel, or puts it beside its source for an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it, and say so in the wheel's tag."""
        made = Path(self.root, MADE)
        if failure := compile_to(made, Path(self.root, SOURCE)):
            self.app.display_warning(f"brokerd: flushes will be written by Python: {failure}")
            return
        if version != "editable":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["force_include"][str(made)] = MADE.as_posix()


def compile_to(made: Path, source: Path) -> str:
    """Compile; why not, "" = it is done. A daemon that runs keeps what it has loaded."""
    try:
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        flags = ["-O2", "-fPIC", "-pthread", f"-I{sysconfig.get_path('include')}", *SHARED]
        made_of = f'-DMADE_OF="{sha256(source.read_bytes()).hexdigest()}"'
        with tempfile.TemporaryDirectory(dir=made.parent) as place:
            new = Path(place, made.name)
            command = [*compiler, *flags, made_of, str(source), "-o", str(new), "-ldl"]
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False
            )
            if done.returncode:
                return f"{shlex.join(command)}: {done.stderr.strip()[:500]}"
            new.replace(made)
    except (OSError, ValueError) as error:
        return str(error)
    return ""
