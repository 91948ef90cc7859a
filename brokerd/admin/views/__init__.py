"""The views: what an instance contains and does, as tables."""
