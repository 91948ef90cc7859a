"""Log: the interface through which every component writes to the event log.

Reads, calls: nothing.   Never: formats or writes a line; structlog's loggers implement `Log`.
"""

from typing import Protocol


class Log(Protocol):
    """An event log: `event` is a constant of `telemetry.logs`, `fields` are the values (MON-16)."""

    def debug(self, event: str, **fields: object) -> object:
        """Write a line of level debug."""
        ...

    def info(self, event: str, **fields: object) -> object:
        """Write a line of level info."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Write a line of level warning."""
        ...

    def error(self, event: str, **fields: object) -> object:
        """Write a line of level error."""
        ...


class NullLog:
    """A log that discards every line."""

    def debug(self, event: str, **fields: object) -> object:
        """Discard the line."""
        return None

    info = warning = error = debug
