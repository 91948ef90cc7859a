"""`make wheels`: builds a release into dist/, twice, checks it, and tries what can be tried here.

Reads:  the tree, requirements/release.txt.      Calls: `build`, `first_reply`; `auditwheel`.
Never:  publishes, or leaves a file in dist/ that is not of this release.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.lock import ROOT
from tools.release.build import ReleaseError, build, release_tools
from tools.release.first_reply import first_reply
from tools.release.toolchains import Platform, platforms

WORK = ROOT / "build" / "release"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a release; return the exit status."""
    parser = argparse.ArgumentParser(prog="make wheels", description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the folder, made anew")
    parser.add_argument("--once", action="store_true", help="do not build twice to compare")
    parser.add_argument("--no-trial", action="store_true", help="do not install and try it")
    options = parser.parse_args(arguments)
    try:
        _say("installing the release tools into build/release/tools")
        tools = release_tools(WORK / "tools")
        release(options.to, tools, twice=not options.once)
        if not options.no_trial:
            _say("an empty environment, the wheels, the first reply:")
            seconds = first_reply(WORK / "trial", options.to)
            _say(f"first reply {seconds:.0f} s after the environment was empty")
    except ReleaseError as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    return 0


def release(to: Path, tools: Path, *, twice: bool) -> None:
    """Build into `to`; the release tools belong to the Python `tools`.

    Raises:
        ReleaseError: it cannot be built, is not fit to be published, or differs the second time.
    """
    shutil.rmtree(to, ignore_errors=True)
    wanted = platforms(tools)
    made = build(to, wanted, work=WORK / "first")
    for path in made:
        _say(f"{_digest(path)[:16]}  {path.stat().st_size:>9,}  {path.name}")
    for platform in wanted:
        _audit(tools, platform, made)
    if twice:
        again = build(WORK / "again", wanted, work=WORK / "second")
        pairs = zip(made, again, strict=True)
        differing = [one.name for one, other in pairs if _digest(one) != _digest(other)]
        if differing:
            raise ReleaseError(f"built twice, and not the same: {', '.join(differing)}")
        _say("built twice: the same bytes")


def _audit(tools: Path, platform: Platform, made: Sequence[Path]) -> None:
    """Let auditwheel read the compiled part: does it need no more than the tag promises?"""
    (wheel,) = (path for path in made if platform.tag in path.name)
    command = [str(tools), "-m", "auditwheel", "show", "--ldpaths", "/nowhere", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or f'"{platform.tag}"' not in " ".join(done.stdout.split()):
        raise ReleaseError(f"{wheel.name} is not what its tag says:\n{done.stdout}{done.stderr}")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _say(text: str) -> None:
    print(f"wheels: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
