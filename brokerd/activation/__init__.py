"""Activation: readers of a queue are started by its load (chapter ACT)."""
