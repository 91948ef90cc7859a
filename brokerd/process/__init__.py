"""The daemon as a process: signals, exit statuses, supervision, the watchdog.

In reading order:

- `daemon.py`: runs an instance on the machine's clock, sockets and threads until a signal comes.
- `exit_statuses.py`: the status with which each error ends a command or the daemon.
- `reloading.py`: the effect of SIGHUP; `signals.py`: signals in long-running commands.
- `supervisor.py`: readiness and signs of life for systemd; `watchdog.py`: notices a blocked loop.
- `host.py`: the fingerprint of the machine; `allocator.py`: the memory kept for large bodies.

`cli/` calls `daemon.py`, which calls the others and `instance/`. Nothing here knows of messages.
"""
