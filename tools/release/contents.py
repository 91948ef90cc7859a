"""Contents: what the files of a release may have in them, and what an index would refuse.

Reads:  wheels and source archives.      Calls: nothing.
Never:  changes a file; it returns sentences about what is wrong, none if all is well (MAN-19).
"""

import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from tools.release.wheel_files import Wheel

_STATED_ONCE = ("Metadata-Version", "Name", "Version", "Summary", "License-Expression")
_ROOTS = {"brokerd", "spark_jobs"}
_PLACES = re.compile(rb"/(?:home|root|Users|work|build|tmp)/[\w.-]+/[\w./-]+")
"""Paths of somebody's machine."""
_FOREIGN = re.compile(r"(^|/)(tests?|__pycache__|\.venv|\.git|build|dist)(/|$)|\.(pyc|so\.tmp)$")


def faults_of_wheel(wheel: Wheel) -> Iterator[str]:
    """Yield what is wrong with a wheel."""
    name = wheel.file_name
    yield from (f"{name}: {one}" for one in _faults_of_metadata(wheel))
    roots = {path.split("/")[0] for path in wheel.files}
    if strange := sorted(roots - _ROOTS):
        yield f"{name}: installs {', '.join(strange)} beside brokerd"
    for path, data in wheel.files.items():
        if _FOREIGN.search(path):
            yield f"{name}: {path} is not for users"
        if path.endswith(".so"):
            yield from (f"{name}: {path} names {place}" for place in places(data))
    compiled = [path for path in wheel.files if path.endswith(".so")]
    if wheel.is_pure == bool(compiled):
        yield f"{name}: the tag {wheel.tags[0]} with {len(compiled)} compiled parts"
    if compiled and not all(".abi3." in path for path in compiled):
        yield f"{name}: {compiled} is not of the stable ABI"


def _faults_of_metadata(wheel: Wheel) -> Iterator[str]:  # noqa: C901  # a list of conditions
    for field in _STATED_ONCE:
        if len(wheel.values(field)) != 1:
            yield f"METADATA has no {field}, or several"
    try:
        Version(wheel.version)
        for one in wheel.values("Requires-Dist"):
            Requirement(one)
    except (InvalidVersion, InvalidRequirement) as error:
        yield f"METADATA: {error}"
    if wheel.values("Description-Content-Type") != ["text/markdown"]:
        yield "the description is not marked as Markdown"
    _, _, description = wheel.info["METADATA"].decode().partition("\n\n")
    if not description.startswith("# "):
        yield "there is no description"
    for one in wheel.values("License-File"):
        if f"licenses/{one}" not in wheel.info:
            yield f"the license file {one} is not there"
    for one in wheel.values("Classifier"):
        if one.startswith("Private ::"):
            yield f"the classifier {one!r} keeps an index from taking it"


def faults_of_pair(client: Wheel, rest: Wheel) -> Iterator[str]:
    """Yield what is wrong with two wheels that are to be installed together (MAN-20)."""
    if both := sorted(client.files.keys() & rest.files.keys()):
        yield f"{client.file_name} and {rest.file_name} both have {', '.join(both[:3])}"
    if f"{client.name}=={client.version}" not in rest.values("Requires-Dist"):
        yield f"{rest.file_name} does not require {client.name} of its version"


def faults_of_sources(path: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with a source archive; `names`: files that it needs to have."""
    with tarfile.open(path) as archive:
        content = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    if missing := sorted(set(names) - content):
        yield f"{path.name}: {', '.join(missing[:3])} is missing"
    for one in sorted(content):
        if re.search(r"(^|/)(__pycache__|\.venv|\.git|build|dist)/|\.(pyc|so)$", one):
            yield f"{path.name}: {one} is not a source"


def places(data: bytes) -> set[str]:
    """Return the paths of somebody's machine that a compiled file names."""
    return {one.decode(errors="replace") for one in _PLACES.findall(data)}
