"""The main job, shown: two daemons, clients and workers, kills in between, and a verdict."""
