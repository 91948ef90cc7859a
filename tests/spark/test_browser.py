"""Pages in a real browser: on a phone and a desktop, in both themes, and on paper.

Skipped where there is no Chromium; `python -m tests.spark.browser` makes pictures to look at.
"""

import pytest

from spark_jobs.report import build as report
from spark_jobs.report import page, spans
from spark_jobs.report.days import week_of, year_of
from spark_jobs.report.verdict import judge
from tests.spark import browser
from tests.spark.month import FEW, day_of
from tests.spark.test_large import large_day
from tests.spark.weeks import ago, busy_year, put

pytestmark = pytest.mark.skipif(
    browser.find() is None, reason=f"none of {', '.join(browser.NAMES)} is installed here"
)

WIDER_THAN_THE_SCREEN = "document.documentElement.scrollWidth - window.innerWidth"
HARD_TO_READ = """
(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const rgb = parts(getComputedStyle(one).backgroundColor);
      if (rgb.length === 3 || rgb[3] === 1) return rgb;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || one.closest('style, title')) continue;
    const style = getComputedStyle(one);
    const ink = one.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(parts(ink)), light(ground(one))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`${text}: ${contrast.toFixed(2)}`);
  }
  return found;
})()
"""
TOO_SMALL = """
[...document.querySelectorAll('svg text')].filter((one) => one.getBoundingClientRect().height < 9)
  .map((one) => one.textContent)
"""
CUT_OFF = """
[...document.querySelectorAll('svg text')].filter((one) => {
  const picture = one.closest('svg');
  const frame = getComputedStyle(picture).overflow === 'visible' ? one.closest('figure') : picture;
  const [text, room] = [one.getBoundingClientRect(), frame.getBoundingClientRect()];
  return text.left < room.left - 1 || text.right > room.right + 1
      || text.top < room.top - 1 || text.bottom > room.bottom + 1;
}).map((one) => one.textContent)
"""

SCROLLS_UNSEEN = """
[...document.querySelectorAll('*')].filter((one) => one.scrollWidth > one.clientWidth + 1
    && getComputedStyle(one).overflowX === 'auto'
    && !getComputedStyle(one).backgroundAttachment.includes('local'))
  .map((one) => one.className)
"""
SCROLLED_DRAWINGS = """
[...document.querySelectorAll('figure')].filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.getAttribute('aria-label'))
"""


@pytest.fixture(scope="module")
def chromium():
    with browser.running() as one:
        yield one


@pytest.fixture(scope="module")
def pages(month, tmp_path_factory):
    """A day for each verdict, a large one, and a week and a year of much longer names."""
    root = tmp_path_factory.mktemp("year")
    put(root, *busy_year())
    spans.write(root, [ago(0)], lambda _: None)
    large = large_day()
    (root / "large.html").write_text(page.render(large, judge(large)), encoding="utf-8")
    return {name: month.root / day_of(FEW[name]) / report.PAGE for name in ("garbage", "lost")} | {
        "fine": month.root / day_of(0) / report.PAGE,
        "week": root / f"week-{week_of(ago(0))}.html",
        "large": root / "large.html",
        "year": root / f"year-{year_of(ago(0))}.html",
    }


@pytest.mark.parametrize("name", ["fine", "garbage", "lost", "large", "week", "year"])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [browser.PHONE, browser.DESKTOP], ids=["phone", "desktop"])
def test_a_page_fits_and_can_be_read_and_asks_nobody(chromium, pages, name, size, is_dark):
    with chromium.open(pages[name], size, dark=is_dark) as shown:
        assert shown.evaluate(WIDER_THAN_THE_SCREEN) <= 0
        assert shown.evaluate(HARD_TO_READ) == []
        assert shown.evaluate(TOO_SMALL) == []
        assert shown.evaluate(CUT_OFF) == []
        assert shown.evaluate(SCROLLS_UNSEEN) == []
        scrolled = shown.evaluate(SCROLLED_DRAWINGS)
        assert {*scrolled} <= (
            {"Service pairs: Who sent to whom"} if size is browser.PHONE else set()
        )
        assert shown.complaints == []
        assert shown.asked_for == [pages[name].resolve().as_uri()]


def test_a_page_can_be_printed(chromium, pages):
    with chromium.open(pages["lost"], browser.PAPER, dark=True, media="print") as shown:
        assert shown.evaluate(WIDER_THAN_THE_SCREEN) <= 0
        assert shown.evaluate(HARD_TO_READ) == [], "paper is white, whatever the theme"
        paper = shown.paper()
        assert shown.complaints == []
    assert paper.startswith(b"%PDF")
    assert 2 < paper.count(b"/Type /Page\n") < 12
