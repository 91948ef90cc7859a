"""HTML of the page, and how it writes values."""

import pytest

from brokerd.clock import SECOND, Instant
from brokerd.http.page.html import Html, el, join, text
from brokerd.http.page.words import age, duration, ident, name, number, sentence, size, url

HOSTILE = "<script>alert(1)</script>\" onload='x' \u202egpj\x00\n&amp;"


@pytest.mark.rule("MON-41")
def test_a_text_cannot_become_markup_or_turn_its_surroundings() -> None:
    for made in (text(HOSTILE), el("p", HOSTILE, title=HOSTILE), join([HOSTILE]), name(HOSTILE)):
        inner = (
            made.removeprefix("<p").removesuffix("</p>").replace("<bdi", "").replace("</bdi>", "")
        )
        assert "<" not in inner
        assert "'" not in inner
        assert "\u202e" not in made
        assert "\x00" not in made
        assert "\\u202egpj" in made


@pytest.mark.rule("MON-41")
def test_only_markup_of_the_page_itself_is_passed_on() -> None:
    assert el("p", Html("<b>"), "<b>") == "<p><b>&lt;b&gt;</p>"
    assert el("input", value="a", hidden=True, checked=False, name=None) == (
        '<input value="a" hidden>'
    )
    assert el("a", "x", class_="c", aria_label="l") == '<a class="c" aria-label="l">x</a>'


@pytest.mark.rule("MON-42")
@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (0, "now"),
        (250_000, "250ms"),
        (SECOND, "1s"),
        (61 * SECOND, "1min 1s"),
        (3_600 * SECOND, "1h"),
        (90_061 * SECOND, "1d 1h"),
    ],
)
def test_durations_have_their_two_largest_units(micros: int, shown: str) -> None:
    assert duration(micros) == shown


@pytest.mark.rule("MON-42")
def test_what_is_shortened_is_whole_in_the_title() -> None:
    now = Instant(1_700_000_000 * SECOND)
    assert 'title="2023-11-14T22:13:10.000000Z"' in age(now - 10 * SECOND, now)
    assert ">in 10s<" in age(now + 10 * SECOND, now)
    whole = "0123456789abcdef"
    assert f'title="{whole}"' in ident(whole)
    assert ">01234567<" in ident(whole)
    assert 'title="2048 bytes"' in size(2048)
    assert "2.0 KiB" in size(2048)
    assert "1,234,567" in number(1_234_567)


@pytest.mark.rule("MON-42")
def test_absent_values_are_a_dash_and_long_ones_are_cut() -> None:
    now = Instant(0)
    for made in (age(None, now), number(None), size(None), ident(None), name(""), sentence(None)):
        assert ">–<" in made  # noqa: RUF001
    assert len(name("x" * 10_000)) < 400
    assert ">until 2023-11-14T22:13:28Z<" in sentence("until 2023-11-14T22:13:28.123456Z")
    assert sentence("one\n  two") == '<span class="said">one two</span>'


@pytest.mark.rule("MON-41")
def test_parts_of_a_query_are_quoted() -> None:
    assert url("/queue", {"name": "a&b=c#\u202e", "empty": "", "none": None}) == (
        "/queue?name=a%26b%3Dc%23%E2%80%AE"
    )
