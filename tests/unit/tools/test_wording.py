"""The check of docstrings' first words and of methods' names."""

from pathlib import Path

import pytest

from tools import wording


def written(root: Path, text: str, part: str = "brokerd") -> list[str]:
    (root / part).mkdir()
    (root / part / "one.py").write_text(text)
    return wording.found(root)


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
    assert written(tmp_path, text)[0].startswith("brokerd/one.py:")


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
    assert written(tmp_path, text) == []


@pytest.mark.parametrize("name", ["take", "_tell", "of"])
def test_a_vague_name_of_a_method_is_found(tmp_path: Path, name: str) -> None:
    text = f"class One:\n    def {name}(self): ..."
    assert written(tmp_path, text) == [
        f"brokerd/one.py:2: def {name}: the name does not say what it does"
    ]
