"""Markdown: writes tables, headings and code, and escapes special characters. PURE."""

import re
from collections.abc import Iterable, Sequence

from brokerd.rule_ids import without_rules

_SPAN = re.compile(r"(`+)(?:(?!\1).)+\1(?!`)")
_NOT_TEXT = {"<": "&lt;", ">": "&gt;", "*": "\\*", "|": "\\|", "[": "\\[", "]": "\\]"}


def code(text: str) -> str:
    """Return the text as a code span; "" for an empty text."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""


def codes(texts: Iterable[str]) -> str:
    """Return each text as a code span, separated by commas."""
    return ", ".join(code(text) for text in texts)


def prose(text: str) -> str:
    """Return a text from the code as one line of Markdown; code spans in it stay code spans."""
    line = " ".join(text.split())
    made, at = [], 0
    for span in _SPAN.finditer(line):
        made += [_escaped(line[at : span.start()]), span.group()]
        at = span.end()
    return "".join([*made, _escaped(line[at:])])


def sentence(text: str) -> str:
    """Return the text as `prose`, with a capital letter and a full stop."""
    line = prose(text).rstrip(".")
    return f"{line[:1].upper()}{line[1:]}." if line else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown already."""
    lines = [_row(columns), _row(["---"] * len(columns))]
    lines += [_row([_cell(cell) for cell in row]) for row in rows]
    return "\n".join(lines)


def fenced(lines: Iterable[str], language: str = "") -> str:
    """Return a block of code."""
    return "\n".join([f"```{language}", *lines, "```"])


def page(title: str, introduction: str, *parts: str) -> str:
    """Return a whole page, with a note that it is generated, without ids of rules (MON-83)."""
    notice = "<!-- Made from the code by `make reference`; not to be edited. -->"
    text = "\n\n".join([notice, f"# {title}", introduction.strip(), *parts]) + "\n"
    return without_rules(text)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    line = " ".join(text.split())
    return re.sub(r"(?<!\\)\|", "\\|", line)


def _escaped(text: str) -> str:
    return "".join(_NOT_TEXT.get(letter, letter) for letter in text)
