"""Names: how principals that own certificates are called (SEC-4).

PURE.   Reads, calls: nothing.
Never:  needs the package `cryptography`, so that reading settings does not load it.

A name has its kind in front, `peer:west` or `client:billing`, so that no user of the machine can
have the same name.
"""

import re
from enum import StrEnum
from typing import Final

from brokerd.errors import InvalidArgument

NAME: Final = "{name}"
"""Place of the name of a principal in a rule for names in certificates."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Kind(StrEnum):
    """The kinds of principals that own certificates."""

    PEER = "peer"
    CLIENT = "client"


def principal_name(kind: Kind, name: str) -> str:
    """Return the full name of a principal.

    Raises:
        InvalidArgument: the name has another form.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is no name for a {kind}: 1 to 64 letters, digits, dots, - and _"
        )
    return f"{kind}:{name}"


def rule_problem(rule: str) -> str:
    """Return what is wrong with a rule for names in certificates (SEC-68); "" = nothing."""
    if not rule:
        return ""
    if rule.count(NAME) != 1:
        return f"it has to have {NAME} once, such as {NAME}.brokers.example"
    if len(rule) == len(NAME):
        return f"with {NAME} alone, every certificate of the CA would name a principal"
    return ""
