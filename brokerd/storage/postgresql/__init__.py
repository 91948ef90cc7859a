"""Stores whose rows are in PostgreSQL: the second engine behind `Store` (design D11).

The statements of a store are written once, for SQLite. `texts.py` says them to PostgreSQL,
`connecting.py` finds the server, `connection.py` runs them there, `writer.py` and `reader.py` are
what the pipeline and the readers use, `opening.py` makes and opens a store, `ownership.py` says who
may write to it.
"""
