"""The page of the exit statuses."""

from brokerd.process.exit_statuses import ROWS
from tools.reference.markdown import code, codes, page, sentence, table

FILE = "exit-statuses.md"
_INTRODUCTION = """
Every command ends with one of these statuses. Numbers from 64 on are those of `sysexits.h`. The
last column has the codes of the [errors](errors.md) that lead to the status. An error whose code is
not in the table, such as one of a newer daemon, leads to 75 if it is retryable and to 1 if not.
"""


def render() -> str:
    """Return the page."""
    rows = [(code(str(one.status)), sentence(one.short), codes(one.codes)) for one in ROWS]
    return page("Exit statuses", _INTRODUCTION, table(("Status", "Meaning", "Errors"), rows))
