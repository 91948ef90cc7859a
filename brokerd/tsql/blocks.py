"""Tables of the file of objects, as values and as text. PURE.

Reads:  words, numbers and names.      Calls: units.
Never:  lets a name end a string or a line: every character that shows nothing is escaped.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from brokerd.model import ANY
from brokerd.objects.keys import MAX_NAME
from brokerd.tsql.declaring import Declared
from brokerd.units import printable


class Block(Struct):
    """One table of the file."""

    kind: str
    table: dict[str, Any]
    remarks: list[str] = []
    """Comments above it."""
    is_active: bool = True
    """False = the whole table is written as a comment."""
    hints: list[str] = []
    """Lines below it, as comments."""


def usable(name: str, declared: Declared | None, kind: str) -> bool:
    """Return whether an object may have this name; note in the entry why it may not."""
    why = ""
    if not name or len(name) > MAX_NAME:
        why = f"a name has 1 to {MAX_NAME} characters"
    elif kind == "queue" and name.startswith("#"):
        why = "the name of a queue does not begin with #"
    elif kind in ("service", "contract") and name == ANY:
        why = "nothing may be called ANY"
    if why and declared is not None:
        declared.entry.needs(f"not in the file: {why}")
    return not why


def quoted(text: str) -> str:
    """Return a text as a string of TOML and of Python."""
    plain = json.dumps(text, ensure_ascii=False)
    return "".join(
        one if one.isprintable() else json.dumps(one)[1:-1] if ord(one) < _WIDE else _wide(one)
        for one in plain
    )


_WIDE: Final = 0x10000


def _wide(character: str) -> str:
    return f"\\U{ord(character):08X}"


def value_text(value: object) -> str:
    match value:
        case bool():
            return '"on"' if value else '"off"'
        case int():
            return str(value)
        case Mapping():
            pairs = (f"{quoted(str(key))} = {value_text(one)}" for key, one in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case list():
            return f"[{', '.join(map(value_text, value))}]"
        case _:
            return quoted(str(value))


def table_lines(block: Block, under: str) -> Iterator[str]:
    mark = "" if block.is_active else "# "
    yield from (f"# {printable(remark)}" for remark in block.remarks)
    yield f"{mark}[[{under}{block.kind}]]"
    sections: list[tuple[str, Mapping[str, object]]] = []
    for key, value in block.table.items():
        if isinstance(value, Mapping) and key != "types":
            sections.append((key, value))
            continue
        written = "true" if key == "drop" else value_text(value)
        yield f"{mark}{key} = {written}"
    yield from (f"# {printable(hint)}" for hint in block.hints)
    for key, section in sections:
        yield f"{mark}[{under}{block.kind}.{key}]"
        yield from (f"{mark}{one} = {value_text(value)}" for one, value in section.items())
