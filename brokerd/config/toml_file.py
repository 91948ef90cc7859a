"""TOML files whose problems name their place: the file, the line, the key, the nearest known key.

Reads:  one file, whole, up to a limit.       Calls: nothing.
Never:  knows what the keys mean (`loading.py` and `brokerd.objects` do) or follows a reference
        to a file.
Fails:  `ConfigError` for a file that cannot be read or is not TOML (BI-C1, BI-C2). The problems
        of the content are collected in `Problems`, and reported all at once (BI-C3).
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from brokerd.errors import BrokerError, ConfigError, Refusal

MAX_FILE: Final = 1024 * 1024
"""Size of the largest configuration file, in bytes (BI-C1)."""

_PLACE = re.compile(r"^(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end.*)\)$")
_HEADER = re.compile(r"^\s*\[(\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")
_TAB_WIDTH = 4


class TomlFile(msgspec.Struct, frozen=True):
    """A file that was read and is TOML."""

    path: Path
    text: str
    data: dict[str, object]

    def line_of(self, key_path: str) -> int | None:
        """Return the line of a key such as `transport.idle_close` or `route[2].address`.

        None: not found. A key is found if it has a line of its own under its header, as nearly
        all keys have; for a key inside an inline table, the line of the table is returned.
        """
        return _line_of(self.text, key_path)

    def show(self) -> str:
        """Return the name of the file, for messages."""
        return str(self.path)


class Problems:
    """The problems found so far, each with the key path that it concerns."""

    def __init__(self, source: TomlFile | None = None) -> None:
        self._source = source
        self._found: list[tuple[int, str, Callable[..., BrokerError] | None]] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(
        self, key_path: str, message: str, *, error: Callable[..., BrokerError] | None = None
    ) -> None:
        """Record a problem with the value at `key_path`.

        `error`: the error to raise if this is the only problem and `raise_if_any` gets `exact`."""
        line = self._source.line_of(key_path) if self._source else None
        place = f"line {line}: " if line else ""
        self._found.append((line or 0, f"{place}{key_path}: {message}", error))

    @property
    def lines(self) -> list[str]:
        """One line for each problem, in the order of the file."""
        return [text for _, text, _ in sorted(self._found, key=lambda found: found[0])]

    def raise_if_any(
        self, what: str, *, error: type[Refusal], hint: str, exact: bool = False
    ) -> None:
        """Raise `error` with all problems, one per line; return if there are none.

        `exact`: raise a problem that is the only one as its own error, if it has one."""
        if exact and len(self._found) == 1:
            _, text, own = self._found[0]
            raise own(text) if own is not None else error(text, hint=hint or None)
        if self._found:
            raise error("\n".join([what, *self.lines]), hint=hint or None)


def read(path: Path) -> TomlFile:
    """Read a TOML file.

    Raises:
        ConfigError: the file cannot be read, is too large, is not UTF-8 (BI-C1), or is not TOML
            (BI-C2).
    """
    text = _text(path)
    try:
        return TomlFile(path=path, text=text, data=tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        hint = "correct the line that is shown; text is written in quotes"
        if "twice" in str(error) or "overwrite" in str(error):
            hint = "where there may be several write [[queue]] for each; a key stands once in each"
        raise ConfigError(_pointed(path, text, str(error)), hint=hint) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: values are nested too deeply") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean "x"?` with the nearest known word, or "" if none is near."""
    by_fold = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.6)
    return f'; did you mean "{by_fold[near[0]]}"?' if near else ""


def unknown_keys(
    table: Mapping[str, object], known: Iterable[str], *, under: str, problems: Problems
) -> None:
    """Record each unknown key of `table` as a problem, with the nearest known key."""
    known = list(known)
    for key in table:
        if key not in known:
            place = f"{under}.{key}" if under else key
            problems.add(place, f"unknown key{did_you_mean(key, known)}")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror or error}",
            hint="is the path right, and may your user read the file?",
        ) from error
    if len(raw) > MAX_FILE:
        raise ConfigError(f"{path}: larger than {MAX_FILE} bytes, which no configuration is")
    if raw.startswith(b"\xef\xbb\xbf"):
        raise ConfigError(f"{path}: begins with a byte order mark", hint="save it as plain UTF-8")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line} is not UTF-8", hint="save it as UTF-8") from error
    if not text.strip():
        raise ConfigError(
            f"{path}: the file is empty",
            hint="give the path of another file, or write tables such as [instance] into it",
        )
    return text


def _pointed(path: Path, text: str, message: str) -> str:
    """Return the TOML reader's message with the line it is about, and a caret under the column."""
    found = _PLACE.match(message)
    lines = text.splitlines()
    if found is None:
        return f"{path}: {message}"
    number = int(found["line"]) if found["line"] else max(len(lines), 1)
    shown = lines[number - 1] if number <= len(lines) else ""
    column = int(found["column"]) if found["column"] else len(shown) + 1
    before = shown[: column - 1].expandtabs(_TAB_WIDTH)
    what = found["what"][:1].lower() + found["what"][1:]
    return "\n".join(
        [
            f"{path}:{number}:{column}: not TOML: {what}",
            f"{number:>5} | {shown.expandtabs(_TAB_WIDTH)}",
            f"      | {' ' * len(before)}^",
        ]
    )


def _line_of(text: str, key_path: str) -> int | None:
    best: tuple[int, int] | None = None
    seen: dict[str, int] = {}
    header = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _HEADER.match(line):
            header = _header_path(match[2], repeated=bool(match[1]), seen=seen)
            here = header
        elif match := _KEY.match(line):
            key = _bare(match[1])
            here = f"{header}.{key}" if header else key
        else:
            continue
        if key_path == here:
            return number
        if key_path.startswith((f"{here}.", f"{here}[")) and (best is None or len(here) > best[0]):
            best = (len(here), number)
    return best[1] if best else None


def _header_path(name: str, *, repeated: bool, seen: dict[str, int]) -> str:
    """Return the key path of a header.

    `[[route]]` is `route[1]`, then `route[2]`; a later `[route.x]` is `route[2].x`."""
    parts = [_bare(part) for part in name.split(".")]
    path = ""
    for at, part in enumerate(parts):
        path = f"{path}.{part}" if path else part
        last = at == len(parts) - 1
        if last and repeated:
            seen[path] = seen.get(path, 0) + 1
        if path in seen:
            path = f"{path}[{seen[path]}]"
    return path


def _bare(key: str) -> str:
    return key.strip().strip("\"'")
