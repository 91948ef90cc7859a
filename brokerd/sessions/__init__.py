"""The daemon's side of a client: requests in, verbs called, answers out."""
