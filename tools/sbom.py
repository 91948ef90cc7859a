"""The bill of materials of a release: what an installation consists of, as CycloneDX (SX-18).

Reads:  pyproject.toml and the locks, with the hash of every file that pip may install.
Writes: build/sbom/brokerd-VERSION.LOCK.cdx.json, one for each lock that users install from.
Never:  asks a registry, or writes the time: the same locks give the same bytes.
"""

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.lock import ROOT, lock_path

SHIPPED = ("run", "batch")
"""Locks from which users install; the others are for those who change brokerd."""
FORMAT = "CycloneDX"
SPEC = "1.6"
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"#(?: via)? +([A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?(?: \(pyproject\.toml\))?$")


def pins(lock: str) -> list[dict[str, Any]]:
    """Return the packages of a lock: name, version, hashes, and the packages that need it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    one: dict[str, Any] = {"hashes": {}, "for": []}
    for raw in lock.splitlines():
        line = raw.strip()
        if not raw.startswith((" ", "#")) and (pinned := _PINNED.match(line)):
            key = re.sub(r"[-_.]+", "-", pinned[1]).lower(), pinned[2]
            new: dict[str, Any] = {"name": key[0], "version": key[1], "hashes": {}, "for": []}
            one = found.setdefault(key, new)  # listed once for each version of Python, perhaps
        one["hashes"] |= dict.fromkeys(_HASH.findall(line))
        if via := _VIA.match(line):
            one["for"].append(via[1])
    return [each | {"hashes": list(each["hashes"])} for each in found.values()]


def bill(name: str, root: Path = ROOT) -> dict[str, Any]:
    """Return the bill of materials of one lock.

    Raises:
        ValueError: a package is locked without a hash.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = lock_path(name, root).read_text(encoding="utf-8")
    packages = pins(text)
    if unhashed := [one["name"] for one in packages if not one["hashes"]]:
        raise ValueError(f"locked without a hash: {', '.join(unhashed)}")
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    refs: dict[str, list[str]] = {project["name"]: [own]}
    for one in packages:
        refs.setdefault(one["name"], []).append(_purl(one))
    needs: dict[str, set[str]] = {ref: set() for those in refs.values() for ref in those}
    for one in packages:
        for parent in one["for"]:
            for ref in refs.get(parent, ()):
                needs[ref].add(_purl(one))
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": FORMAT,
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + text)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": own,
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": _purl(one),
                "name": one["name"],
                "version": one["version"],
                "purl": _purl(one),
                "hashes": [{"alg": "SHA-256", "content": text} for text in one["hashes"]],
            }
            for one in packages
        ],
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(those)} for ref, those in sorted(needs.items())
        ],
    }


def _purl(package: dict[str, Any]) -> str:
    return f"pkg:pypi/{package['name']}@{package['version']}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the bills of all locks that users install from; print where."""
    parser = argparse.ArgumentParser(prog="sbom", description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "sbom")
    folder = parser.parse_args(arguments).dir
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHIPPED:
        made = bill(name)
        version = made["metadata"]["component"]["version"]
        path = folder / f"brokerd-{version}.{name}.cdx.json"
        path.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
        print(f"{path}: {len(made['components'])} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
