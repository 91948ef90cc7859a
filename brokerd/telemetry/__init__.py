"""Logs, counters and the metrics log."""
