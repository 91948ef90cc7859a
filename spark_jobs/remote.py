"""Remote places: fetches what a run needs from a landing behind a URL, and publishes its pages.

Reads:  the lake's records, and the landing.   Calls: `fsspec`, and what it needs for the URL.
Never:  fetches a segment, or its manifest, that the lake has taken in; lists any directory but that
        of the landing and those of the days a run looks at. Nor changes the landing.
Fails:  `RemoteError` if a URL cannot be used. A file that arrives incomplete does not match its
        manifest, is set aside, and is fetched again by the next run. A publication that is cut off
        is completed by the next run.
"""

from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any

from spark_jobs.lake import Lake
from spark_jobs.landing import MANIFEST, PACKED, is_date


class RemoteError(Exception):
    """A URL cannot be used; the text gives the reason."""


def is_url(text: str) -> bool:
    """Return whether the text is a URL rather than a path."""
    return "://" in text


class RemoteLanding:
    """A landing behind a URL, and the directory to which its files are fetched."""

    def __init__(self, url: str, directory: Path) -> None:
        """Connect to the landing, and make a directory for each of its days.

        Raises:
            RemoteError: the URL cannot be used here, or there is nothing.
        """
        self.directory = directory
        self._system, self._root = _connect(url)
        try:
            names = [PurePosixPath(one).name for one in self._system.ls(self._root, detail=False)]
        except FileNotFoundError as error:
            raise RemoteError(f"there is nothing at {url}") from error
        self._days = sorted(name for name in names if is_date(name))
        directory.mkdir(parents=True)
        for day in self._days:
            (directory / day).mkdir()

    def fetch(
        self, lake: Lake, first: str, last: str, *, version: int, anew: Collection[str]
    ) -> int:
        """Fetch what the lake does not have of the days from `first` to `last`.

        Fetch all that has landed of the days `anew`, and of those that the lake has in the form of
        another `version`. Return the number of fetched segments.
        """
        wanted: list[str] = []
        for day in self._days:
            if first <= day <= last:
                said = lake.current(day) or {}
                keeps = said.get("version") == version and day not in anew
                taken = {row[0] for row in said.get("taken", ())} if keeps else set[str]()
                wanted += self._missing(day, taken)
        if wanted:
            self._system.get(
                [f"{self._root}/{name}" for name in wanted],
                [str(self.directory / name) for name in wanted],
            )
        return sum(name.endswith(PACKED) for name in wanted)

    def _missing(self, day: str, taken: Collection[str]) -> list[str]:
        """Return the manifests and segments that have landed of a day, without those `taken`."""
        paths = self._system.ls(f"{self._root}/{day}", detail=False)
        there = {PurePosixPath(path).name for path in paths}
        found: list[str] = []
        for name in sorted(there):
            segment = name.removesuffix(MANIFEST) + PACKED
            if name.endswith(MANIFEST) and not name.startswith(".") and segment not in taken:
                found += [f"{day}/{one}" for one in (name, segment) if one in there]
        return found


class RemotePages:
    """The place behind a URL where the pages of reports are published."""

    def __init__(self, url: str) -> None:
        """Connect to the place.

        Raises:
            RemoteError: the URL cannot be used here.
        """
        self._system, self._root = _connect(url)

    def publish(self, reports: Path, page: str, summary: str) -> list[str]:
        """Copy each report, and each page of a week or year, that is not there as it is here.

        Return the names of the reports. The file `summary` of a report is copied last: it names the
        input of the page, so a copy that is cut off does not count as there. Pages of weeks and
        years come after the reports to which they lead.
        """
        found = sorted(path.parent for path in reports.glob(f"[!.]*/{summary}"))
        changed = [home for home in found if not self._has(home, page, summary)]
        for home in changed:
            self._system.makedirs(f"{self._root}/{home.name}", exist_ok=True)
            files = (path for path in home.iterdir() if path.is_file())
            for path in sorted(files, key=lambda path: (path.name == summary, path.name)):
                self._system.put_file(str(path), f"{self._root}/{home.name}/{path.name}")
        for span in sorted(reports.glob("*.html")):
            if not self._is_same(span):
                self._system.makedirs(self._root, exist_ok=True)
                self._system.put_file(str(span), f"{self._root}/{span.name}")
        return [home.name for home in changed]

    def _is_same(self, span: Path) -> bool:
        try:
            there: bytes = self._system.cat_file(f"{self._root}/{span.name}")
        except FileNotFoundError:
            return False
        return there == span.read_bytes()

    def _has(self, home: Path, page: str, summary: str) -> bool:
        at = f"{self._root}/{home.name}"
        try:
            return bool(
                self._system.cat_file(f"{at}/{summary}") == (home / summary).read_bytes()
                and self._system.size(f"{at}/{page}") == (home / page).stat().st_size
            )
        except FileNotFoundError:
            return False


def _connect(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    scheme = url.partition("://")[0]
    try:
        import fsspec  # noqa: PLC0415  # only installed for such landings

        system, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        needed = f"pip install 'brokerd[ship]', and what fsspec needs for {scheme}"
        raise RemoteError(f"{url} cannot be used: {error} ({needed})") from error
    except (ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise RemoteError(f"{url} cannot be used: {reason}") from error
    system.invalidate_cache()
    return system, str(root).rstrip("/")
