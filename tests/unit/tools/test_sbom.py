"""The bill of materials names every package that an installation brings, with its hashes."""

import json
import re
from pathlib import Path

import pytest

from tools.lock import lock_path
from tools.sbom import SHIPPED, bill, main, pins

pytestmark = pytest.mark.rule("SX-18")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_locked_package_is_in_the_bill_once(name: str) -> None:
    made = bill(name)
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    text = lock_path(name).read_text()
    locked = re.findall(r"^([a-zA-Z0-9._-]+)==([^ ;\\]+)", text, re.MULTILINE)
    assert len(locked) > 15
    assert {(one["name"], one["version"]) for one in made["components"]} == {
        (package.lower(), version) for package, version in locked
    }
    refs = [one["bom-ref"] for one in made["components"]]
    assert len(refs) == len(set(refs))
    hashes = {one["content"] for part in made["components"] for one in part["hashes"]}
    assert hashes == set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))


@pytest.mark.parametrize("name", SHIPPED)
def test_everything_is_needed_by_something(name: str) -> None:
    made = bill(name)
    own = made["metadata"]["component"]["bom-ref"]
    graph = {one["ref"]: one["dependsOn"] for one in made["dependencies"]}
    reached, left = {own}, [own]
    while left:
        for ref in graph[left.pop()]:
            if ref not in reached:
                reached.add(ref)
                left.append(ref)
    assert reached == {own, *(one["bom-ref"] for one in made["components"])}


def test_the_same_locks_give_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        assert main(["--dir", str(tmp_path / folder)]) == 0
    made = sorted((tmp_path / "a").iterdir())
    assert len(made) == len(SHIPPED)
    for path in made:
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
        json.loads(path.read_bytes())


def test_a_package_without_a_hash_is_refused(tmp_path: Path) -> None:
    assert pins("x==1 \\\n    --hash=sha256:" + "0" * 64) == [
        {"name": "x", "version": "1", "hashes": ["0" * 64], "for": []}
    ]
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "run.txt").write_text("x==1\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "b"\nversion = "1"\n')
    with pytest.raises(ValueError, match="without a hash: x"):
        bill("run", tmp_path)
