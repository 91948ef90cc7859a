"""The verdict is the last line, and good only if nothing differs."""

from brokerd.demo.result import DemoResult, Kill, Memory, described


def test_the_verdict_of_a_good_run() -> None:
    result = DemoResult("/demo", sent=20_000, answered=20_000)
    assert result.ok
    assert result.verdict == "demo: settled: 20000 sent, 20000 answered, 0 lost, 0 doubled"


def test_the_verdict_of_a_bad_run_names_what_differs_in_one_line() -> None:
    result = DemoResult("/demo", differs=["west did not start\nlast words", "more", "yet more"])
    assert not result.ok
    assert result.verdict == "demo: FAILED: west did not start (and 2 more)"


def test_the_figures_name_kills_and_memory() -> None:
    result = DemoResult(
        "/demo",
        kills=[Kill("west", 4.0, 100, ready_after=1.5, pause=2.0)],
        memory=[Memory("west", [50 * 1024**2, 80 * 1024**2])],
    )
    text = "\n".join(described(result))
    assert "west at 4.0 s with 100 answered; it answered again after 1.5 s" in text
    assert "west at most 80 MiB (50 MiB, 80 MiB)" in text
