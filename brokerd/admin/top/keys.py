"""The state of the screen of `brokerd top`, and what keys do to it (MON-81).

PURE.   Bytes of a terminal in, names of keys out; a state and a key in, the next state out.
Reads, calls: nothing.
Never:  draws, or reads a terminal.
"""

import enum
from typing import Final

import msgspec

from brokerd.admin.top.board import ORDERS

PAGE: Final = 10
"""Lines by which the page keys move."""
LONGEST_FILTER: Final = 60
_LONGEST_PAGE: Final = 500
"""Lines after which a page is scrolled no further."""


class Mode(enum.Enum):
    """The meaning that keys have at present."""

    LIST = enum.auto()
    FILTER = enum.auto()
    """A filter is being typed."""
    HELP = enum.auto()
    DETAIL = enum.auto()
    """The findings about the chosen line are shown, with the commands that help."""


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of the user."""

    mode: Mode = Mode.LIST
    order: str = "pain"
    is_reversed: bool = False
    filter: str = ""
    cursor: int | None = None
    """Number of the chosen line among all that the filter lets through; None = the worst of them,
    and -1 none."""
    scroll: int = 0
    """First line that is shown of a page."""
    is_over: bool = False
    """Whether the user wants to leave."""


def read_keys(data: bytes) -> list[str]:
    """Return the keys of what a terminal has sent: characters, and names such as `up`."""
    text, keys = data.decode("utf-8", "replace"), []
    at = 0
    while at < len(text):
        for sequence, name in _SEQUENCES.items():
            if text.startswith(sequence, at):
                keys.append(name)
                at += len(sequence)
                break
        else:
            if text[at] == "\x1b" and text[at + 1 : at + 2] in ("[", "O"):
                at = _end_of_sequence(text, at + 2)  # a key that has no meaning here
                continue
            keys.append(_CONTROLS.get(text[at], text[at]))
            at += 1
    return keys


def _end_of_sequence(text: str, at: int) -> int:
    while at < len(text) and not "@" <= text[at] <= "~":
        at += 1
    return at + 1


_SEQUENCES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
}
_CONTROLS: Final = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x03": "q",
}
_MOVES: Final = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page up": -PAGE,
    "page down": PAGE,
    "home": -(2**31),
    "g": -(2**31),
    "end": 2**31,
    "G": 2**31,
}


def press(screen: Screen, key: str, lines: int, worst: int = 0) -> Screen:
    """Return the state after a key.

    `lines`: the number of lines to choose from; `worst`: the number of the worst of them."""
    match screen.mode:
        case Mode.FILTER:
            return _type(screen, key)
        case Mode.HELP | Mode.DETAIL:
            if key == "q":
                return msgspec.structs.replace(screen, is_over=True)
            if key in ("up", "down", "j", "k") and screen.mode is Mode.DETAIL:
                return _move(screen, _MOVES[key], lines, worst)
            if key in ("page up", "page down"):
                at = min(max(0, screen.scroll + _MOVES[key]), _LONGEST_PAGE)
                return msgspec.structs.replace(screen, scroll=at)
            return msgspec.structs.replace(screen, mode=Mode.LIST, scroll=0)
        case Mode.LIST:
            return _act(screen, key, lines, worst)


def _act(screen: Screen, key: str, lines: int, worst: int) -> Screen:
    if key in _MOVES:
        return _move(screen, _MOVES[key], lines, worst)
    orders = list(ORDERS)
    changes: dict[str, dict[str, object]] = {
        "q": {"is_over": True},
        "s": {"order": orders[(orders.index(screen.order) + 1) % len(orders)], "cursor": None},
        "r": {"is_reversed": not screen.is_reversed, "cursor": None},
        "/": {"mode": Mode.FILTER, "filter": "", "cursor": None},
        "escape": {"filter": "", "cursor": None},
        "?": {"mode": Mode.HELP},
        "h": {"mode": Mode.HELP},
        "enter": {"mode": Mode.DETAIL},
    }
    return msgspec.structs.replace(screen, **changes.get(key, {}))


def _move(screen: Screen, by: int, lines: int, worst: int) -> Screen:
    before = worst if screen.cursor is None else min(screen.cursor, max(0, lines - 1))
    at = min(max(0, before + by), max(0, lines - 1))
    return msgspec.structs.replace(screen, cursor=at, scroll=0)


def _type(screen: Screen, key: str) -> Screen:
    if key == "enter":
        return msgspec.structs.replace(screen, mode=Mode.LIST)
    if key == "escape":
        return msgspec.structs.replace(screen, mode=Mode.LIST, filter="")
    if key == "backspace":
        return msgspec.structs.replace(screen, filter=screen.filter[:-1])
    if len(key) == 1 and key.isprintable() and len(screen.filter) < LONGEST_FILTER:
        return msgspec.structs.replace(screen, filter=screen.filter + key)
    return screen
