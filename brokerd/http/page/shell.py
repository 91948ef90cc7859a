"""Shell of the page: the document around a section, its menu, and the page of an error (MON-40).

PURE.   Reads: values.      Calls: `html`, `words`.
Never:  puts script or style into the document: the policy of the listener forbids both.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from brokerd.clock import Instant, show_instant
from brokerd.http.page.html import Child, Html, el, join
from brokerd.http.page.words import link, url

MENU: Final = (
    ("/", "Now"),
    ("/queues", "Queues"),
    ("/dialogs", "Dialogs"),
    ("/parked", "Parked"),
    ("/network", "Network"),
    ("/readers", "Readers"),
)


class Frame(NamedTuple):
    """The parts of the document around a section."""

    title: str
    path: str
    """Path of the section in the menu."""
    instance: str
    principal: str
    now: Instant
    assets: Mapping[str, str]
    """URL of each static file, by name."""
    json: str = ""
    """URL of the same section as JSON; empty = there is none."""
    is_live: bool = True
    """Whether the section is fetched again from time to time."""
    notice: str = ""
    """The notice of a deed that was done just now."""


def document(frame: Frame, content: Child) -> bytes:
    """Return the whole document."""
    head = _head(
        f"{frame.title} · {frame.instance} · brokerd",
        frame.assets,
        el("script", type="module", src=frame.assets["page.js"]),
    )
    main = el(
        "main",
        el("p", frame.notice, class_="notice", role="status") if frame.notice else None,
        el("h1", frame.title),
        content,
        id="main",
        tabindex="-1",
        data_live=frame.is_live,
    )
    body = el(
        "body",
        el("a", "Skip to the content", href="#main", class_="skip"),
        _header(frame),
        main,
        _footer(frame),
    )
    return _whole(head, body)


def stranger(reason: str, assets: Mapping[str, str]) -> bytes:
    """Return the document for a browser that was not let in: it names nothing of the instance."""
    content = join(
        el("h1", "You are not let in"),
        el("p", f"{reason[0].upper()}{reason[1:]}.", class_="said failure"),
        el(
            "p",
            "On the daemon's machine, run ",
            el("code", "brokerd page", class_="mend"),
            " and open the address that it prints. It lets one browser in, once, within ten "
            "minutes.",
        ),
        el("p", el("a", "Open the page", href=url("/")), " if this browser has been let in."),
    )
    header = el("header", el("div", el("span", "brokerd", class_="brand"), class_="who"))
    body = el("body", header, el("main", content, id="main"))
    return _whole(_head("Not let in · brokerd", assets), body)


def _head(title: str, assets: Mapping[str, str], *more: Html) -> Html:
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="same-origin"),
        el("title", title),
        el("link", rel="icon", href=assets["icon.svg"], type="image/svg+xml"),
        el("link", rel="stylesheet", href=assets["page.css"]),
        *more,
    )


def _whole(head: Html, body: Html) -> bytes:
    return f"<!doctype html>\n{el('html', head, body, lang='en')}".encode()


def _header(frame: Frame) -> Html:
    items = [
        el("li", link(path, label, aria_current="page" if path == frame.path else None))
        for path, label in MENU
    ]
    search = el(
        "form",
        el("label", "Search dialogs", for_="search", class_="unseen"),
        el(
            "input",
            type="search",
            name="q",
            id="search",
            placeholder="id, service or header",
            autocomplete="off",
            maxlength="512",
        ),
        el("kbd", "/", aria_hidden="true"),
        role="search",
        action="/dialogs",
        method="get",
    )
    return el(
        "header",
        el(
            "div",
            el("span", "brokerd", class_="brand"),
            el("bdi", frame.instance, class_="name"),
            class_="who",
        ),
        el("nav", el("ul", items), aria_label="Sections"),
        search,
    )


def _footer(frame: Frame) -> Html:
    at = show_instant(frame.now)
    return el(
        "footer",
        el("span", "as of ", el("time", at[11:19], " UTC", datetime=at, id="as-of")),
        el("span", "you are ", el("bdi", frame.principal)),
        el("button", "pause", type="button", id="pause", hidden=True, aria_pressed="false"),
        el("a", "JSON", href=frame.json) if frame.json else None,
    )


# Pieces that sections share.


def section(title: Child, *content: Child, id_: str = "", **attributes: object) -> Html:
    """Return a part of a section with a heading."""
    return el("section", el("h2", title), *content, id=id_ or None, **attributes)


class Column(NamedTuple):
    """A column of a table."""

    head: str
    is_number: bool = False
    is_wide: bool = False
    """Whether the cell has a line of its own on a phone."""


def table(
    caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Child]], empty: str = ""
) -> Html:
    """Return a table, which a phone shows as cards; `empty`: what to say without rows."""
    if not rows:
        return el("p", empty or "none", class_="empty")
    head = [
        el("th", one.head, scope="col", class_="n" if one.is_number else None) for one in columns
    ]
    body = [
        el("tr", [_cell(*one, at) for at, one in enumerate(zip(columns, row, strict=True))])
        for row in rows
    ]
    shown = el(
        "table",
        el("caption", caption, class_="unseen"),
        el("thead", el("tr", head)),
        el("tbody", body),
    )
    return el("div", shown, class_="table")


def _cell(column: Column, content: Child, at: int) -> Html:
    classes = ["n"] * column.is_number + ["wide"] * column.is_wide
    tag = "td" if at else "th"
    return el(
        tag,
        content,
        class_=" ".join(classes) or None,
        data_head=column.head,
        scope=None if at else "row",
    )


def facts(*pairs: tuple[str, Child]) -> Html:
    """Return names and values as a list."""
    return el(
        "dl", [el("div", el("dt", name), el("dd", value)) for name, value in pairs], class_="facts"
    )


def tiles(*shown: tuple[str, Child, Child]) -> Html:
    """Return figures, each with its name and a remark."""
    return el(
        "ul",
        [
            el(
                "li",
                el("span", value, class_="figure"),
                el("span", name, class_="label"),
                el("span", remark, class_="remark") if remark else None,
            )
            for name, value, remark in shown
        ],
        class_="tiles",
    )


def choice(
    name: str, path: str, query: Mapping[str, object], options: Sequence[str]
) -> Html | None:
    """Return links that set one part of the query; None with fewer than two options."""
    if len(options) < 2:  # noqa: PLR2004  # one is no choice
        return None
    chosen = query.get(name)
    kept = {key: value for key, value in query.items() if key not in (name, "after")}
    items = [
        el(
            "li",
            link(
                path,
                el("bdi", one),
                {**kept, name: one},
                aria_current="true" if one == chosen else None,
            ),
        )
        for one in options
    ]
    return el("ul", items, class_="choice", aria_label=name)


def field(name: str, label: str, value: str = "", **attributes: object) -> Html:
    """Return a labelled input of a form."""
    ident = f"field-{name}"
    return el(
        "p",
        el("label", label, for_=ident),
        el(
            "input", type="text", name=name, id=ident, value=value, autocomplete="off", **attributes
        ),
        class_="field",
    )


def pager(path: str, query: Mapping[str, object], after: str | None) -> Html | None:
    """Return the links to the first and the next page; None if this page is all."""
    if after is None and not query.get("after"):
        return None
    first = {name: value for name, value in query.items() if name != "after"}
    return el(
        "nav",
        link(path, "First page", first, rel="first") if query.get("after") else None,
        link(path, "Next page", {**first, "after": after}, rel="next") if after else None,
        class_="pager",
        aria_label="Pages",
    )


def failure(status: int, message: str, hint: str) -> Html:
    """Return the content of an error's page."""
    return join(
        el("p", message, class_="said failure"),
        el("p", hint, class_="said") if hint else None,
        el("p", el("a", "Back to Now", href=url("/"))),
    )
