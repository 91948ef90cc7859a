"""One instance: builds its parts, connects them, starts and stops them in order."""
