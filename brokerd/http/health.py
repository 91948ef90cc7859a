"""Health: `/livez` says whether the process answers, `/readyz` whether it can do its work (MON-30).

Reads:  the condition of the instance, the state of its stores.      Calls: nothing.
Never:  looks at a peer or a disk for `/livez`: a supervisor must not restart a daemon because of
        them. Shows a reason to a stranger, who may learn which check failed and nothing else.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from aiohttp import web

from brokerd.http.reads import CALLER, Reads
from brokerd.telemetry.status import StoreStatus


class Check(msgspec.Struct, frozen=True):
    """One condition of being ready."""

    name: str
    ok: bool = True
    reason: str = ""
    """Empty = the check is fulfilled."""


CHECKS: Final = {
    "condition": "the daemon has started, and does not stop",
    "stores": "every store is open, and writes within `store.slow_after`",
    "disk": "the disks of the stores have more room than `store.min_free`",
    "delivery": "delivery is on in every broker",
    "endpoint": "it listens for peers where the settings say",
}
"""The checks of `/readyz`, with what each demands."""
_OF_STATE: Final = {"full": "disk", "disabled": "delivery"}
"""Check that a state of a store belongs to; any other fault belongs to `stores`."""


def checks(
    condition: str, stores: Iterable[StoreStatus] | None, listen_error: str
) -> Iterator[Check]:
    """Yield the checks of `/readyz`. `stores`: None = they are not open yet."""
    yield Check("condition", condition == "ready", f"the daemon is {condition}")
    if stores is None:
        yield Check("stores", ok=False, reason="the stores are not open yet")
        return
    found: dict[str, list[str]] = {"stores": [], "disk": [], "delivery": []}
    for one in stores:
        if one.state != "ok":
            why = f": {one.reason}" if one.reason else ""
            found[_OF_STATE.get(one.state, "stores")].append(f"{one.broker} is {one.state}{why}")
    for name, reasons in found.items():
        yield Check(name, not reasons, "; ".join(reasons))
    yield Check("endpoint", not listen_error, listen_error)


def routes(reads: Reads) -> list[web.RouteDef]:
    """Return the paths for supervisors and load balancers."""

    async def livez(_request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def readyz(request: web.Request) -> web.Response:
        excluded = set(request.query.getall("exclude", []))
        if unknown := sorted(excluded - CHECKS.keys()):
            known = ", ".join(CHECKS)
            raise web.HTTPBadRequest(text=f"there is no check {unknown[0]!r}; there is: {known}\n")
        sources = reads.sources
        found = [
            one
            for one in checks(
                reads.condition,
                None if sources is None else sources.state.stores(),
                "" if sources is None else sources.state.listen_error,
            )
            if one.name not in excluded
        ]
        is_known = CALLER in request
        if not is_known:
            found = [
                Check(one.name, one.ok, "" if one.ok else "ask `brokerd status`") for one in found
            ]
        return _answer(request, found)

    return [web.get("/livez", livez), web.get("/readyz", readyz)]


def _answer(request: web.Request, found: list[Check]) -> web.Response:
    failed = [one for one in found if not one.ok]
    status = 503 if failed else 200
    if "json" in request.headers.get("Accept", ""):
        said = [
            {"name": one.name, "ok": one.ok} | ({} if one.ok else {"reason": one.reason})
            for one in found
        ]
        state = "not_ready" if failed else "ready"
        return web.json_response({"status": state, "checks": said}, status=status)
    if "verbose" in request.query:
        lines = [f"[{'ok' if one.ok else 'FAILED'}] {_line(one)}" for one in found]
    else:
        lines = [_line(one) for one in failed]
    verdict = "not ready" if failed else "ready"
    return web.Response(status=status, text="\n".join([verdict, *lines]) + "\n")


def _line(one: Check) -> str:
    return one.name if one.ok or not one.reason else f"{one.name}: {one.reason}"
