"""Sections: the URLs of the page, as HTML and as JSON, and its deeds (MON-40).

Reads:  requests.      Calls: the modules of the sections, `deeds`, `shell`.
Never:  answers a stranger (`guard` refuses one before), or changes anything by GET.
Fails:  a refusal is shown as a page, with the status that belongs to it.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from brokerd.clock import Instant, dated, show_instant
from brokerd.errors import BrokerError
from brokerd.http.guard import status_of
from brokerd.http.page import (
    deeds,
    dialog,
    dialogs,
    findings,
    network,
    now,
    parked,
    queues,
    readers,
)
from brokerd.http.page.assets import PATH, Assets
from brokerd.http.page.desk import Desk, Query, Row
from brokerd.http.page.html import Child, Html
from brokerd.http.page.shell import Frame, document, failure, stranger
from brokerd.http.page.words import clipped, url
from brokerd.http.reads import Reads, caller_of
from brokerd.units import printable_json

Load = Callable[[Desk, Query], Awaitable[Row]]
Draw = Callable[[Row, Query, Instant], Html]


class Section(NamedTuple):
    """One section of the page."""

    path: str
    title: str
    load: Load
    draw: Draw
    menu: str = ""
    """Path of the section in the menu; empty = its own."""
    name: str = ""
    """Part of the query that the title names; empty = none."""


SECTIONS: Final = (
    Section("/", "Now", now.load, now.draw),
    Section("/queues", "Queues", queues.load, queues.draw),
    Section("/queue", "Queue", queues.load_one, queues.draw_one, "/queues", "name"),
    Section("/dialogs", "Dialogs", dialogs.load, dialogs.draw),
    Section("/dialog", "Dialog", dialog.load, dialog.draw, "/dialogs", "handle"),
    Section("/parked", "Parked", parked.load, parked.draw),
    Section("/group", "Group", parked.load_one, parked.draw_one, "/parked", "group"),
    Section("/network", "Network", network.load, network.draw),
    Section("/readers", "Readers", readers.load, readers.draw),
    Section(findings.PATH, "Finding", findings.load, findings.draw, "/", "code"),
)
_TITLE: Final = 80
_MENU_OF_DEED: Final = {"switch": "/queues", "body": "/queues"}
_HTML: Final = "text/html"


def routes(reads: Reads) -> list[web.RouteDef]:
    """Return the paths of the page."""
    page = _Page(reads, Assets())
    found = [web.get(PATH + "{name}", page.asset)]
    for one in SECTIONS:
        found.append(web.get(one.path, page.html_of(one)))
        found.append(web.get(json_path(one.path), page.json_of(one)))
    found.append(web.get("/confirm/{deed}", page.confirm))
    found.append(web.post("/do/{deed}", page.perform))
    found += [web.post(path, page.showing(show)) for path, show in deeds.SHOW.items()]
    return found


def stranger_page() -> Callable[[str], bytes]:
    """Return what makes the page for a browser that was not let in, from the reason."""
    urls = Assets().urls
    return lambda reason: stranger(reason, urls)


def json_path(path: str) -> str:
    """Return the path of a section as JSON."""
    return "/now.json" if path == "/" else f"{path}.json"


class _Page:
    """The handlers of all paths."""

    def __init__(self, reads: Reads, assets: Assets) -> None:
        self._reads = reads
        self._assets = assets

    async def asset(self, request: web.Request) -> web.Response:
        """Answer with a file of the page."""
        return self._assets.answer(request)

    def html_of(self, section: Section) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Return the handler of a section as HTML."""

        async def answer(request: web.Request) -> web.Response:
            desk, query = self._desk(request), _first_of_each(request.query)
            title, menu = section.title, section.menu or section.path
            if section.name and query.get(section.name):
                title = f"{title} {clipped(query[section.name], _TITLE)}"
            try:
                found = await section.load(desk, query)
                content: Child = section.draw(found, query, desk.now)
            except BrokerError as error:
                return self._failed(desk, menu, error)
            frame = self._frame(desk, title, menu, notice=deeds.DONE.get(query.get("done", ""), ""))
            kept = {name: value for name, value in query.items() if name != "done"}
            json = url(json_path(section.path), kept)
            return _page(document(frame._replace(json=json), content))

        return answer

    def json_of(self, section: Section) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Return the handler of a section as JSON; `guard` answers its errors."""

        async def answer(request: web.Request) -> web.Response:
            found = await section.load(self._desk(request), _first_of_each(request.query))
            found.pop("joined", None)  # its parts are there
            encoded = msgspec.json.encode(dated(_plain(found)))
            return web.Response(body=printable_json(encoded), content_type="application/json")

        return answer

    async def confirm(self, request: web.Request) -> web.Response:
        """Show what a deed will do, and ask whether it is meant."""
        desk, query = self._desk(request), _first_of_each(request.query)
        deed = request.match_info["deed"]
        if deed not in deeds.CONFIRM:
            raise web.HTTPNotFound(text="there is no such deed\n")
        return await self._show_question(
            desk, _MENU_OF_DEED.get(deed, "/parked"), deeds.CONFIRM[deed], query
        )

    def showing(self, show: deeds.Confirm) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Return the handler of a page that shows a body, by POST."""

        async def answer(request: web.Request) -> web.Response:
            sent = _first_of_each(await request.post())
            return await self._show_question(self._desk(request), "/queues", show, sent)

        return answer

    async def _show_question(
        self, desk: Desk, menu: str, ask: deeds.Confirm, query: Query
    ) -> web.Response:
        try:
            asked = await ask(desk, query)
        except BrokerError as error:
            return self._failed(desk, menu, error)
        frame = self._frame(desk, asked.title, menu)
        return _page(document(frame._replace(is_live=False), asked.content))

    async def perform(self, request: web.Request) -> web.Response:
        """Do a deed, and go on to the page that shows what has come of it."""
        desk, sent = self._desk(request), _first_of_each(await request.post())
        deed = request.match_info["deed"]
        if deed not in deeds.PERFORM:
            raise web.HTTPNotFound(text="there is no such deed\n")
        try:
            there = await deeds.PERFORM[deed](desk, sent)
        except BrokerError as error:
            return self._failed(desk, _MENU_OF_DEED.get(deed, "/parked"), error)
        desk.look_again()
        return web.Response(status=303, headers={"Location": there})

    def _desk(self, request: web.Request) -> Desk:
        return Desk(self._reads, caller_of(request))

    def _frame(self, desk: Desk, title: str, menu: str, *, notice: str = "") -> Frame:
        return Frame(
            title=title,
            path=menu,
            instance=desk.instance,
            principal=desk.caller.name,
            now=desk.now,
            assets=self._assets.urls,
            notice=notice,
        )

    def _failed(self, desk: Desk, menu: str, error: BrokerError) -> web.Response:
        frame = self._frame(desk, "That did not work", menu)._replace(is_live=False)
        status = status_of(error)
        content = failure(status, error.message, error.hint or "")
        return _page(document(frame, content), status)


def _page(body: bytes, status: int = 200) -> web.Response:
    return web.Response(status=status, body=body, content_type=_HTML, charset="utf-8")


def _first_of_each(given: Any) -> dict[str, str]:  # noqa: ANN401  # a query, or a form
    found: dict[str, str] = {}
    for name, value in given.items():
        if isinstance(value, str):  # a file is not asked for
            found.setdefault(name, value)
    return found


def _plain(value: Any) -> Any:  # noqa: ANN401  # any value of a section
    """Return a value as maps and lists, with bytes as hexadecimal text."""
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    return _texts(plain)


def _texts(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {
            str(key): show_instant(Instant(one)) if key == "at" and one else _texts(one)
            for key, one in value.items()
        }
    return [_texts(one) for one in value] if isinstance(value, list | tuple) else value
