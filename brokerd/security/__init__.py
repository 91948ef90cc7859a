"""Who may do what; no sockets."""
