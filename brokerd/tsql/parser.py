"""Parser: finds the statements of Service Broker in a script, and passes over all others. PURE.

Reads:  the text of a script.      Calls: tokens, cursor, the grammar in objects and verbs.
Never:  raises, or lets one statement keep another from being read: a statement that does not go on
        as a broker's becomes an `Unread`, and reading resumes behind it (IMP-4).
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from brokerd.tsql import objects, verbs
from brokerd.tsql.cursor import Cursor, Unexpected
from brokerd.tsql.mistyped import intended
from brokerd.tsql.names import COLUMNS, FUNCTIONS, VIEWS
from brokerd.tsql.objects import OBJECTS, SECURITY, Rule, Where
from brokerd.tsql.tokens import Kind, Token, tokenize
from brokerd.tsql.tree import (
    Action,
    Dynamic,
    Mention,
    Module,
    Read,
    Script,
    Security,
    Statement,
    Unread,
)

MAX_DEPTH: Final = 3
"""How deep strings with statements in strings with statements are read (IMP-9)."""
_MODULES: Final = ("PROCEDURE", "PROC", "TRIGGER", "FUNCTION", "VIEW")
_LONGEST_NAME: Final = 256
_QUIET: Final = ("PRINT", "RAISERROR", "THROW")
"""Words before a string that is only shown."""
_SETVAR: Final = re.compile(r':setvar\s+(\w+)\s+(?:"([^"]*)"|(\S+))', re.IGNORECASE)
_MACRO: Final = re.compile(r"\$\((\w+)\)")
_SAID: Final = re.compile(
    r"\b(?:(?:CREATE|ALTER|DROP)\s++(?:MESSAGE\s++TYPE|CONTRACT|QUEUE|SERVICE(?!\s++MASTER)|ROUTE"
    r"|REMOTE\s++SERVICE\s++BINDING|BROKER\s++PRIORITY|EVENT\s++NOTIFICATION)"
    r"|BEGIN\s++DIALOG|BEGIN\s++CONVERSATION\s++TIMER|SEND\s++ON\s++CONVERSATION"
    r"|RECEIVE\s++(?:TOP\b|\*|\w++\s*+[,(])|END\s++CONVERSATION|GET\s++CONVERSATION\s++GROUP"
    r"|MOVE\s++CONVERSATION|SET\s++(?:ENABLE|DISABLE|NEW)_BROKER)",
    re.IGNORECASE,
)


def parse(path: str, text: str) -> Script:
    """Return the broker's statements of a script, in order, with its procedures and triggers."""
    reader = _Reader(text)
    return Script(
        path=path,
        text=text,
        statements=tuple(reader.statements()),
        modules=tuple(reader.modules),
        batches=reader.batches,
    )


