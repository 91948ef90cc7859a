"""The image, as far as it can be tried without a container engine: the Dockerfile, step by step.

A root stands for the base image; it has a Python of its own. Instructions are carried out as a
builder would, the second stage in a root that has of the first one only what is copied from it.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.conftest import Root
from tests.unit.test_container import instructions
from tools.lock import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PYTHON = Path(sys.base_prefix) / "bin"


class Builder:
    """The state of a build: the directory and the variables of further steps."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.directory = "/"
        self.variables = {"PATH": f"{PYTHON}:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.user = "0:0"

    def run(self, command: str, *, check: bool = True) -> str:
        """Run a command as the image's user would; return its output."""
        exports = "\n".join(
            f"export {name}={shlex.quote(value)}" for name, value in self.variables.items()
        )
        user, _, group = self.user.partition(":")
        drop = f"setpriv --reuid={user} --regid={group} --clear-groups --no-new-privs"
        whole = f"{exports}\ncd {self.directory}\nexec {drop} /bin/sh -ec {shlex.quote(command)}"
        done = self.root.run(whole, check=check)
        return done.stdout + done.stderr

    def copy(self, sources: list[str], target: str) -> None:
        """Copy from the checkout."""
        place = self.root.folder / Path(self.directory, target).relative_to("/")
        for source in sources:
            found = ROOT / source
            if found.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(found, place, dirs_exist_ok=True, ignore=ignored)
            else:
                to = place / found.name if target.endswith("/") else place
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(found, to)

    def step(self, name: str, argument: str) -> None:
        """Carry out one instruction."""
        match name:
            case "RUN":
                if "apt-get" not in argument:  # the compiler is here already
                    self.run(argument)
            case "COPY":
                *sources, target = argument.split()
                if sources[0].startswith("--from"):
                    return
                self.copy(sources, "./" if target == "./" else target)
            case "WORKDIR":
                self.directory = argument
                (self.root.folder / argument[1:]).mkdir(parents=True, exist_ok=True)
            case "ENV":
                for key, value in re.findall(r"(\w+)=(\S+)", argument):
                    self.variables[key] = value.replace("$PATH", self.variables["PATH"])
            case "USER":
                self.user = argument
            case _:
                pass


def stages() -> Iterator[list[tuple[str, str]]]:
    """The instructions of each stage."""
    stage: list[tuple[str, str]] = []
    for one in instructions():
        if one[0] == "FROM" and stage:
            yield stage
            stage = []
        stage.append(one)
    yield stage


@pytest.mark.rule("MAN-27")
def test_the_image_is_built_and_its_daemon_keeps_what_it_confirmed(root: Root) -> None:
    for place in PYTHON.parents:  # the image's Python is for everybody; this one may be root's
        inside = root.folder / place.relative_to("/")
        inside.chmod(inside.stat().st_mode | 0o055)
    first, second = stages()
    building = Builder(root)
    for step in first:
        building.step(*step)
    building.run("rm -rf /src /wheels /opt/build")  # the second stage does not have them
    running = Builder(root)
    for step in second:
        running.step(*step)
    said = dict(second)
    health = json.loads(said["HEALTHCHECK"].partition(" CMD ")[2])
    start = shlex.join(json.loads(said["CMD"]))
    assert running.user != "0:0"
    serve = f"""
        {start} >/tmp/serve.log 2>&1 &
        daemon=$!
        until {shlex.join(health)} >/dev/null 2>&1; do
            kill -0 $daemon || {{ cat /tmp/serve.log; exit 1; }}
        done
    """
    stop = "kill $daemon; wait $daemon\n"
    objects = """
        brokerd message-type create Note
        brokerd contract create notes types.Note=initiator
        brokerd queue create q
        brokerd service create a queue=q contracts=notes
        brokerd send --from a --to a --contract notes --type Note --body "keep me"
    """
    running.run(f"{serve}{objects}{stop}")
    assert "keep me" in running.run(f"{serve}brokerd queue browse q\n{stop}")
    written = running.run(
        "find / -xdev -newer /etc/brokerd/brokerd.toml -user 10001 -type f", check=False
    )
    places = {line for line in written.splitlines() if line.startswith("/")}
    allowed = ("/var/lib/brokerd/", "/run/brokerd/", "/tmp/", "/proc/", "/dev/")
    assert not [one for one in places if not one.startswith(allowed)]
    compiled = "from brokerd.storage.compiled.library import IS_BUILT; print(IS_BUILT)"
    assert "True" in running.run(f"/opt/brokerd/bin/python -c {shlex.quote(compiled)}")
