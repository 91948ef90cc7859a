"""HTML of the page: builds elements, and escapes every text that goes into one (MON-41).

PURE.   Reads: nothing.      Calls: `units.printable`.
Never:  passes a text on unescaped; only a value of type `Html` is taken as markup.
"""

from collections.abc import Iterable
from html import escape
from typing import Final, Self

from brokerd.units import printable

_VOID: Final = frozenset({"br", "hr", "input", "link", "meta"})


class Html(str):
    """Markup that is complete and safe to put into a document."""

    __slots__ = ()

    def __new__(cls, text: str = "") -> Self:
        """Mark a text as markup; only this module and constants may call it."""
        return super().__new__(cls, text)


Child = Html | str | int | None | Iterable["Child"]
"""Content of an element; None = nothing."""


def text(value: object) -> Html:
    """Return a value as text: characters that HTML or the reader would mistake are escaped.

    Service names and errors come from strangers. A character that shows nothing by itself, such as
    one that turns the direction of the text around it, is written as an escape (SX-14).
    """
    return Html(escape(printable(str(value)), quote=True))


def as_it_is(value: str) -> Html:
    """Return a text for a field in which somebody edits it, with nothing but markup escaped.

    The field sends it back, so an escape of our own would end up in the message. The caller passes
    only texts in which everything can be seen."""
    return Html(escape(value, quote=True))


def join(*children: Child) -> Html:
    """Return the children one after the other."""
    parts: list[str] = []
    for one in children:
        if one is None:
            continue
        if isinstance(one, Html):
            parts.append(one)
        elif isinstance(one, str | int):
            parts.append(text(one))
        else:
            parts.append(join(*one))
    return Html("".join(parts))


def el(tag: str, *children: Child, **attributes: object) -> Html:
    """Return an element. An attribute is left out if it is None or False, and bare if it is True.

    `class_` stands for `class`, `for_` for `for`, and other underscores for hyphens.
    """
    opened = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        shown = name.rstrip("_").replace("_", "-")
        opened.append(shown if value is True else f'{shown}="{text(value)}"')
    head = f"<{' '.join(opened)}>"
    return Html(head) if tag in _VOID else Html(f"{head}{join(*children)}</{tag}>")
