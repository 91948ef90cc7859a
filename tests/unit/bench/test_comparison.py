"""Two results side by side: figures of both or of one, settings that differ."""

from pathlib import Path

import pytest

from brokerd.bench.comparison import Figure, NotComparable, ResultUnreadable, compare, read
from brokerd.process.exit_statuses import IO_ERROR, exit_status


def result(rate: float, **changes: object) -> dict[str, object]:
    settings = {"clients": 8, "python": "3.11.7", "load_average": [rate, 0.0, 0.0], **changes}
    send = {"rate": rate, "latency_us": {"p50": 10}, "steady": True}
    return {"benchmark": "local", "settings": settings, "send": send}


def test_every_number_below_is_a_figure_by_its_path() -> None:
    found = compare(result(100.0), result(150.0))
    assert found.figures == [
        Figure("send.rate", 100.0, 150.0, 1.5),
        Figure("send.latency_us.p50", 10, 10, 1.0),
    ]


def test_nothing_is_divided_by_nothing() -> None:
    assert compare(result(0.0), result(5.0)).figures[0].ratio is None


def test_settings_that_differ_are_told_and_the_load_of_the_moment_is_none() -> None:
    found = compare(result(1.0), result(2.0, clients=4, extra=1))
    assert found.settings == {"clients": (8, 4), "extra": (None, 1)}


def test_figures_that_one_of_them_lacks_are_told_with_nothing_beside_them() -> None:
    old, new = result(1.0), result(1.0)
    old["receive"], new["more"] = {"rate": 3.0}, {"rate": 0}
    assert compare(old, new).figures[2:] == [
        Figure("receive.rate", 3.0, None, None),
        Figure("more.rate", None, 0, None),
    ]


def test_two_benchmarks_are_not_compared() -> None:
    with pytest.raises(NotComparable, match=r"bench local.*bench peer") as found:
        compare(result(1.0), result(1.0) | {"benchmark": "peer"})
    assert found.value.hint


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"benchmark": "local"}', '{"benchmark": 1}'])
def test_what_is_no_result_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.json"
    file.write_text(text)
    with pytest.raises(NotComparable, match=r"odd\.json"):
        read(file)


def test_what_cannot_be_read_is_no_bad_result(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(ResultUnreadable, match=r"cannot be read") as found:
            read(path)
        assert exit_status(found.value) == IO_ERROR
