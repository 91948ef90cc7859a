"""Telemetry: what a daemon reports about itself: the event log, counters and the metrics log.

In reading order: `log` (the interface through which components write), `log_events` (every event
with its meaning), `logs` (the event log itself); `metrics` (histograms and differences of
counters), `metric_names` (every figure with its meaning), `metrics_log` (their lines) and
`segments` (its sealed files); `status` (the answer to the verb `status`).

It collects nothing by itself: components write their events and counters here, and the passes of
`admin` and `maintenance` hand it the figures of an interval.
"""
