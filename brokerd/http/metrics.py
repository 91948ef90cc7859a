"""Metrics: `/metrics` for Prometheus (MON-31).

Reads:  the figures of the instance.      Calls: nothing.
"""

from aiohttp import web

from brokerd.http.reads import Reads


def routes(_reads: Reads) -> list[web.RouteDef]:
    """Return the path for Prometheus."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text="")

    return [web.get("/metrics", metrics)]
