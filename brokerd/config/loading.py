"""Configuration: makes one frozen settings tree from a TOML file and the environment.

Reads:  the file, then variables `BROKERD_SECTION__KEY`, which override the file.
Calls:  settings, toml_file.
Never:  opens a port or a store, reads objects (`brokerd.objects` does), or stops at the
        first problem.
Fails:  `ConfigError`, exit status 78, with all problems at once: key path, line, and for an
        unknown key the nearest known one (BI-C1 to BI-C3).
"""

import enum
import os
import re
import tomllib
import types
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from brokerd.config.bounds import Pattern, Range, Size, Span
from brokerd.config.field_docs import field_docs
from brokerd.config.settings import (
    Endpoint,
    Settings,
)
from brokerd.config.toml_file import Problems, TomlFile, did_you_mean, read, unknown_keys
from brokerd.config.whole_checks import check_whole, complaints
from brokerd.errors import ConfigError, InvalidArgument
from brokerd.units import parse_duration, parse_size, show_duration, show_size

__all__ = [
    "Loaded",
    "Settings",
    "altered_endpoint",
    "effective",
    "load",
    "meanings",
    "sections",
    "setting_texts",
    "show_value",
    "split_hint",
]

_T = TypeVar("_T")
_PREFIX: Final = "BROKERD_"
_SEPARATOR: Final = "__"
_HINT = (
    "correct what is named; every setting with its default and meaning is listed by: "
    "brokerd config show --explain, without a file"
)


class Loaded(msgspec.Struct, frozen=True):
    """Settings, with the origin of each."""

    settings: Settings
    origins: dict[str, str]
    """Key path to origin, for every key that is not at its default."""


class _Given(msgspec.Struct, frozen=True):
    value: object
    origin: str


def load(path: Path | None, *, environ: Mapping[str, str] | None = None) -> Loaded:
    """Load the settings: the environment overrides the file, and the file the defaults.

    Relative paths are relative to the directory of the file, even if the environment sets them;
    without a file, to the working directory.

    Raises:
        ConfigError: the settings have problems; the error names all of them.
    """
    source = read(path) if path is not None else None
    problems = Problems(source)
    given = _from_file(source, problems) if source else {}
    given |= _from_environment(os.environ if environ is None else environ, problems)
    base = path.parent if path is not None else Path()
    settings = _build(given, base=base.absolute(), problems=problems)
    what = f"{source.show() if source else 'environment'}: the configuration is wrong"
    problems.raise_if_any(what, error=ConfigError, hint=_HINT)
    return Loaded(settings=settings, origins={key: item.origin for key, item in given.items()})


def effective(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Return every setting as (key path, value as it would be written, origin), by section."""
    rows: list[tuple[str, str, str]] = []
    for section, kind in sections().items():
        part = getattr(loaded.settings, section)
        if part is None:
            continue
        for key, hint in get_type_hints(kind, include_extras=True).items():
            path = f"{section}.{key}"
            text = show_value(getattr(part, key), sized=_is_size(hint))
            rows.append((path, text, loaded.origins.get(path, "default")))
    return rows


def meanings() -> dict[str, str]:
    """Return the meaning of every setting, by its key path.

    Raises:
        OSError: the source of the settings, which has the texts, cannot be read.
    """
    return {
        f"{section}.{key}": text
        for section, kind in sections().items()
        for key, text in field_docs(kind).items()
    }


def setting_texts(settings: Settings) -> dict[str, str]:
    """Return every setting by its key path, as it would be written."""
    return {key: text for key, text, _ in effective(Loaded(settings, {}))}


def show_value(value: object, *, sized: bool = False) -> str:
    """Return the value of a setting as it is written in TOML."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None:
        return '""'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return f'"{show_duration(value)}"'
    if isinstance(value, int):
        return f'"{show_size(value)}"' if sized else str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(show_value(item) for item in value)}]"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def altered_endpoint(
    endpoint: Endpoint, said: Mapping[str, object], *, allow_plaintext: bool
) -> Endpoint:
    """Return the broker endpoint with some keys changed; values are given as in a file (END-6).

    Raises:
        InvalidArgument: keys or values are wrong; the error names all problems.
    """
    hints = get_type_hints(Endpoint, include_extras=True)
    values: dict[str, object] = {}
    wrong: list[str] = []
    for key, value in said.items():
        if key not in hints:
            wrong.append(f"{key}: there is no such key{did_you_mean(key, hints)}")
            continue
        try:
            values[key] = _convert(value, hints[key])
        except ValueError as error:
            wrong.append(f"{key}: {error}")
    changed = msgspec.structs.replace(endpoint, **values)
    found = complaints(changed, allow_plaintext=allow_plaintext)
    wrong += [f"{key}: {what}" for key, what in found]
    if wrong:
        raise InvalidArgument("; ".join(wrong), hint=f"the endpoint has: {', '.join(hints)}")
    return changed


