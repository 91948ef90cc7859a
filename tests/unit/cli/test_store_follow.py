"""What a follower says of long work, and of sizes."""

import pytest

from brokerd.cli.store_follow import ShownProgress, size
from brokerd.clock import SystemClock


class SetClock(SystemClock):
    """A clock whose monotonic time a test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.monotonic = lambda: self.now  # type: ignore[method-assign,assignment]


@pytest.mark.rule("REL-46")
def test_only_long_work_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    clock = SetClock()
    progress = ShownProgress(clock)
    for work in range(3):  # three short ones, ten seconds apart
        clock.now = 100.0 + 10 * work
        progress("main", 1, 100)
        clock.now += 0.9
        progress("main", 100, 100)
    assert capsys.readouterr().err == ""
    for step in range(9):  # one that goes on for four seconds
        clock.now += 0.5
        progress("main", (step + 1) << 20, 10 << 20)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["brokerd: main: 30 % of 10.0 MiB", "brokerd: main: 70 % of 10.0 MiB"]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (5 << 30, "5.0 GiB")],
)
def test_a_size_is_rounded(count: int, shown: str) -> None:
    assert size(count) == shown
