"""Checks of bodies outside the daemon: in a child process whose time and memory are limited.

In reading order: `checker` (the interface of checkers, and their verdicts), `child` (the process
that runs the checks, one body after another), `process` (starts that process when it is needed,
queues the bodies and reports the verdicts). `process` calls `child` over a pipe. The rules
themselves, JSON Schema and XSD, are in `objects.validation`, which `child` calls.
"""
