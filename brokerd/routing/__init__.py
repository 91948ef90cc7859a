"""Routing, pure: which broker or which network address a message goes to (chapter RTE)."""
