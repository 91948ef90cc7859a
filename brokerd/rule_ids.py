"""Ids of rules in texts: docstrings cite them for those who read the code, messages do not. PURE.

Reads:  text.       Calls: nothing.
Never:  changes anything but a citation in parentheses, such as "(SEC-4, SX-21)".
"""

import re
from typing import Final

_ID: Final = r"[A-Z]{2,5}-[A-Z]?\d+[a-z]?"
_CITATION: Final = re.compile(rf"\s*\({_ID}(?:(?:, | and | to ){_ID})*\)")


def without_rules(text: str) -> str:
    """Return a text without the ids of rules that it cites."""
    return _CITATION.sub("", text)
