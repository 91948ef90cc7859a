"""Telemetry: the event log, counters and the metrics log."""
