"""Periodic work: the table of passes, and one module for each pass that needs more than a line."""
