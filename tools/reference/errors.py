"""The page of the errors."""

import importlib
import pkgutil
from collections.abc import Iterator

import brokerd
from brokerd import errors
from brokerd.errors import FOUND_BY_BROKERS, RESEND_HELPS, BrokerError
from tools.reference.markdown import code, page, prose, sentence, table

FILE = "errors.md"
_INTRODUCTION = """
Every error that brokerd raises on purpose is a `brokerd.BrokerError`. It has a stable `code`, a
`hint` that says what to do, and `retryable`, which says whether the same request may succeed later.
Its `ssb_code` is the number that Service Broker has for it, if there is one. A command prints
message and hint and ends with the [exit status](exit-statuses.md) of the error.
"""
_FOUND = """
## Errors that a broker found

When a broker ends a dialog with an error, the program at the other side receives an Error message
with a negative number, or a `RemoteError` with this `code` and `hint`. After some of them, marked
below, the same messages may arrive on a new dialog; after the others the same refusal would follow.
"""


def every_error() -> list[type[BrokerError]]:
    """Return all error classes of brokerd, those of `errors.py` first, in its order."""
    for module in pkgutil.walk_packages(brokerd.__path__, "brokerd."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[BrokerError]] = list(dict.fromkeys([BrokerError, *_below(BrokerError)]))
    own = [one for one in found if one.__module__ == errors.__name__]
    others = sorted((one for one in found if one not in own), key=lambda one: one.code)
    order = {name: number for number, name in enumerate(vars(errors))}
    return sorted(own, key=lambda one: order[one.__name__]) + [
        one for one in others if one.__module__.startswith("brokerd.")
    ]


def _below(kind: type[BrokerError]) -> Iterator[type[BrokerError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _meaning(error: type[BrokerError]) -> str:
    """Return the meaning of an error, its number, and whether a retry may help."""
    text = sentence((error.__doc__ or "").partition("\n")[0])
    number = f" Number {error.ssb_code}." if error.ssb_code else ""
    return text + number + (" **Retryable.**" if error.retryable else "")


def render() -> str:
    """Return the page."""
    rows = [
        (
            code(one.code),
            _meaning(one),
            prose(one.hint),
        )
        for one in every_error()
        if "code" in vars(one)
    ]
    found = [
        (
            code(str(number)),
            code(name),
            prose(hint) + ("; **a new dialog may help**" if number in RESEND_HELPS else ""),
        )
        for number, (name, hint) in sorted(FOUND_BY_BROKERS.items(), reverse=True)
    ]
    return page(
        "Errors",
        _INTRODUCTION,
        table(("Code", "Meaning", "What to do"), rows),
        _FOUND.strip(),
        table(("Number", "Code", "What to do"), found),
    )
