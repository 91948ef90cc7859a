"""Activation: starts readers of a queue by its load (chapter ACT)."""
