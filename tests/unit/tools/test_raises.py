"""The public API says which errors can come, and the check of that finds what does not."""

from pathlib import Path

import pytest

from tools.raises import ROOT, modules, problems

HERE = Path("some.py")


def test_every_public_callable_says_what_it_raises() -> None:
    found = [line for path in modules() for line in problems(path, path.read_text())]
    assert found == []
    assert ROOT / "brokerd/client/session.py" in modules()
    assert ROOT / "brokerd/sync.py" in modules()


@pytest.mark.parametrize(
    "text",
    [
        'def f():\n    """Do it."""\n',
        "def f():\n    return 1\n",
        'class A:\n    async def f(self):\n        """Do it.\n\n        Raises:\n        """\n',
        'class A:\n    """It."""\n\n    def __init__(self):\n        raise ValueError\n',
        'class A:\n    @property\n    def f(self):\n        """Get."""\n        raise OSError\n',
        'def f():\n    """Do it. Raises ValueError."""\n',
    ],
)
def test_what_does_not_say_it_is_found(text: str) -> None:
    (line,) = problems(HERE, text)
    assert line.startswith("some.py:")


@pytest.mark.parametrize(
    "text",
    [
        'def f():\n    """Do it.\n\n    Raises: nothing.\n    """\n',
        'def f():\n    """Do it.\n\n    Raises:\n        ValueError: it is wrong.\n    """\n',
        'def f():\n    """Do it.\n\n    Raises, when awaited:\n        OSError: gone.\n    """\n',
        'class A:\n    """It.\n\n    Raises:\n        OSError: gone.\n    """\n\n'
        "    def __init__(self):\n        raise OSError\n",
        "class A:\n    @property\n    def f(self):\n        return 1\n",
        "def _f():\n    raise ValueError\n",
        "class _A:\n    def f(self):\n        raise ValueError\n",
    ],
)
def test_what_says_it_or_need_not_is_left_alone(text: str) -> None:
    assert list(problems(HERE, text)) == []