# Collecting the given values.


def sections() -> dict[str, type[msgspec.Struct]]:
    """Return the class of each section of a settings file, by its name."""
    return {
        name: next(kind for kind in (get_args(hint) or (hint,)) if kind is not types.NoneType)
        for name, hint in get_type_hints(Settings).items()
    }


def _from_file(source: TomlFile, problems: Problems) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    known = sections()
    unknown_keys(source.data, known, under="", problems=problems)
    for section, kind in known.items():
        table = source.data.get(section)
        if table is None:
            continue
        if not isinstance(table, dict):
            problems.add(section, f"is a section: write [{section}] on a line of its own")
            continue
        given[section] = _Given(value=table, origin=source.show())
        unknown_keys(table, kind.__struct_fields__, under=section, problems=problems)
        for key in kind.__struct_fields__:
            if key in table:
                path = f"{section}.{key}"
                line = source.line_of(path)
                origin = f"{source.show()}:{line}" if line else source.show()
                given[path] = _Given(value=table[key], origin=origin)
    return given


def _from_environment(environ: Mapping[str, str], problems: Problems) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    known = sections()
    for name, text in environ.items():
        if not name.startswith(_PREFIX) or _SEPARATOR not in name:
            continue
        section, _, key = name[len(_PREFIX) :].lower().partition(_SEPARATOR)
        if section not in known:
            problems.add(name, f'no section "{section}"{did_you_mean(section, known)}')
        elif key not in (keys := known[section].__struct_fields__):
            problems.add(name, f'no key "{key}" in [{section}]{did_you_mean(key, keys)}')
        else:
            origin = f"environment {name}"
            given.setdefault(section, _Given(value={}, origin=origin))
            given[f"{section}.{key}"] = _Given(value=_Text(text), origin=origin)
    return given


class _Text(str):
    """Text from the environment, read according to the type of the setting."""

    __slots__ = ()


# Building the tree.


def _build(given: Mapping[str, _Given], *, base: Path, problems: Problems) -> Settings:
    parts: dict[str, msgspec.Struct | None] = {}
    for section, kind in sections().items():
        if section not in given and section == "endpoint":
            continue
        values: dict[str, object] = {}
        for key, hint in get_type_hints(kind, include_extras=True).items():
            item = given.get(f"{section}.{key}")
            if item is None:
                continue
            try:
                values[key] = _convert(item.value, hint)
            except ValueError as error:
                problems.add(f"{section}.{key}", _placed(str(error), item))
        parts[section] = kind(**values)
    settings = _with_absolute_paths(msgspec.structs.replace(Settings(), **parts), base)
    check_whole(settings, problems)
    return settings


def _placed(message: str, item: _Given) -> str:
    return f"{message} ({item.origin})" if isinstance(item.value, _Text) else message


def _convert(value: object, hint: object) -> object:  # noqa: PLR0911  # one return a type
    """Convert a value to the type of its setting; raise a `ValueError` that says what is wrong."""
    kind, rule = split_hint(hint)
    is_optional = kind is not hint and rule is None
    if isinstance(value, _Text):
        value = _from_text(value, kind, rule)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _choice(value, kind)
    if kind is timedelta:
        return _duration(value, rule)
    if kind is bool:
        return _typed(value, bool, "true or false")
    if kind is int:
        return _number(value, rule)
    if kind is Path:
        path = _text(value, "a path in quotes")
        if not path and not is_optional:
            raise ValueError("is empty: name a path, or leave the key out for its default")
        return Path(path) if path else None
    if kind == tuple[Path, ...]:
        return tuple(map(Path, _texts(value, rule)))
    if kind is str:
        return _matching(_text(value, "text in quotes"), rule)
    return _texts(value, rule, may_be_empty=is_optional)


def split_hint(hint: object) -> tuple[object, object]:
    """Return the bare type of a setting and its rule; for an optional setting, the type without
    None."""
    if get_origin(hint) is Annotated:
        kind, rule = get_args(hint)[:2]
        return kind, rule
    if get_origin(hint) in (types.UnionType, Union):
        return next(kind for kind in get_args(hint) if kind is not types.NoneType), None
    return hint, None


