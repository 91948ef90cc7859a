"""Ids on the command line: handles, conversations, groups and brokers, whole or shortened.

Calls:  the daemon's views, to find the one id that a shortened one begins.
Never:  guesses: of several ids with the same beginning none is taken.
"""

from typing import Final

import click

from brokerd.cli.session import ask
from brokerd.client.session import Session
from brokerd.errors import InvalidArgument, ObjectNotFound, UsageError
from brokerd.ids import ID_SIZE, LEAST_DIGITS, is_beginning, parse

_SHOWN: Final = 5
"""Number of ids that are named if a shortened one is not unique."""
Place = tuple[str, str]
"""A view, and its column of ids."""
_HANDLES: Final = ("conversation_endpoints", "conversation_handle")
_CONVERSATIONS: Final = ("conversation_endpoints", "conversation_id")
_GROUPS: Final = ("conversation_endpoints", "conversation_group_id")


class Id(click.ParamType[bytes]):
    """The type of an option for an id, written as commands print it, or its first digits.

    The options that name the daemon are eager, so they are known when an id is looked up."""

    name = "guid"

    def __init__(self, what: str, *places: Place, lister: str) -> None:
        """Create the type. `what`: the thing that has the id. `lister`: command that lists ids."""
        self._what = what
        self._places = places
        self._lister = lister

    def convert(
        self, value: object, _parameter: click.Parameter | None, context: click.Context | None
    ) -> bytes:
        """Return the bytes; raise `UsageError` for a text that is not an id, nor begins one."""
        if isinstance(value, bytes):
            return value
        text = str(value)
        try:
            return parse(text)
        except ValueError:
            pass
        if not is_beginning(text):
            raise UsageError(
                f"{text!r} is no {self._what} and no id",
                hint="it looks like 01234567-89ab-cdef-0123-456789abcdef, of which the first "
                f"{LEAST_DIGITS} digits or more are enough; see: {self._lister}",
            )
        if context is None or context.resilient_parsing:
            return b""
        return self._find(text, context)

    def _find(self, text: str, context: click.Context) -> bytes:
        given = context.params

        async def candidates(session: Session) -> set[str]:
            found: set[str] = set()
            for view, column in self._places:
                rows = await session.view(view, _SHOWN + 1, where={column: f"{text}*"})
                found |= {str(row[column]) for row in rows}
            return found

        found = ask(
            candidates,
            address=given.get("address"),
            config=given.get("config"),
            broker=given.get("broker") or "main",
        )
        return parse(only(found, text, self._what, self._lister))


def is_shortened(column: str, text: str) -> bool:
    """Return whether a text is a shortened id, and the column of a view has such ids."""
    columns = {_HANDLES[1], _CONVERSATIONS[1], _GROUPS[1]}
    return column in columns and is_beginning(text) and len(text.replace("-", "")) < 2 * ID_SIZE


def only(found: set[str], text: str, what: str, lister: str) -> str:
    """Return the one id that was found.

    Raises:
        ObjectNotFound: there is none.
        InvalidArgument: there are several.
    """
    if not found:
        raise ObjectNotFound(f"no {what} has an id that begins with {text!r}", hint=lister)
    if len(found) > 1:
        some = ", ".join(sorted(found)[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise InvalidArgument(f"{len(found)} ids begin with {text!r}: {some}", hint="add a digit")
    return found.pop()


HANDLE: Final = Id("handle of a dialog", _HANDLES, lister="brokerd dialog ls")
GROUP: Final = Id(
    "conversation group",
    _GROUPS,
    ("parked_groups", "conversation_group_id"),
    lister="brokerd group ls",
)
ANY_OF_DIALOG: Final = Id(
    "handle, conversation or group", _HANDLES, _CONVERSATIONS, _GROUPS, lister="brokerd dialog ls"
)
BROKER_ID: Final = Id(
    "broker",
    ("brokers", "broker_id"),
    ("routes", "broker_instance"),
    lister="brokerd broker ls; brokerd route ls",
)
