"""Copying: moves the store of a broker between files and PostgreSQL (REL-61, REL-62).

`places.py` says where a store is, `rows.py` copies and compares tables, `files.py` and `server.py`
are the two kinds of ends, `moving.py` has the order of the steps.
"""
