"""Fast path: the shortened way of ordinary messages."""
