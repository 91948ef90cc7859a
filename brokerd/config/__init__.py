"""Settings of a daemon: their types, their file, and what a file may not say."""
