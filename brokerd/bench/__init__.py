"""Benchmarks: daemons and load processes of their own, measured, as one JSON result."""
