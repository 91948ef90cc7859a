"""Cards: the findings of the doctor on the page, those that are alike as one (MON-46, MON-59).

PURE.   Findings in, HTML out.      Reads: the meanings of the codes.
Never:  leaves out a finding without saying how many are left out.
"""

import re
from collections.abc import Iterable, Iterator
from shlex import split
from typing import Final

from brokerd.admin.doctor.findings import Finding, Level
from brokerd.clock import Instant
from brokerd.http.page.findings import code_link
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.words import badge, clipped, command, ident, link, name, when
from brokerd.units import counted

_TONES: Final = {Level.ERROR: "bad", Level.WARNING: "warn", Level.INFO: ""}
_LONGEST: Final = 1000
_ID: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_INSTANT: Final = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_PARTS: Final = re.compile(
    rf"(?:\b(?P<noun>group|dialog) )?(?P<id>{_ID.pattern})|{_INSTANT.pattern}"
)
_KEY: Final = re.compile(r"^(routing|dialogs) \(\w+\)")
"""The key of the reason is for programs; the text has it in words."""
_QUEUE: Final = re.compile(r"^queue (.+) of broker (.+)$", re.DOTALL)
_OF_BROKER: Final = re.compile(r"^(dialogs|messages|routing|contract|service|route|store)\b.* of "
                               r"broker (.+)$", re.DOTALL)  # fmt: skip
_SECTIONS: Final = {
    "dialogs": "/dialogs",
    "messages": "/dialogs",
    "routing": "/dialogs",
    "route": "/network",
}


def alike(found: Iterable[Finding]) -> list[list[Finding]]:
    """Return the findings in order, with those together that differ in ids and numbers only."""
    kinds: dict[tuple[str, Level, str, str], list[Finding]] = {}
    for one in found:
        text = re.sub(r"\d+", "#", _INSTANT.sub("", _ID.sub("", one.text)))
        text = re.sub(r"# (\w+?)s\b", r"# \1", text)
        about = _ID.sub("", _KEY.sub(r"\1", one.about))
        kinds.setdefault((one.code, one.level, about, text), []).append(one)
    return list(kinds.values())


def cards(found: Iterable[Finding], now: Instant) -> Html:
    """Return the cards of findings as a list."""
    return el("ol", [_card(some, now) for some in alike(found)], class_="findings")


def _card(some: list[Finding], now: Instant) -> Html:
    one = some[0]
    broker = _broker(one)
    path, query = _there(one, broker)
    about: Child = name(_KEY.sub(r"\1", one.about))
    if (match := _ID.search(one.about)) is not None:
        start, end = match.span()
        about = join(one.about[:start], ident(match[0]), one.about[end:])
    return el(
        "li",
        el(
            "p",
            badge(one.level.value, _TONES[one.level]),
            " ",
            el("strong", link(path, about, query) if path else about),
            " ",
            code_link(one.code),
        ),
        el("p", _text(one.text, broker, now)),
        _others(some, one, broker),
        el("p", _text(one.mend, broker, now), class_="remark") if one.mend else None,
        [el("p", command(words)) for words in one.commands],
        class_=_TONES[one.level],
    )


def _others(some: list[Finding], one: Finding, broker: str) -> Html | None:
    """Return how many findings are like the first, and where all of them are."""
    more = f"and {counted(len(some) - 1, 'more finding')} like it: " if len(some) > 1 else ""
    if one.code == "D44" and broker and (more or " groups are parked" in one.text):
        return el("p", more, link("/parked", "all parked groups", {"broker": broker}))
    if not more:
        return None
    path, query = ("/dialogs", {"broker": broker}) if broker else ("/network", {})
    if not one.about.startswith("dialog"):
        path, query = _there(one, broker)
    return el("p", more, link(path, "all", query) if path else "brokerd doctor")


def _broker(one: Finding) -> str:
    """Return the broker that a finding is about, as its name or its commands say; or ""."""
    if (match := _QUEUE.match(one.about) or _OF_BROKER.match(one.about)) is not None:
        return match[2]
    if one.about.startswith("broker "):
        return one.about.removeprefix("broker ")
    for words in one.commands:
        try:
            parts = split(words)
        except ValueError:  # not one that a shell would take
            continue
        if "--broker" in parts[:-1]:
            return parts[parts.index("--broker") + 1]
    return ""


def _there(one: Finding, broker: str) -> tuple[str, dict[str, str]]:
    """Return the section about the thing that a finding names; "" if there is none."""
    about = one.about
    if (match := _QUEUE.match(about)) is not None:
        return "/queue", {"broker": match[2], "name": match[1]}
    if about.startswith("dialog ") and (match := _ID.search(about)) is not None:
        return "/dialog", {"broker": broker, "handle": match[0]}
    if about.startswith(("destination ", "endpoint ", "instance route ", "forwarder")):
        return "/network", {}
    if (match := _OF_BROKER.match(about)) is not None and match[1] in _SECTIONS:
        states = {"state": "ER"} if one.code == "D77" else {}
        return _SECTIONS[match[1]], {"broker": broker, **states}
    if about.startswith("broker ") and one.code == "D44":
        return "/parked", {"broker": broker}
    return "", {}


def _text(text: str, broker: str, now: Instant) -> Html:
    """Return a text with links at the dialogs and groups that it names, and with short times."""
    shown = clipped(" ".join(text.split()), _LONGEST)
    return el("span", *_pieces(shown, broker, now), class_="said")


def _pieces(text: str, broker: str, now: Instant) -> Iterator[Child]:
    at = 0
    for match in _PARTS.finditer(text):
        yield text[at : match.start()]
        at = match.end()
        if match["id"] is None:
            yield when(match[0], now)
        elif match["noun"] is None:
            yield ident(match["id"])
        else:
            key = "handle" if match["noun"] == "dialog" else "group"
            yield match["noun"] + " "
            yield ident(match["id"], f"/{match['noun']}", {"broker": broker, key: match["id"]})
    yield text[at:]
