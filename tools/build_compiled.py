"""Build hook: compiles the C part while brokerd is installed, if there is a C compiler.

Reads:  brokerd/storage/compiled.        Calls: $CC, or the compiler Python itself was built with.
Never:  stops an installation: without the C part Python does its work
        (brokerd/storage/executors.py). A release, which names the platform, it does stop.
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

PLACE = Path("brokerd", "storage", "compiled")
MADE = PLACE / "_compiled.abi3.so"
PLATFORM_VARIABLE = "BROKERD_WHEEL_PLATFORM"
"""Variable of a release: the platform that CC compiles for; no wheel is made if it fails."""
ANY = "any"
"""Value for the wheel without the C part, which fits every platform."""
SHARED = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]


class CompiledHook(BuildHookInterface[Any]):
    """A hook that adds the compiled part to a wheel, or to the sources of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the C part, and mark the wheel's tag as platform-specific."""
        made = Path(self.root, MADE)
        asked = os.environ.get(PLATFORM_VARIABLE)
        if asked == ANY:
            return
        if failure := compile_to(made):
            if asked:
                raise RuntimeError(f"no compiled part for {asked}: {failure}")
            self.app.display_warning(
                f"brokerd: stores will be read and written by Python: {failure}"
            )
            return
        if version != "editable":
            platform = asked or sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["force_include"][str(made)] = MADE.as_posix()


def compile_to(made: Path) -> str:
    """Compile the C part to `made`; return the reason for a failure, "" if there was none.

    The file is replaced by a rename, so that a running daemon keeps the one it has loaded.
    """
    try:
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        flags = ["-O2", "-fPIC", "-fvisibility=hidden", "-pthread", *SHARED]
        files = sorted(file for file in made.parent.iterdir() if file.suffix in {".c", ".h"})
        made_of = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        names = [f"-I{sysconfig.get_path('include')}", f'-DMADE_OF="{made_of}"']
        sources = [str(file) for file in files if file.suffix == ".c"]
        with tempfile.TemporaryDirectory(dir=made.parent) as place:
            new = Path(place, made.name)
            command = [*compiler, *flags, *names, *sources, "-o", str(new), "-ldl"]
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False
            )
            if done.returncode:
                return f"{shlex.join(command)}: {done.stderr.strip()[:500]}"
            new.replace(made)
    except (OSError, ValueError) as error:
        return str(error)
    return ""
