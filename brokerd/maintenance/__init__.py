"""Periodic work: the table of passes, and one module for each that needs more than a line."""
