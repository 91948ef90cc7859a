"""The daemon as a process: signals, exit statuses, supervision, the watchdog."""
