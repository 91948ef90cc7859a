"""Rows: the statements of each table, one module for each family of tables.

They say what is written and read. `flush` and `deletions` run those that write, in one script;
`Store` offers those that read.
"""
