"""Supervisor: reports to systemd or its like that the process is ready, alive or stopping (FP-8).

Reads:  NOTIFY_SOCKET and WATCHDOG_USEC, as systemd and others set them.
Calls:  that socket, with one datagram for each sign, by the protocol of sd_notify.
Never:  waits or fails; a sign that cannot be sent is skipped, and the next one follows. Signs of
        life come only from the loop, so that a daemon whose loop is blocked sends none and is
        restarted by its supervisor.
"""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Self

SIGNS: Final = 4
"""Number of signs of life within the time limit of the supervisor."""


class Supervisor:
    """The supervisor of the process, such as systemd; without an address it gets no signs."""

    def __init__(self, address: str = "", *, every: int = 0) -> None:
        """Create the supervisor.

        `address`: its socket. `every`: turns of the loop per sign of life; 0 = no signs of life.
        """
        self._address = f"\0{address[1:]}" if address[:1] == "@" else address
        self._every = every
        self._turns = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, turn: float) -> Self:
        """Return the supervisor that the environment names.

        `turn`: the shortest time in seconds between two calls of `turned`.
        """
        address = environment.get("NOTIFY_SOCKET", "")
        meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        given = environment.get("WATCHDOG_USEC", "")
        if not (given.isdecimal() and meant):
            return cls(address)
        return cls(address, every=max(1, int(int(given) / 1e6 / SIGNS / turn)))

    def ready(self) -> None:
        """Report that the daemon answers clients and peers."""
        self._send("READY=1")

    def describe(self, text: str) -> None:
        """Report in words what the daemon is doing, for people who ask the supervisor."""
        self._send(f"STATUS={text}")

    def turned(self) -> None:
        """Report a sign of life, every `every` turns of the loop."""
        if not self._every:
            return
        self._turns += 1
        if self._turns >= self._every:
            self._turns = 0
            self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Report that the daemon reads its settings again; `ready` reports that it is done."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now}")

    def stopping(self) -> None:
        """Report that the daemon is stopping, as it was asked to."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            way.sendto(state.encode(), self._address)
