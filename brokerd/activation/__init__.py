"""Activation: starts readers of a queue according to its load (chapter ACT)."""
