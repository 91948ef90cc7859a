"""Messages that arrive for this instance: they are sorted, stored and acknowledged."""
