"""What changed settings mean for a daemon that runs (REL-38)."""

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from brokerd.config.settings import Checks, DaemonSettings, LogLevel, LogSettings, Settings
from brokerd.process.reloading import RELOADABLE, difference

A, B = Path("/var/log/a.log"), Path("/var/log/b.log")


@pytest.mark.rule("REL-38")
def test_what_may_change_is_applied_and_the_rest_is_named_and_stays() -> None:
    old = Settings(log=LogSettings(file=A))
    new = Settings(
        log=LogSettings(file=B, level=LogLevel.DEBUG, segment_age=timedelta(seconds=5)),
        daemon=DaemonSettings(drain=timedelta(seconds=1), loop_blocked=timedelta(seconds=9)),
        checks=Checks(time=timedelta(seconds=3), memory=300 * 1024 * 1024),
    )
    found = difference(old, new)
    assert found.applied.keys() == RELOADABLE
    assert found.needs_restart == {"log.segment_age": '"5s"', "daemon.loop_blocked": '"9s"'}
    log = msgspec.structs.replace(new.log, segment_age=old.log.segment_age)
    daemon = msgspec.structs.replace(new.daemon, loop_blocked=old.daemon.loop_blocked)
    assert found.settings == msgspec.structs.replace(new, log=log, daemon=daemon)
    assert difference(found.settings, found.settings).applied == {}


@pytest.mark.rule("REL-38")
@pytest.mark.parametrize(("before", "after"), [(None, A), (A, None)])
def test_from_standard_error_to_a_file_or_back_needs_a_restart(
    before: Path | None, after: Path | None
) -> None:
    old, new = (Settings(log=LogSettings(file=file)) for file in (before, after))
    found = difference(old, new)
    assert (found.applied, found.settings) == ({}, old)
    assert found.needs_restart.keys() == {"log.file"}
