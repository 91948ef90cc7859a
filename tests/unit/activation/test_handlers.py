"""What may be named as a handler, and how each mistake is told."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.activation.handlers import HandlerError, load_handler
from brokerd.process.exit_statuses import exit_status

SOURCE = """
import sys
from functools import partial

async def good(session): pass
async def with_option(session, extra=None): pass
async def none(): pass
async def two(session, other): pass
def plain(session): pass
async def by_key(*, session): pass
number = 7

class App:
    async def __call__(self, session): pass
    async def method(self, session): pass

app = App()
bound = partial(two, other=1)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `handled` that the test may import; others may be written beside it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "handled.py").write_text(SOURCE)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("handled"):
            del sys.modules[name]


@pytest.mark.rule("ACT-20", "OBJ-60")
@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("name", ["good", "with_option", "app", "app.method", "bound"])
async def test_async_callables_of_one_argument(name: str) -> None:
    await load_handler(f"handled:{name}")(object())


@pytest.mark.rule("ACT-24", "OBJ-60")
@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("handled", "module:function"),
        (":good", "module:function"),
        ("handled:", "module:function"),
        ("handled:missing", "no attribute 'missing'"),
        ("handled:app.missing", "handled.app has no attribute 'missing'"),
        ("handled:plain", "a plain function"),
        ("handled:number", "int, not an async callable"),
        ("handled:App", "type, not an async callable"),
        ("handled:none", "one argument"),
        ("handled:two", "one argument"),
        ("handled:by_key", "one argument"),
        ("handled_nowhere:good", "handled_nowhere does not import: ModuleNotFoundError"),
    ],
)
def test_refused_with_the_cause(path: str, words: str) -> None:
    with pytest.raises(HandlerError) as caught:
        load_handler(path)
    assert words in caught.value.message
    assert caught.value.hint
    assert exit_status(caught.value) == 78


@pytest.mark.rule("ACT-24")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('no database')", "RuntimeError: no database"),
        ("def (", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import handled_missing_dependency", "handled_missing_dependency"),
    ],
)
def test_a_module_that_does_not_import(module: Path, source: str, words: str) -> None:
    (module / "handled_broken.py").write_text(source)
    with pytest.raises(HandlerError) as caught:
        load_handler("handled_broken:good")
    assert words in caught.value.message


@pytest.mark.rule("ACT-24")
def test_a_module_written_later_is_found(module: Path) -> None:
    with pytest.raises(HandlerError):
        load_handler("handled_later:good")
    (module / "handled_later.py").write_text(SOURCE)
    assert load_handler("handled_later:good") is sys.modules["handled_later"].good
