"""Two results side by side: figures that both have, settings that differ."""

from pathlib import Path

import pytest

from brokerd.bench.comparison import Figure, NotComparable, compare, read


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


def test_figures_that_one_of_them_lacks_are_left_out() -> None:
    old = result(1.0)
    old["receive"] = {"rate": 3.0}
    assert [one.name for one in compare(old, result(1.0)).figures] == [
        "send.rate",
        "send.latency_us.p50",
    ]


def test_two_benchmarks_are_not_compared() -> None:
    with pytest.raises(NotComparable, match=r"bench local.*bench peer"):
        compare(result(1.0), result(1.0) | {"benchmark": "peer"})


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"benchmark": "local"}', '{"benchmark": 1}'])
def test_what_is_no_result_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.json"
    file.write_text(text)
    with pytest.raises(NotComparable, match=r"odd\.json"):
        read(file)
    with pytest.raises(NotComparable, match=r"nowhere\.json cannot be read"):
        read(tmp_path / "nowhere.json")
