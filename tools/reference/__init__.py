"""The reference pages, made from the code so that they always agree with it.

`python -m tools.reference` writes docs/reference/; `--check` only reports stale pages.

Reads:  the definitions and docstrings of brokerd.      Calls: one module for each page.
Never:  has a description of its own; a missing description has to be added to the code.
"""
