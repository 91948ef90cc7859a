"""The page of the views."""

from brokerd.admin.views.columns import VIEWS
from tools.reference.markdown import code, page, prose, sentence, table

FILE = "views.md"
_INTRODUCTION = """
A view shows what a broker or the instance holds, as rows. Reading one changes nothing and takes no
lock. Programs read a view with `session.view("NAME")`; commands such as `brokerd dialog ls` and
`brokerd queue ls` show some of them, and print every column with `--json`.

Names follow those of Service Broker. A column that ends in `_id` and points to a declared object
holds its name. Instants are UTC: microseconds since 1970 in a program, text in the output of
commands. NULL is `None` in Python and `null` in JSON.
"""


def render() -> str:
    """Return the page."""
    parts = ["\n".join(f"- [{code(name)}](#{name})" for name in VIEWS)]
    for name, view in VIEWS.items():
        rows = [(code(column), prose(meaning)) for column, meaning in view.columns.items()]
        parts += [f"## {name}", sentence(view.meaning), table(("Column", "Meaning"), rows)]
    return page("Views", _INTRODUCTION, *parts)
