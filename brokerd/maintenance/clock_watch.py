"""Clock watch: reports jumps of UTC, and stores the state of the clock for the next start (REL-24).

Reads:  the instance's clock; at a start, the file `msdb.db-clock` in the data directory.
Calls:  the event log.
Never:  decides what counts as a jump: the clock decides.
Wakes:  every tick.
Fails:  if the file is missing or was not written, a start uses the machine's UTC as it is.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from brokerd.clock import HOLD, SECOND, ClockState, SteadyClock
from brokerd.errors import InvalidArgument
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION, CLOCK
from brokerd.units import show_duration

_NANO: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
"""Increase of UTC, in microseconds, after which the state is stored again."""
_HINT: Final = (
    "nothing expires or fires by it until it has stood for ten minutes; set the clock right, or if "
    "it is: brokerd clock confirm"
)


def _is_alike(state: ClockState, kept: ClockState) -> bool:
    """Return whether the stored state would serve a start as well as `state`."""
    is_same = state.jump == kept.jump and abs(state.offset - kept.offset) < _NANO
    return is_same and 0 <= state.utc - kept.utc < MINUTE


class ClockWatch:
    """The watch over the clock of one instance."""

    def __init__(self, *, clock: SteadyClock, msdb: Path, log: Log) -> None:
        """Create the watch.

        `msdb`: path of the instance's own store; the state of the clock is stored next to it."""
        self._clock = clock
        self._file = Path(f"{msdb}-clock")
        self._log = log
        self._kept: ClockState | None = None

    def resume(self) -> None:
        """Resume with the state that the last daemon stored; called before any store is opened."""
        with suppress(OSError, msgspec.DecodeError):
            self._clock.resume(msgspec.json.decode(self._file.read_bytes(), type=ClockState))

    def check(self) -> int:
        """Run the pass: log the events of the clock, and return their number."""
        events = self._clock.events()
        for what, ahead in events:
            fields = {"subclass": what, "seconds": round(ahead.total_seconds())}
            if what == "jumped":
                self._log.warning(CLOCK, **fields, hint=_HINT)
            else:
                self._log.info(CLOCK, **fields)
        self._keep()
        return len(events)

    def _keep(self) -> None:
        """Write the state of the clock, if it changed, without a sync.

        A sync is not needed: after a power cut the machine has rebooted, so only the last UTC is
        used, and a slightly older UTC serves as well."""
        state, kept = self._clock.state(), self._kept
        if state is None or (kept is not None and _is_alike(state, kept)):
            return
        self._kept = state
        aside = Path(f"{self._file}.new")
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(aside, flags, 0o600), "wb") as file:
                file.write(msgspec.json.encode(state))
            aside.replace(self._file)

    def warning(self) -> str:
        """Return the warning about a held jump, for `brokerd status` and `doctor`; "" = no jump."""
        ahead = self._clock.jump
        if ahead is None:
            return ""
        left = max(timedelta(), HOLD - timedelta(seconds=round(self._clock.held_for)))
        size = show_duration(abs(ahead))
        way = "ahead" if ahead > timedelta() else "back"
        return (
            f"the clock of the machine has jumped {size} {way}; that is not followed for another "
            f"{show_duration(left)}, in which nothing expires or fires by it"
        )

    def jump(self) -> timedelta | None:
        """Return how far the machine's UTC is ahead of the instance's; None = no jump is held."""
        return self._clock.jump

    def confirm(self, actor: str) -> Mapping[str, object]:
        """Follow the held jump now. Raises `InvalidArgument` if no jump is held."""
        ahead = self._clock.confirm()
        if ahead is None:
            raise InvalidArgument(
                "no jump of the clock is held", hint="brokerd status says so while one is"
            )
        seconds = round(ahead.total_seconds())
        self._log.info(ADMINISTRATION, subclass="confirm_clock", by=actor, seconds=seconds)
        return {"seconds": seconds}
