"""The activator: a client that starts programs where a queue needs readers (ACT-40)."""
