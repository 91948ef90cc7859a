"""Sockets and connections to peers: thin shells around the pure parts (END, TRN)."""
