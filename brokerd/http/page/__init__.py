"""The page for browsers.

Reads:  views and status, with the rights of the caller.      Calls: nothing that changes anything.
"""

from aiohttp import web

from brokerd.http.reads import Reads, caller_of


def routes(reads: Reads) -> list[web.RouteDef]:
    """Return the paths of the page."""

    async def now(request: web.Request) -> web.Response:
        session = await caller_of(request).session()
        status = await session.status()
        return web.Response(text=f"{reads.instance} is {status['state']}\n")

    return [web.get("/", now)]
