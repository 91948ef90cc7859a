"""Doors for tests that listen."""

from typing import Any

from brokerd.clock import Clock, SystemClock
from brokerd.telemetry.log import NullLog
from brokerd.transport.door import Door, DoorOptions


class Lines(NullLog):
    """A log that keeps its warnings."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **fields: object) -> object:
        self.lines.append((event, fields))
        return None


def open_door(clock: Clock | None = None, **limits: int) -> Door:
    """A door with these limits; it refuses with the reason in plain text."""
    options = DoorOptions(**({"most": 1000} | limits))
    return Door(
        "tests", options=options, refusal=str.encode, clock=clock or SystemClock(), log=Lines()
    )
