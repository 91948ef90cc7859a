"""Messages that pass through this instance, in memory only."""
