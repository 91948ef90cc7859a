import re

from spark_jobs.report import figures, words
from tests.spark.segments import NOON, SECOND

FRAME = figures.Frame(NOON, NOON + 60 * SECOND)
CURVE = [(NOON + second * SECOND, float(second)) for second in range(60)]


def drawn(*marks, curve=CURVE, frame=FRAME):
    return figures.chart([curve], frame=frame, marks=marks, wording=words.rate)


def test_an_upright_line_has_a_title_that_cannot_act_as_markup():
    text = drawn(figures.Upright(NOON + SECOND, figures.Sign.START, "<b>east</b> started"))
    (after,) = re.findall(r"<title>&lt;b&gt;east&lt;/b&gt; started</title>\s*(<path [^>]*>)", text)
    assert "var(--mark)" in after
    assert "<b>" not in text


def test_a_start_after_a_crash_looks_different():
    looks = {
        sign: re.search(r"</title>\s*<path [^>]*style=\"([^\"]*)\"", drawn(mark))
        for sign in figures.Sign
        for mark in [figures.Upright(NOON, sign, "east")]
    }
    assert len({found[1] for found in looks.values() if found}) == len(figures.Sign)
