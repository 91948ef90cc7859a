"""Words of the page: how instants, durations, sizes, ids and links are written (MON-42).

PURE.   Reads: values.      Calls: `html`.
Never:  shows an id without its whole text in the title, or an age without its instant.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final
from urllib.parse import urlencode

from brokerd.clock import SECOND, Instant, show_instant
from brokerd.http.page.html import Child, Html, el, join

LONGEST: Final = 240
"""Characters of a text in a table; the rest is on the page of the thing itself."""
_SHORT: Final = 28
"""Characters of a name that is not broken in a table."""
_STEPS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")
_UNIT: Final = 1024
_DAY: Final = 86_400
_DASH: Final = "–"  # noqa: RUF001  # an en dash, as a table shows an empty cell


def link(
    path: str, label: Child, query: Mapping[str, object] | None = None, **more: object
) -> Html:
    """Return a link to a section; parts of the query that are None or empty are left out."""
    return el("a", label, href=url(path, query), **more)


def url(path: str, query: Mapping[str, object] | None = None) -> str:
    """Return the path with the query, without parts that are None or empty."""
    kept = {name: str(value) for name, value in (query or {}).items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def number(value: object) -> Html:
    """Return a number with commas between groups of three digits; a dash for none."""
    if not isinstance(value, int | float):
        return el("span", _DASH, class_="none")
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    quiet = "num zero" if not value else "num"
    return el("span", shown, class_=quiet)


def duration(micros: int) -> str:
    """Return a duration in its two largest units, such as `3min 20s`."""
    seconds = max(0, micros) // SECOND
    if not seconds:
        return "now" if micros <= 0 else f"{micros // 1000}ms"
    for at, (size, unit) in enumerate(_STEPS):
        if seconds >= size:
            first = f"{seconds // size}{unit}"
            rest = seconds % size
            if at + 1 == len(_STEPS) or not rest // _STEPS[at + 1][0]:
                return first
            return f"{first} {rest // _STEPS[at + 1][0]}{_STEPS[at + 1][1]}"
    raise AssertionError("a second is the smallest step")


def age(at: object, now: Instant) -> Html:
    """Return how long ago an instant was, or how soon it will be, with the instant as title."""
    if not isinstance(at, int):
        return el("span", _DASH, class_="none")
    apart = now - at
    shown = f"in {duration(-apart)}" if apart < 0 else duration(apart)
    return el("time", shown, datetime=show_instant(Instant(at)), title=show_instant(Instant(at)))


def moment(at: object, now: Instant, *, exact: bool = False) -> Html:
    """Return an instant to the second, with the date unless it is of the last day.

    `exact`: with milliseconds."""
    if not isinstance(at, int):
        return el("span", _DASH, class_="none")
    whole = show_instant(Instant(at))
    date, _, clock = whole.partition("T")
    clock = clock[: 12 if exact else 8]
    shown = clock if abs(now - at) < _DAY * SECOND // 2 else f"{date} {clock[:8]}"
    return el("time", shown, datetime=whole, title=whole)


def when(text: str, now: Instant) -> Html:
    """Return an instant of a sentence to the second, with how far it is from now."""
    at = Instant(int(datetime.fromisoformat(text).timestamp()) * SECOND)
    apart = now - at
    far = f"in {duration(-apart)}" if apart < 0 else f"{duration(apart)} ago" if apart else "now"
    date, _, clock = text.partition("T")
    shown = clock[:8] if abs(apart) < _DAY * SECOND // 2 else f"{date} {clock[:8]}"
    return el("time", f"{shown} ({far})", datetime=text, title=text)


def size(value: object) -> Html:
    """Return a size in bytes with a binary unit and three digits."""
    if not isinstance(value, int):
        return el("span", _DASH, class_="none")
    shown, unit, left = str(value), "B", float(value)
    for name in _UNITS:
        if left < _UNIT:
            break
        left /= _UNIT
        shown, unit = f"{left:.1f}" if left < 100 else f"{left:.0f}", name  # noqa: PLR2004
    return el("span", f"{shown} {unit}", class_="num", title=f"{value} bytes")


def ident(value: object, path: str = "", query: Mapping[str, object] | None = None) -> Html:
    """Return the first part of an id, which names it among those of a page, perhaps as a link."""
    if not value:
        return el("span", _DASH, class_="none")
    whole = str(value)
    code = el("code", whole[:8], title=whole)
    return link(path, code, query) if path else code


def name(value: object, path: str = "", query: Mapping[str, object] | None = None) -> Html:
    """Return a name, which may contain anything, isolated from the text around it."""
    if value in (None, ""):
        return el("span", _DASH, class_="none")
    short = " short" if len(str(value)) <= _SHORT else ""
    shown = el("bdi", clipped(str(value)), class_=f"name{short}")
    return link(path, shown, query) if path else shown


def clipped(value: str, most: int = LONGEST) -> str:
    """Return the text, cut off after `most` characters."""
    return value if len(value) <= most else value[: most - 1] + "…"


def sentence(value: object, most: int = LONGEST) -> Html:
    """Return a sentence of the daemon or an error on one line, or a dash."""
    if value in (None, ""):
        return el("span", _DASH, class_="none")
    shown = _FRACTION.sub(r"\1Z", " ".join(str(value).split()))
    return el("span", clipped(shown, most), class_="said")


_FRACTION: Final = re.compile(r"\b(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+Z")
"""An instant with microseconds, as sentences of the daemon have it."""
_DELETES: Final = re.compile(
    r"^rm |\bqueue cure\b|\bgroup (discard|end)\b|\bclean-up\b|--cleanup\b|\bpurge\b"
)
"""Commands after which messages or files are gone."""


def command(words: str) -> Html:
    """Return a command to paste, with a button that copies it; one that deletes is marked."""
    return el(
        "span",
        badge("deletes", "bad") if _DELETES.search(words) else None,
        el("code", words, class_="mend"),
        el("button", "copy", type="button", class_="copy", data_copy=words, hidden=True),
        class_="command",
    )


def badge(word: str, tone: str = "") -> Html:
    """Return a word in a frame; tone: bad, warn, good or nothing."""
    return el("span", word, class_=f"badge {tone}".strip())


MONITOR_STATES: Final = {
    "INACTIVE": "waits for messages",
    "NOTIFIED": "a reader was started",
    "RECEIVES_OCCURRING": "readers receive",
    "FAILED_BACKOFF": "pauses after a failure",
    "DROPPED": "ended",
}
_CONDITIONS: Final = {
    "A": "yes: messages wait, and no reader runs",
    "B": "yes: messages wait although readers run",
    "none: no messages ready": "no: no message is ready",
    "none: the clock of condition B has not run down": (
        "no: the readers that run are given a few seconds"
    ),
}


def monitor_state(state: object) -> str:
    """Return the state of a queue monitor in plain words."""
    return MONITOR_STATES.get(str(state).upper(), str(state).lower().replace("_", " "))


def another_reader(necessary: object) -> str:
    """Return whether another reader is needed, and why not, in plain words."""
    said = str(necessary or "")
    return _CONDITIONS.get(said) or said.replace("none: ", "no: ", 1)


def lines(value: object, most: int = 20_000) -> Html:
    """Return a text of several lines, such as a traceback, as it is."""
    shown = [clipped(one, most) for one in str(value)[:most].splitlines()]
    return el("pre", join(*(join(one, Html("\n")) for one in shown)), tabindex="0")
