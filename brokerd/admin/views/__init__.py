"""The views: the content and activity of an instance, as tables that are read page by page.

`columns.py` defines every view: its columns, their order, and the key of a row. `views.py` answers
a request for a page: it checks the request against the columns and calls the module that has the
rows: `stored.py` (endpoints and messages, from a store), `transport.py` (connections and
destinations), `statistics.py` (totals since the start).

Apart from the views: `state.py` answers `status`, `browse.py` shows the content of a queue,
`locks.py` samples held locks for the metrics log. No module of this package changes anything.
"""
