"""The tokens of one batch, read one after the other. PURE.

Reads:  tokens without space and comments.      Calls: tokens.
Never:  looks further back than one token, or recurses: parentheses are paired in one pass (IMP-3).
Fails:  with `Unexpected`, which says what was expected; the parser turns it into a value.
"""

from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from brokerd.tsql.tokens import Kind, Token

_NAMES: Final = (Kind.WORD, Kind.QUOTED, Kind.MACRO)
_LONGEST: Final = 8
"""Most tokens of a template parameter."""
_COMMAS: Final = 2
_VALUES: Final = (Kind.VARIABLE, Kind.MACRO)


class Unexpected(Exception):
    """The next token does not fit; `expected` says what would."""

    def __init__(self, expected: str, at: int, found: str) -> None:
        super().__init__(expected)
        self.expected = expected
        self.at = at
        self.found = found


class Cursor:
    """A position in the tokens of a batch."""

    def __init__(self, tokens: Sequence[Token], resolve: Callable[[str], str]) -> None:
        """Create the cursor; `resolve` replaces the macros in a name."""
        self._tokens = tokens
        self._resolve = resolve
        self._closing = _closing(tokens)
        self.index = 0

    # Looking.

    @property
    def is_done(self) -> bool:
        """Whether no token is left."""
        return self.index >= len(self._tokens)

    def peek(self, ahead: int = 0) -> Token | None:
        """Return a token without moving; None = the batch ends before it."""
        index = self.index + ahead
        return self._tokens[index] if 0 <= index < len(self._tokens) else None

    def is_next(self, *words: str) -> bool:
        """Return whether the next tokens are these words or symbols."""
        for ahead, word in enumerate(words):
            token = self.peek(ahead)
            if token is None or token.upper != word:
                return False
        return True

    def is_any(self, *words: str) -> bool:
        """Return whether the next token is one of these words or symbols."""
        token = self.peek()
        return token is not None and token.upper in words

    # Moving.

    def skip(self) -> Token:
        """Return the next token and move behind it."""
        token = self._tokens[self.index]
        self.index += 1
        return token

    def accept(self, *words: str) -> bool:
        """Move behind these words if they are next; return whether they were."""
        if not self.is_next(*words):
            return False
        self.index += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Move behind these words; raise `Unexpected` at the first that is not there."""
        for word in words:
            if not self.accept(word):
                self.refuse(word)

    def choose(self, *words: str) -> str:
        """Return which of these words is next, and move behind it."""
        token = self.peek()
        if token is None or token.upper not in words:
            self.refuse(" or ".join(words))
        return self.skip().upper

    def refuse(self, expected: str) -> NoReturn:
        """Raise `Unexpected` at the next token."""
        token = self.peek()
        if token is None:
            last = self._tokens[-1].end if self._tokens else 0
            raise Unexpected(expected, last, "the end of the batch")
        raise Unexpected(expected, token.at, token.text)

    # Names and values.

    def name(self, what: str) -> str:
        """Return a name of one part."""
        token = self._value_token()
        if token is None or token.kind not in _NAMES:
            self.refuse(what)
        self.skip()
        return self._resolve(token.value)

    def names(self, what: str) -> tuple[str, ...]:
        """Return the parts of a name with dots, such as `database.schema.queue`."""
        while self.accept("."):
            pass  # an omitted database
        parts = [self.name(what)]
        while self.accept("."):
            while self.accept("."):
                parts.append("")  # an omitted schema
            parts.append(self.name(what))
        return tuple(parts)

    def text(self, what: str) -> str:
        """Return the value of a string."""
        token = self._value_token()
        if token is None or token.kind is not Kind.STRING:
            self.refuse(what)
        self.skip()
        return self._resolve(token.value)

    def number(self, what: str) -> int:
        """Return a whole number."""
        token = self._value_token()
        if token is not None and token.kind is Kind.MACRO:
            said = self._resolve(token.text)
        else:
            said = token.text if token is not None and token.kind is Kind.NUMBER else ""
        if not (said.isascii() and said.isdigit() and len(said) < 20):  # noqa: PLR2004  # a bigint
            self.refuse(what)
        self.skip()
        return int(said)

    def _value_token(self) -> Token | None:
        """Return the next token; of a template parameter the value, with its `>` next."""
        if not self.is_next("<"):
            return self.peek()
        # <name, type, value>, as templates of the server's tools have them
        texts = [one.text if one is not None else "" for one in map(self.peek, range(_LONGEST))]
        if ">" not in texts or texts[: texts.index(">")].count(",") != _COMMAS:
            return self.peek()
        end = texts.index(">")
        found = self.peek(end - 1)
        if found is None or found.text == ",":
            return self.peek()
        self.index += end
        return found

    def switch(self) -> bool:
        """Return whether ON or OFF is next, and move behind it."""
        return self.choose("ON", "OFF") == "ON"

    def is_variable(self) -> bool:
        """Return whether the next token stands for a value that only the run knows."""
        token = self.peek()
        return token is not None and token.kind in _VALUES

    def value(self, what: str) -> str:
        """Return the text of a variable, string, number or name, as it stands in the script."""
        token = self.peek()
        if token is None or token.kind in (Kind.SYMBOL, Kind.GO, Kind.COMMAND):
            self.refuse(what)
        return self.skip().text

    def signed(self, what: str) -> str:
        """Return the text of a value that may be a number with a sign."""
        sign = self.skip().text if self.is_any("-", "+") else ""
        return sign + self.value(what)

    def parenthesised(self) -> tuple[Token, ...]:
        """Return what stands in the parentheses that open next, and move behind them."""
        close = self._closing.get(self.index)
        if close is None:
            self.refuse("the ) that closes this (" if self.is_next("(") else "(")
        start = self.index + 1
        self.index = close + 1
        return tuple(self._tokens[start:close])

    def skip_until(self, *words: str) -> tuple[Token, ...]:
        """Move to the first of these words outside parentheses and CASE; return what was passed.

        Stop at `;`, at a `)` that was opened before, and at the end of the batch, too."""
        start, cases = self.index, 0
        while not self.is_done and not self.is_any(";", ")"):
            if self.is_next("("):
                self.parenthesised()
                continue
            word = self.skip().upper
            if word == "CASE":
                cases += 1
            elif cases and word == "END":
                cases -= 1
            elif not cases and word in words:
                self.index -= 1
                break
        return tuple(self._tokens[start : self.index])

    @property
    def before(self) -> Token | None:
        """The token before the next one; None at the beginning."""
        return self.peek(-1)


def _closing(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the index of the `)` for the index of each `(` that is closed."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind is not Kind.SYMBOL:
            continue
        if token.text == "(":
            opened.append(index)
        elif token.text == ")" and opened:
            found[opened.pop()] = index
    return found
