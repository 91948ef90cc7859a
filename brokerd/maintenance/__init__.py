"""Periodic work: the table of passes, and one module for each pass longer than one line."""
