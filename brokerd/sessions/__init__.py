"""A client on the daemon's side: requests in, verbs called, answers out."""