def _is_size(hint: object) -> bool:
    return isinstance(split_hint(hint)[1], Size)


def _from_text(text: str, kind: object, rule: object) -> object:
    """Return a text of the environment as the value that TOML would have given."""
    plain = kind in (str, Path) or (isinstance(kind, type) and issubclass(kind, enum.Enum))
    if not plain:
        try:
            parsed: object = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = str(text)
        if not (isinstance(parsed, str) and kind is int and not isinstance(rule, Size)):
            return parsed
    return str(text)


def _choice(value: object, kind: type[enum.Enum]) -> enum.Enum:
    names = [member.value for member in kind]
    if isinstance(value, str) and value.lower() in names:
        return kind(value.lower())
    near = did_you_mean(value, names) if isinstance(value, str) else ""
    raise ValueError(f"{value!r} is none of {', '.join(names)}{near}")


def _duration(value: object, rule: object) -> timedelta:
    wait = parse_duration(value)
    if isinstance(rule, Span) and not rule.least <= wait <= rule.most:
        least, most = show_duration(rule.least), show_duration(rule.most)
        raise ValueError(f"{value!r} is outside {least} to {most}")
    return wait


def _number(value: object, rule: object) -> int:
    sized = isinstance(rule, Size)
    number = parse_size(value) if sized else _typed(value, int, "a whole number")
    if isinstance(rule, Range) and not rule.least <= number <= rule.most:
        least, most = (show_size(n) if sized else str(n) for n in (rule.least, rule.most))
        raise ValueError(f"{value!r} is outside {least} to {most}")
    return number


def _matching(text: str, rule: object) -> str:
    if isinstance(rule, Pattern) and not re.fullmatch(rule.regex, text):
        raise ValueError(f"{text!r} is not {rule.meaning}")
    return text


def _texts(value: object, rule: object, *, may_be_empty: bool = False) -> tuple[str, ...]:
    """Return one text or a list of texts as a tuple; none may be empty.

    `rule`: a `Range` sets the least number of texts; without a `Range` it is one. `may_be_empty`:
    whether an empty text stands for no text."""
    if may_be_empty and value == "":
        return ()
    items = [value] if isinstance(value, str) else value
    least = rule.least if isinstance(rule, Range) else 1
    if not isinstance(items, list) or len(items) < least:
        raise ValueError(f"{value!r} is not text or a list of texts")
    texts = tuple(_text(item, "text in quotes") for item in items)
    if not all(texts):
        raise ValueError(f"{value!r} has an empty text: leave it out")
    return texts


def _text(value: object, meaning: str) -> str:
    text = _typed(value, str, meaning)
    if "\0" in text:  # no path or name may have it, and the system would refuse it much later
        raise ValueError(f"{text!r} has a null character")
    return text


def _typed(value: object, kind: type[_T], meaning: str) -> _T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{value!r} is not {meaning}")
    return value


# Rules about more than one value.


def _with_absolute_paths(settings: Settings, base: Path) -> Settings:
    """Return the settings with relative paths, that of a socket included, resolved below `base`."""

    def below(path: str | Path) -> Path:
        return Path(os.path.normpath(base / path))

    replace = msgspec.structs.replace

    def placed(address: str) -> str:
        path = address.removeprefix("unix:")
        return f"unix:{below(path)}" if address.startswith("unix:") and path else address

    log = settings.log
    return replace(
        settings,
        instance=replace(settings.instance, data_dir=below(settings.instance.data_dir)),
        mirroring=replace(
            settings.mirroring,
            directory=below(settings.mirroring.directory) if settings.mirroring.directory else None,
        ),
        clients=replace(settings.clients, listen=tuple(map(placed, settings.clients.listen))),
        http=replace(settings.http, listen=placed(settings.http.listen)),
        ca=replace(
            settings.ca,
            **{
                name: below(path)
                for name in ("file", "crl_file", "certificate", "key")
                if (path := getattr(settings.ca, name)) is not None
            },
        ),
        store=replace(
            settings.store, backup_dirs=tuple(below(one) for one in settings.store.backup_dirs)
        ),
        log=replace(
            log,
            file=below(log.file) if log.file else None,
            metrics_dir=below(log.metrics_dir) if log.metrics_dir else None,
        ),
    )
