"""What docs/ show of programs is run as it stands, each in a directory of its own (SDK-16)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """What Python makes of it, with this source."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.rule("SDK-16")
@pytest.mark.parametrize("seed", [1, 2])
def test_the_complete_example(tmp_path: Path, seed: int) -> None:
    text = (ROOT / "docs/how-to/testing-your-code.md").read_text()
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in files] == ["warehouse.py", "test_warehouse.py"]
    for name, source in files:
        (tmp_path / name).write_text(source)
    plugins = ["-p", "brokerd.testing.plugin", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    ended = run("-m", "pytest", "-q", *plugins, f"--brokerd-seed={seed}", ".", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert "3 passed" in ended.stdout


@pytest.mark.rule("SDK-14")
def test_the_program_of_the_verbs(tmp_path: Path) -> None:
    text = (ROOT / "docs/reference/verbs.md").read_text()
    ((name, source),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    program = tmp_path / name
    program.write_text(source.replace("unix:data/brokerd.sock", f"file:{tmp_path}/main.db"))
    for _ in range(2):  # what it declares is there the second time
        ended = run(str(program), folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == "[('Packed', b'packed A1'), ('urn:brokerd:EndDialog', None)]\n"
