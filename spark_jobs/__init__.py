"""Batch jobs over the metrics logs: functions from frame to frame.

Only `ingest`, `lake`, `delta`, `remote` and `report` write. Nothing of `brokerd` is imported here,
so that the directory can be handed to a cluster as it is.
"""
