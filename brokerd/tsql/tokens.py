"""Tokens of T-SQL, and their places in the text. PURE.

Reads:  the text of a script.      Calls: nothing.
Never:  raises, loses a character, or takes more than linear time: the tokens of a text, joined, are
        the text (IMP-1, IMP-2).
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple


class Kind(IntEnum):
    """Kind of a token."""

    SPACE = 1
    COMMENT = 2
    WORD = 3
    """A keyword or a name without quotes; keywords are not reserved here."""
    QUOTED = 4
    """A name in brackets or double quotes."""
    STRING = 5
    VARIABLE = 6
    """`@name`, `@@name`."""
    NUMBER = 7
    SYMBOL = 8
    GO = 9
    """A line that ends a batch."""
    COMMAND = 10
    """A line for the command-line tool, such as `:setvar`."""
    MACRO = 11
    """`$(name)`, which the command-line tool replaces."""


class Token(NamedTuple):
    """A piece of the text."""

    kind: Kind
    text: str
    at: int
    """Number of characters before it."""
    is_closed: bool = True
    """False = the closing quote or the end of a comment is missing."""

    @property
    def end(self) -> int:
        """The number of characters up to its end."""
        return self.at + len(self.text)

    @property
    def upper(self) -> str:
        """The text of a word or symbol in capitals; empty for other kinds."""
        return self.text.upper() if self.kind in (Kind.WORD, Kind.SYMBOL) else ""

    @property
    def value(self) -> str:
        """The text without quotes."""
        if self.kind is Kind.QUOTED:
            close = "]" if self.text[0] == "[" else '"'
            return self._inner(self.text[1:], close)
        if self.kind is Kind.STRING:
            return self._inner(self.text[self.text.index("'") + 1 :], "'")
        return self.text

    def _inner(self, text: str, close: str) -> str:
        return (text[: -len(close)] if self.is_closed else text).replace(close * 2, close)


_TOKEN: Final = re.compile(
    r"""
    (?P<space>[\s\ufeff]++)
  | (?P<comment>--[^\r\n]*+)
  | (?P<block>/\*)
  | (?P<string>[Nn]?+'[^']*+(?:''[^']*+)*+)
  | (?P<bracket>\[[^\]]*+(?:\]\][^\]]*+)*+)
  | (?P<double>"[^"]*+(?:""[^"]*+)*+)
  | (?P<macro>\$\([^)\r\n]*+\))
  | (?P<variable>@[\w@$\#]*+)
  | (?P<number>0[xX][0-9A-Fa-f]*+ | [0-9]++(?:\.[0-9]*+)?+(?:[eE][+-]?+[0-9]++)?+)
  | (?P<word>[^\W0-9][\w@$\#]*+ | \#[\w@$\#]*+ | [\w]++)
  | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_EDGE: Final = re.compile(r"/\*|\*/")
_GO: Final = re.compile(
    r"[Gg][Oo](?![\w@$#])[ \t]*+(?:[0-9]++)?+[ \t]*+;?+(?=[ \t]*+(?:--|\r|\n|\Z))"
)
_GO_LINE: Final = re.compile(
    r"^[ \t]*+(?=[Gg][Oo](?:[ \t]++[0-9]++)?+[ \t]*+;?+[ \t]*+(?:--|\r|\n|\Z))", re.MULTILINE
)
_COMMAND: Final = re.compile(r"(?::[A-Za-z]|!!)[^\r\n]*+")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_CLOSED: Final = {"string": "'", "bracket": "]", "double": '"'}
_KINDS: Final = {
    "space": Kind.SPACE,
    "comment": Kind.COMMENT,
    "string": Kind.STRING,
    "bracket": Kind.QUOTED,
    "double": Kind.QUOTED,
    "macro": Kind.MACRO,
    "variable": Kind.VARIABLE,
    "number": Kind.NUMBER,
    "word": Kind.WORD,
    "symbol": Kind.SYMBOL,
}


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a script, in order.

    A quote that is never closed ends before the next line with GO alone, so that the batches after
    it are read; a comment that is never closed ends with the text, since GO in a comment means
    nothing.
    """
    at, ends = 0, len(text)
    fresh = True  # nothing but space stands before on this line
    no_bracket = False  # no bracket is closed from here on; keeps the scan for one linear
    while at < ends:
        if fresh and (found := _GO.match(text, at) or _COMMAND.match(text, at)):
            kind = Kind.COMMAND if text[at] in ":!" else Kind.GO
            yield Token(kind, found[0], at)
            at, fresh = found.end(), False
            continue
        if no_bracket and text[at] == "[":
            end = _next_batch(text, at)
            yield Token(Kind.QUOTED, text[at:end], at, is_closed=False)
            at, fresh = end, True
            continue
        found = _TOKEN.match(text, at)
        assert found is not None, "the last alternative matches any character"
        name, end, closed = str(found.lastgroup), found.end(), True
        if name == "block":
            end, closed = _comment_end(text, at)
            yield Token(Kind.COMMENT, text[at:end], at, closed)
            at, fresh = end, False
            continue
        if name in _CLOSED:
            if end < ends:  # it stands before its closing quote, as nothing else stops it
                end += 1
            else:
                end, closed = _next_batch(text, at), False
                no_bracket = no_bracket or name == "bracket"
        piece = text[at:end]
        yield Token(_KINDS[name], piece, at, closed)
        ends_line = "\n" in piece or "\r" in piece
        # A quote that is not closed ends where a line with GO begins.
        fresh = (fresh or ends_line) if name == "space" else not closed
        at = end


def _comment_end(text: str, at: int) -> tuple[int, bool]:
    """Return the end of a comment that begins here, and whether it is closed; comments nest."""
    depth = 0
    for edge in _EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end(), True
    return len(text), False


def _next_batch(text: str, at: int) -> int:
    """Return where the next line with GO alone begins; the end of the text if there is none."""
    found = _GO_LINE.search(text, at + 1)
    return len(text) if found is None else found.end()


class Lines:
    """The lines of a text."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(found.end() for found in _LINE_END.finditer(text))]

    def place(self, at: int) -> tuple[int, int]:
        """Return line and column of a character, both counted from 1."""
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1
