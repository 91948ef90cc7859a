"""The demonstration: two daemons, a client and workers, kills in between, and a verdict."""
