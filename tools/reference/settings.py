"""The page of the settings: every key of the daemon's file, and of declared objects."""

import enum
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final, get_type_hints

from brokerd.cli.object_keys import KEYS, Key
from brokerd.config.bounds import Pattern, Range, Size, Span
from brokerd.config.loading import meanings, sections, show_value, split_hint
from brokerd.config.settings import Settings
from brokerd.units import show_duration, show_size
from tools.reference.markdown import code, codes, fenced, page, prose, table

FILE = "settings.md"
_INTRODUCTION = """
The daemon reads its settings from a TOML file (`brokerd serve -c FILE`) and from environment
variables named `BROKERD_SECTION__KEY`, which win. A key that is left out has its default; an
unknown key is an error. `brokerd config show --explain` prints what is in effect, and
`brokerd config check FILE` checks a file without starting anything.

- A **duration** is text with a unit (`us`, `ms`, `s`, `min`, `h`, `d`), or a number of seconds.
- A **size** is text with a unit (`B`, `KiB`, `MiB`, `GiB`, `kB`, `MB` ...), or a number of bytes.
- A **path** that is relative is relative to the directory of the file.
"""
_OBJECTS = """
## Declared objects

What lives in a broker is declared in a file of its own, `NAME.objects.toml`, and applied with
`brokerd apply`. Each object is a table such as `[[queue]]` with a `name` and the keys below; a key
with a dot stands in a section: `activation.handler` is `handler` in `[queue.activation]`. The same
keys are the `KEY=VALUE` words of `brokerd queue create`, `brokerd queue alter` and so on.
"""
_WRITTEN = {"broker": "[broker]", "endpoint": "[endpoint]"}


def render() -> str:
    """Return the page."""
    meaning = meanings()
    parts = []
    for name, kind in sections().items():
        default = getattr(Settings(), name)
        optional = default is None
        summary = (kind.__doc__ or "").strip()
        if optional:
            summary += " Without this section there is none."
        default = kind() if optional else default
        rows = [
            (
                code(key),
                f"{_type(hint)}; default {code(_default(default, key, hint))}",
                prose(meaning[f"{name}.{key}"]),
            )
            for key, hint in get_type_hints(kind, include_extras=True).items()
        ]
        parts += [f"## {name}", prose(summary), table(("Key", "Value", "Meaning"), rows)]
    return page("Settings", _INTRODUCTION, *parts, *_objects())


def _objects() -> Iterator[str]:
    yield _OBJECTS.strip()
    for kind, keys in KEYS.items():
        if kind == "endpoint":  # the same as the section of the settings
            continue
        yield f"### {kind.replace('_', ' ')}"
        header = _WRITTEN.get(kind, f"[[{kind}]]")
        first = (
            ""
            if kind != "broker"
            else "Options of the broker itself; `name` is `main` if it is left out."
        )
        yield f"Written as {code(header)}. {first}".strip()
        yield table(("Key", "If left out", "Meaning"), [_object_row(key) for key in keys])
    yield "The shortest declaration of a service that others can begin dialogs with:"
    yield fenced(
        (
            "[[queue]]",
            'name = "orders_q"',
            "",
            "[[service]]",
            'name = "orders"',
            'queue = "orders_q"',
            'contracts = ["DEFAULT"]',
        ),
        "toml",
    )


def _object_row(key: Key) -> tuple[str, str, str]:
    return code(key.name), prose(key.default or "-"), prose(key.meaning)


def _default(section: object, key: str, hint: object) -> str:
    return show_value(getattr(section, key), sized=isinstance(split_hint(hint)[1], Size))


def _type(hint: object) -> str:
    kind, rule = split_hint(hint)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return codes(str(one.value) for one in kind)
    name = _NAMES[kind]
    match rule:
        case Size(least, most):
            name = f"size, {show_size(least)} to {show_size(most)}"
        case Span(first, last):
            name = f"duration, {show_duration(first)} to {show_duration(last)}"
        case Range(least, most) if kind is int:
            name = f"number, {least:,} to {most:,}"
        case Pattern():
            name = f"text: {prose(rule.meaning)}"
        case _:
            pass
    return name


_NAMES: Final[dict[object, str]] = {
    bool: "`true`, `false`",
    int: "number",
    timedelta: "duration",
    Path: "path",
    str: "text",
    tuple[str, ...]: "list of texts",
    tuple[Path, ...]: "list of paths",
}
