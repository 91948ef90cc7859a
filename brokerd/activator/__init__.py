"""The activator: a client that starts programs for queues that need readers (ACT-40)."""