class _Reader:
    """One pass over a text: a script, or a string in a script that is executed."""

    def __init__(self, text: str, *, depth: int = 0, macros: dict[str, str] | None = None) -> None:
        self._text = text
        self._depth = depth
        self._macros = {} if macros is None else macros
        self._database = ""
        self._module: int | None = None
        self._strings: list[tuple[str, int]] = []
        self._module_from: tuple[str, tuple[str, ...], int] | None = None
        self.modules: list[Module] = []
        self.batches = 0

    def statements(self) -> Iterator[Statement]:
        batch: list[Token] = []
        for token in chain(tokenize(self._text), [Token(Kind.GO, "", len(self._text))]):
            match token.kind:
                case Kind.SPACE | Kind.COMMENT:
                    pass
                case Kind.COMMAND:
                    self._set(token.text)
                case Kind.GO:
                    if batch:
                        self.batches += 1
                        yield from self._batch(batch)
                        self._close_module(token.at)
                    batch = []
                case _:
                    batch.append(token)

    def _set(self, command: str) -> None:
        found = _SETVAR.match(command)
        if found is not None:
            self._macros[found[1].lower()] = found[2] if found[2] is not None else found[3]

    def _resolve(self, text: str) -> str:
        if "$(" not in text:
            return text
        return _MACRO.sub(lambda found: self._macros.get(found[1].lower(), found[0]), text)

    # A batch.

    def _batch(self, tokens: list[Token]) -> Iterator[Statement]:
        here = Cursor(tokens, self._resolve)
        while (token := here.peek()) is not None:
            start = here.index
            read = self._reader_at(here, token)
            if read is None:
                here.index = start + 1
                continue
            where: Where = {
                "at": token.at,
                "database": self._database,
                "module": self._module,
                "is_dynamic": self._depth > 0,
            }
            try:
                found = read(where)
            except Unexpected as unexpected:
                here.index = max(here.index, start + 1)
                said = " ".join(one.text for one in tokens[start : start + 3] if one.upper)
                yield Unread(
                    said=said.upper(),
                    expected=unexpected.expected,
                    found=unexpected.found[:60],
                    found_at=unexpected.at,
                    end=unexpected.at,
                    **where,
                )
                continue
            here.index = max(here.index, start + 1)
            yield from found

    def _reader_at(self, here: Cursor, token: Token) -> Callable[[Where], list[Statement]] | None:
        """Return what reads the statement that begins here; None = none does."""
        before = here.before
        if before is not None and before.text == ".":
            return None
        if token.kind is Kind.STRING:
            if len(token.text) <= _LONGEST_NAME:
                self._strings.append((token.value, token.at))
            return self._dynamic(here, token)
        if token.kind is Kind.QUOTED:
            return self._mention(here) if token.value.lower() == "sys" else None
        word = token.upper
        if not word:
            return None
        found = self._by_word(here, word) or self._mistyped(here, word)
        if found is None:
            return None
        return lambda where: self._ended(here, found(where))

    def _by_word(  # noqa: C901, PLR0911, PLR0912  # one line for each word that begins a statement
        self, here: Cursor, word: str
    ) -> Callable[[Where], Statement | list[Statement] | None] | None:
        match word:
            case "CREATE" | "ALTER" | "DROP":
                return self._definition(here, Action(word))
            case "USE":
                return self._use(here)
            case "BEGIN" if here.is_next("BEGIN", "DIALOG"):
                return self._after(here, 2, verbs.begin_dialog)
            case "BEGIN" if here.is_next("BEGIN", "CONVERSATION", "TIMER"):
                return self._after(here, 3, verbs.timer)
            case "SEND" if here.is_next("SEND", "ON", "CONVERSATION"):
                return self._after(here, 3, verbs.send)
            case "RECEIVE" if verbs.is_receive(here.before, here.peek(1)):
                return self._after(here, 1, verbs.receive)
            case "WAITFOR" if here.is_next("WAITFOR", "(", "RECEIVE") or here.is_next(
                "WAITFOR", "(", "GET"
            ):
                return self._after(here, 1, verbs.wait_for)
            case "GET" if here.is_next("GET", "CONVERSATION", "GROUP"):
                return self._after(here, 3, verbs.get_group)
            case "MOVE" if here.is_next("MOVE", "CONVERSATION"):
                return self._after(here, 2, verbs.move)
            case "END" if here.is_next("END", "CONVERSATION"):
                return self._after(here, 2, verbs.end)
            case "GRANT" | "DENY" | "REVOKE":
                return self._after(here, 1, lambda here, where: objects.grant(here, word, where))
            case "RESTORE" if here.is_next("RESTORE", "DATABASE"):
                return self._after(here, 2, objects.database_options)
            case "BACKUP" | "OPEN":
                return self._security(here, word)
            case "SYS":
                return self._mention(here)
            case "FROM" | "JOIN":
                return self._source(here)
            case _ if word.lower() in FUNCTIONS or word.lower() in COLUMNS:
                name = word.lower()
                return lambda where: Mention(name=name, **where)
            case _:
                return None

    @staticmethod
    def _mistyped(here: Cursor, word: str) -> Callable[[Where], None] | None:
        meant = intended(here, word)
        if not meant:
            return None

        def read(_where: Where) -> None:
            spelt = meant.split()
            wrong = next((n for n, one in enumerate(spelt) if not here.is_next(*spelt[: n + 1])), 0)
            token = here.peek(wrong)
            if token is not None:
                raise Unexpected(spelt[wrong], token.at, token.text)
            last = here.peek(wrong - 1)
            raise Unexpected(spelt[wrong], last.end if last else 0, "the end of the batch")

        return read

    @staticmethod
    def _after(
        here: Cursor,
        words: int,
        rule: Callable[[Cursor, Where], Statement | list[Statement] | None],
    ) -> Callable[[Where], Statement | list[Statement] | None]:
        def read(where: Where) -> Statement | list[Statement] | None:
            here.index += words
            return rule(here, where)

        return read

    def _ended(self, here: Cursor, found: Statement | list[Statement] | None) -> list[Statement]:
        """Return what was read as a list, with the end of the text that it was read from."""
        if found is None:
            return []
        made = found if isinstance(found, list) else [found]
        last = here.before
        return [_with_end(one, 0 if last is None else last.end) for one in made]

    # Definitions.

    def _definition(
        self, here: Cursor, action: Action
    ) -> Callable[[Where], Statement | list[Statement] | None] | None:
        ahead = 3 if here.is_next("CREATE", "OR", "ALTER") else 1
        first = here.peek(ahead)
        if first is not None and action is not Action.DROP and first.upper in _MODULES:
            return lambda where: self._open_module(here, ahead, first.upper, where)
        if here.is_next(action.value, "SERVICE", "MASTER"):
            return None  # SERVICE MASTER KEY
        for words, rule in OBJECTS.items():
            if here.is_next(action.value, *words):
                return self._after(here, 1 + len(words), partial(_acting, rule, action))
        if here.is_next("ALTER", "AUTHORIZATION"):
            return self._after(
                here, 2, lambda here, where: objects.security(here, "ALTER AUTHORIZATION", where)
            )
        return self._security(here, action.value)

    def _security(
        self, here: Cursor, verb: str
    ) -> Callable[[Where], Statement | list[Statement] | None] | None:
        words = next((one for one in SECURITY if here.is_next(verb, *one)), None)
        if words is None:
            return None
        what = " ".join((verb, *words))
        return self._after(
            here, 1 + len(words), lambda here, where: objects.security(here, what, where)
        )

    def _use(self, here: Cursor) -> Callable[[Where], None] | None:
        after = here.peek(1)
        if after is None or after.kind not in (Kind.WORD, Kind.QUOTED, Kind.MACRO):
            return None

        def read(_where: Where) -> None:
            here.skip()
            self._database = here.name("the name of a database")

        return read

    def _open_module(self, here: Cursor, ahead: int, kind: str, where: Where) -> None:
        at = where["at"]
        self._close_module(at)
        here.index += ahead + 1
        name = here.names(f"the name of a {kind.lower()}")
        self._module = len(self.modules)
        self._module_from = ("PROCEDURE" if kind == "PROC" else kind, name, at)
        self._strings = []

    def _close_module(self, end: int) -> None:
        if self._module_from is not None:
            kind, name, at = self._module_from
            self.modules.append(
                Module(
                    kind=kind,
                    name=name,
                    database=self._database,
                    at=at,
                    end=end,
                    strings=tuple(self._strings),
                )
            )
        self._module, self._module_from = None, None
        self._strings = []

    # Queries and strings.

    def _mention(self, here: Cursor) -> Callable[[Where], list[Statement]] | None:
        after = here.peek(2)
        dot = here.peek(1)
        if dot is None or dot.text != "." or after is None:
            return None
        name = after.value.lower()
        if name not in VIEWS:
            return None

        def read(where: Where) -> list[Statement]:
            here.index += 3
            return [Mention(name=name, end=after.end, **where)]

        return read

    def _source(self, here: Cursor) -> Callable[[Where], list[Statement]] | None:
        after = here.peek(1)
        if after is None or after.kind not in (Kind.WORD, Kind.QUOTED):
            return None
        if after.value.lower() == "sys" or after.upper == "SERVICE":
            return None

        def read(where: Where) -> list[Statement]:
            here.skip()
            name = here.names("a name")
            if name[-2:-1] and name[-2].lower() == "sys":  # msdb.sys.conversation_endpoints
                if name[-1].lower() not in VIEWS:
                    return []
                return [Mention(name=name[-1].lower(), **where)]
            return [Read(name=name, **where)]

        return read

    def _dynamic(self, here: Cursor, token: Token) -> Callable[[Where], list[Statement]] | None:
        found = _SAID.search(token.text)
        if found is None:
            return None
        before, after = here.before, here.peek(1)
        outer = here.peek(-2)
        if any(one is not None and one.upper in _QUIET for one in (before, outer)):
            return None
        said = " ".join(found[0].upper().split()[:3])
        is_part = any(one is not None and one.text == "+" for one in (before, after))

        def read(where: Where) -> list[Statement]:
            here.skip()
            note = Dynamic(said=said, end=token.end, **where)
            if is_part or self._depth >= MAX_DEPTH:
                return [note]
            inner = self._inside(token)
            if not inner or any(isinstance(one, Unread | Dynamic) for one in inner):
                return [note]
            return inner

        return read

    def _inside(self, token: Token) -> list[Statement]:
        """Return the statements in a string, with their places in the text around it."""
        start = token.at + token.text.index("'") + 1
        doubled = [found.start() for found in re.finditer("''", token.text[start - token.at :])]
        behind = [at - number for number, at in enumerate(doubled)]  # places in the value

        def place(at: int) -> int:
            return start + at + bisect_left(behind, at)

        reader = _Reader(token.value, depth=self._depth + 1, macros=self._macros)
        reader._database = self._database
        return [
            _moved(one, place(one.at), place(one.end), self._module)
            for one in reader.statements()
            if not isinstance(one, Read | Security)
        ]


def _acting(
    rule: Rule, action: Action, here: Cursor, where: Where
) -> Statement | list[Statement] | None:
    return rule(here, action, where)


def _with_end(statement: Statement, end: int) -> Statement:
    return msgspec.structs.replace(statement, end=statement.end or max(end, statement.at))


def _moved(statement: Statement, at: int, end: int, module: int | None) -> Statement:
    return msgspec.structs.replace(statement, at=at, end=end, module=module)
