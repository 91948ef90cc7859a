"""Batch jobs over the metrics logs: functions from frame to frame; only `report.main` writes.

Nothing of `brokerd` is imported here, so that the directory can be handed to a cluster as it is.
"""
