"""Messages that arrive for this instance: sorting, storing, acknowledging."""
