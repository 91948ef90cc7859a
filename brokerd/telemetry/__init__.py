"""Telemetry: the reports of a daemon about itself: event log, counters and metrics log.

In reading order: `log` (the interface through which components write), `log_events` (every event
with its meaning), `logs` (the event log itself); `metrics` (histograms and differences of
counters), `metric_names` (every figure with its meaning), `metrics_log` (the lines with the
figures) and `segments` (the sealed files of the metrics log); `status` (the answer to the verb
`status`).

This package collects nothing by itself: components write their events and counters to it, and the
passes of `admin` and `maintenance` give it the figures of an interval.
"""
