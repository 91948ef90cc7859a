"""Mistyped statements: those whose first words are nearly those of the broker. PURE.

Reads:  the next tokens.      Calls: cursor.
Never:  takes a word of another statement for a mistyped one: CREATE EVENT SESSION, JOIN x send ON.
"""

from typing import Final

from brokerd.tsql.cursor import Cursor
from brokerd.tsql.tokens import Kind

_DEFINES: Final = ("CREATE", "ALTER", "DROP")
_KINDS: Final = (
    ("MESSAGE", "TYPE"),
    ("CONTRACT",),
    ("QUEUE",),
    ("SERVICE",),
    ("ROUTE",),
    ("REMOTE", "SERVICE", "BINDING"),
    ("BROKER", "PRIORITY"),
    ("EVENT", "NOTIFICATION"),
)
_VERBS: Final = (
    ("BEGIN", "DIALOG"),
    ("BEGIN", "CONVERSATION", "TIMER"),
    ("GET", "CONVERSATION", "GROUP"),
    ("MOVE", "CONVERSATION"),
    ("END", "CONVERSATION"),
)


def intended(here: Cursor, word: str) -> str:
    """Return the statement that a mistyped one was meant to be; empty = it is none of the broker's.

    The caller has tried all statements that are spelt correctly."""
    if word in _DEFINES:
        if here.is_next(word, "SERVICE", "MASTER"):
            return ""
        found = next((kind for kind in _KINDS if _is_kind(here, kind)), None)
        return "" if found is None else " ".join((word, *found))
    if word == "SEND":
        return "SEND ON CONVERSATION" if _is_send(here) else ""
    for verb in _VERBS:
        if word == verb[0] and _are_near(here, verb[1:], at=1):
            return " ".join(verb)
    return ""


def _is_kind(here: Cursor, kind: tuple[str, ...]) -> bool:
    if kind == ("MESSAGE", "TYPE"):  # nothing else begins with MESSAGE
        return _are_near(here, kind[:1], at=1)
    return _are_near(here, kind, at=1)


def _is_send(here: Cursor) -> bool:
    """Return whether this is SEND ON and a handle, and no table called send that is joined."""
    if not here.is_next("SEND", "ON"):
        return False
    first, second = here.peek(2), here.peek(3)
    if first is None or first.kind is Kind.VARIABLE:
        return True
    if second is not None and second.kind is Kind.VARIABLE:
        return bool(first.upper) or first.text == "("
    return is_near(first.upper, "CONVERSATION")


def _are_near(here: Cursor, words: tuple[str, ...], *, at: int) -> bool:
    for ahead, word in enumerate(words, start=at):
        token = here.peek(ahead)
        if token is None or not is_near(token.upper, word):
            return False
    return True


def is_near(said: str, word: str) -> bool:
    """Return whether a word is another one with at most one slip: a letter more, less, wrong, or
    two swapped."""
    if said == word:
        return True
    if abs(len(said) - len(word)) > 1:
        return False
    at = next((n for n, (a, b) in enumerate(zip(said, word, strict=False)) if a != b), None)
    if at is None:
        return True  # one is the other with a letter at the end
    is_swapped = said[at : at + 2] == word[at : at + 2][::-1] and said[at + 2 :] == word[at + 2 :]
    return (
        is_swapped
        or said[at + 1 :] == word[at + 1 :]
        or said[at + 1 :] == word[at:]
        or said[at:] == word[at + 1 :]
    )
