"""The check of docstrings' first words."""

from pathlib import Path

import pytest

from tools import wording


def written(root: Path, text: str) -> dict[str, list[str]]:
    (root / "brokerd").mkdir()
    (root / "brokerd" / "one.py").write_text(text)
    return dict(wording.found(root))


@pytest.mark.parametrize(
    "text",
    [
        '"""What befalls a dialog."""',
        '"""It is over."""',
        'class One:\n    """Of the far service."""',
        'x = 1\n"""Those that wait."""',
        'def f():\n    """Whether it is full."""',
        'async def f():\n    """Where a message goes."""',
    ],
)
def test_a_docstring_without_subject_is_found(tmp_path: Path, text: str) -> None:
    assert len(written(tmp_path, text)["brokerd"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"""Dialog events."""',
        'x = 1\n"""Whether the queue is full."""',
        'class One:\n    @property\n    def f(self):\n        """Whether it is full."""',
        'def f():\n    """Return whether the queue is full."""',
        'def f():\n    """Itemize the rows."""',
    ],
)
def test_a_plain_docstring_passes(tmp_path: Path, text: str) -> None:
    assert written(tmp_path, text) == {}


def test_counts_may_neither_rise_nor_stay_behind() -> None:
    bad = {"brokerd/a": ["x", "y"], "brokerd/b": ["x"]}
    assert wording.complaints(bad, {"brokerd/a": 2, "brokerd/b": 1}) == []
    assert wording.complaints(bad, {"brokerd/a": 1, "brokerd/b": 2, "c": 1}) == [
        "brokerd/a: 2 docstrings begin badly, 1 may",
        "brokerd/b: 1 docstrings begin badly, so write 1 in tools/wording.toml",
        "c: 0 docstrings begin badly, so write 0 in tools/wording.toml",
    ]
