"""Plan: what every process of a run has to know, in one file of the run's directory."""

import os
from pathlib import Path
from typing import Final

import msgspec

from brokerd.errors import OutcomeUnknown, QueueDisabled

FOLDER: Final = "TMPDIR"
"""The variable with the run's directory: one that readers started by a daemon are given too."""
EXPECTED: Final = (OutcomeUnknown, QueueDisabled)
"""Errors that a program meets here although trying again is not all that they ask for."""
_FILE: Final = "plan.json"


class Plan(msgspec.Struct, frozen=True):
    """Where things are, and when messages are due."""

    stream: str
    journal: str
    client_address: str
    """Of the daemon with the initiators of all dialogs."""
    ledger_address: str
    """Of the one with their targets."""
    senders: int
    began: float
    """By the machine's monotonic clock, which its processes share."""
    seconds: float
    """How long sending is to take."""

    def due(self, at: int, messages: int) -> float:
        """When the message at that place of the stream is to be sent."""
        return self.began + self.seconds * at / messages

    def write(self, folder: Path) -> None:
        (folder / _FILE).write_bytes(msgspec.json.encode(self))


def read_plan() -> Plan:
    """The plan of the run that this process belongs to."""
    return msgspec.json.decode((Path(os.environ[FOLDER]) / _FILE).read_bytes(), type=Plan)
