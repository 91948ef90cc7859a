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


def files_of(document: str) -> dict[str, str]:
    """Return the Python blocks of a document that are files, by the name in their first line."""
    text = (ROOT / document).read_text()
    return dict(re.findall(r"```python\n# (\w+\.py).*?\n(.*?)```", text, re.DOTALL))


@pytest.mark.rule("SDK-16")
@pytest.mark.parametrize("seed", [1, 2])
def test_the_complete_example(tmp_path: Path, seed: int) -> None:
    files = files_of("docs/how-to/testing-your-code.md")
    assert list(files) == ["warehouse.py", "test_warehouse.py"]
    for name, source in files.items():
        (tmp_path / name).write_text(source)
    plugins = ["-p", "brokerd.testing.plugin", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    ended = run("-m", "pytest", "-q", *plugins, f"--brokerd-seed={seed}", ".", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert "3 passed" in ended.stdout


@pytest.mark.rule("SDK-14")
def test_the_program_of_the_verbs(tmp_path: Path) -> None:
    ((name, source),) = files_of("docs/reference/verbs.md").items()
    program = tmp_path / name
    program.write_text(source.replace("unix:data/brokerd.sock", f"file:{tmp_path}/main.db"))
    for _ in range(2):  # what it declares is there the second time
        ended = run(str(program), folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == "[('Packed', b'packed A1'), ('urn:brokerd:EndDialog', None)]\n"


PRINTED = {
    "ledger.py": "Paid(balance=250)\nPaid(balance=350)\n",
    "courier.py": "Shipped(tracking='T-A1')\n400 the courier said Bad Request\n",
    "ticking.py": "cleaning\n",
    "chain.py": "Packed(sku='A1')\n402 not paid: too much\n",
}
"""What each program of the cookbook prints, as its page says."""


def test_each_program_of_the_cookbook_is_tried() -> None:
    assert list(files_of("docs/how-to/cookbook.md")) == list(PRINTED)
    text = (ROOT / "docs/how-to/cookbook.md").read_text()
    lines = {line for printed in PRINTED.values() for line in printed.splitlines()}
    assert {line for line in lines if f"`{line}`" not in text} == set()


@pytest.mark.rule("SDK-10", "SDK-11", "SDK-14")
@pytest.mark.parametrize("name", PRINTED)
def test_a_program_of_the_cookbook(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(files_of("docs/how-to/cookbook.md")[name])
    ended = run(name, folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, PRINTED[name]), ended.stderr


@pytest.mark.rule("SDK-11", "REL-3")
def test_a_crash_between_the_two_commits_books_a_payment_once(tmp_path: Path) -> None:
    """The handler of the cookbook fails after its own database has committed, before the broker."""
    name = "ledger.py"
    source = files_of("docs/how-to/cookbook.md")[name]
    reply = "return Paid(await asyncio.to_thread(book, payment, name, message.sequence))"
    assert reply in source
    fails = (
        f"{reply.replace('return', 'paid =')}\n    assert message.delivery_count\n    return paid"
    )
    (tmp_path / name).write_text(source.replace(reply, fails))
    ended = run(name, folder=tmp_path)
    assert "handler_failed" in ended.stdout + ended.stderr
    printed = [line for line in ended.stdout.splitlines() if line.startswith("Paid")]
    assert printed == PRINTED[name].splitlines(), ended.stderr


@pytest.mark.rule("DLG-37")
def test_a_job_that_is_started_twice_is_one_job(tmp_path: Path) -> None:
    name = "ticking.py"
    source = files_of("docs/how-to/cookbook.md")[name]
    begun = ".send(Every(0.2))"
    assert begun in source
    (tmp_path / name).write_text(source.replace(begun, f"{begun}; print('begun')"))
    printed = [run(name, folder=tmp_path).stdout for _ in range(2)]
    assert printed == ["begun\ncleaning\n", "cleaning\n"]
