"""The reference pages: made from the code, so that they say what it says.

`python -m tools.reference` writes docs/reference/; `--check` only says which pages are not fresh.

Reads:  the definitions and docstrings of brokerd.      Calls: one module for each page.
Never:  has a description of its own: one that is missing belongs into the code.
"""
