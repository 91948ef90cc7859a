"""The page: the state of an instance as server-rendered HTML, and the deeds (MON-40 to MON-54).

`sections.py` lists the sections and answers requests for them; each section is a module with a
function that loads its content and one that draws it, so that the same content is served as HTML
and as JSON. `deeds.py` changes something, after a confirmation. `desk.py` reads with the rights of
the caller, `html.py` escapes every text.
"""

from brokerd.http.page.sections import routes, stranger_page

__all__ = ["routes", "stranger_page"]
