"""The daemon's side of client connections: reads requests, runs verbs, writes answers."""
