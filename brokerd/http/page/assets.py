"""Assets of the page: its style, its script and its icon, each under a name that changes with it.

Reads:  the files in `static/`, once.      Calls: nothing.
Never:  reads a path that comes from a request: only the names found at the start are answered.
"""

from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from brokerd.http.guard import STATIC

FOLDER: Final = Path(__file__).resolve().parent / "static"
PATH: Final = STATIC
_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_FOR_EVER: Final = "private, max-age=31536000, immutable"


class Asset(msgspec.Struct, frozen=True):
    """One file."""

    body: bytes
    content_type: str
    tag: str


class Assets:
    """The files of the page, in memory."""

    def __init__(self, folder: Path = FOLDER) -> None:
        """Read the files; their names get a part of their hash."""
        self.urls: dict[str, str] = {}
        """URL of each file, by its name."""
        self._by_name: dict[str, Asset] = {}
        for path in sorted(folder.iterdir()):
            if path.suffix not in _TYPES:
                continue
            body = path.read_bytes()
            tag = sha256(body).hexdigest()[:16]
            named = f"{path.stem}.{tag}{path.suffix}"
            self.urls[path.name] = PATH + named
            self._by_name[named] = Asset(body, _TYPES[path.suffix], tag)

    def answer(self, request: web.Request) -> web.Response:
        """Answer a request for a file: the browser may keep it, as another one has another name."""
        found = self._by_name.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound(text="there is no such file\n")
        headers = {"ETag": f'"{found.tag}"', "Cache-Control": _FOR_EVER}
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=found.body, content_type=found.content_type, charset="utf-8", headers=headers
        )
