"""`brokerd log`: the event log as a file, filtered, and followed across rotations (MAN-23).

Reads:  `log.file` of the settings, and its rotated siblings.      Calls: no daemon.
Never:  changes the log, or stops because it is rotated or the daemon starts anew.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import click

from brokerd.cli.options import config_option, json_option, past_instant
from brokerd.cli.output import print_json, print_line, warn
from brokerd.clock import Clock, Instant, SystemClock, show_instant
from brokerd.config.loading import load
from brokerd.errors import UsageError
from brokerd.ids import LEAST_DIGITS, is_beginning
from brokerd.telemetry.log_events import EVENTS
from brokerd.telemetry.log_reader import Line, LogReader
from brokerd.units import counted

_LOOK: Final = 0.25
"""Seconds between two looks at the file."""
_COMMON: Final = ("time", "severity", "event", "subclass", "instance", "instance_id", "boot_id")
"""Fields of every line, which are not repeated behind it."""
Wanted = Callable[[Line], bool]


@click.group(name="log")
def command() -> None:
    """The event log: its last lines, one dialog's lines, what comes."""


def _beginning(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """Return the digits of an id or of its beginning; raise `UsageError` for another text.

    No daemon is asked: the log may be that of a daemon that is gone."""
    if value is not None and not is_beginning(value):
        raise UsageError(
            f"{value!r} is no handle and no id",
            hint="it looks like 01234567-89ab-cdef-0123-456789abcdef, of which the first "
            f"{LEAST_DIGITS} digits or more are enough; see: brokerd dialog ls",
        )
    return None if value is None else value.replace("-", "").lower()


def _since(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return the start as the text that lines have; raise `UsageError` if it is none."""
    if value is None:
        return None
    return show_instant(past_instant(value))


@command.command(name="tail")
@click.option("-f", "--follow", is_flag=True, help="Go on with the lines that are written.")
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Number of latest lines; with --since, --dialog, --queue or --event: all by default.",
)
@click.option(
    "--dialog",
    callback=_beginning,
    metavar="GUID",
    help="Only lines that name this handle or id; its first digits are enough.",
)
@click.option("--queue", help="Only lines about this queue.")
@click.option("--event", help="Only this event, such as broker.connection or connection.")
@click.option(
    "--since", callback=_since, metavar="TIME", help="Only lines since: 10min, or a time."
)
@click.option(
    "--file", "file", type=click.Path(path_type=Path), help="The log, instead of log.file."
)
@config_option
@json_option
@click.pass_context
def tail(
    context: click.Context,
    *,
    follow: bool,
    count: int,
    dialog: str | None,
    queue: str | None,
    event: str | None,
    since: str | None,
    file: Path | None,
    config: Path | None,
    as_json: bool,
) -> int:
    """Print the latest lines of the event log; with -f also those that come.

    The log is a file if `log.file` is set. With --since, --dialog, --queue or --event the files
    that were rotated away are read too, also compressed ones. -f goes on when the file is rotated,
    and when the daemon starts anew. With --json each line is printed as the file has it.
    """
    path = file or load(config).settings.log.file
    if path is None:
        raise UsageError(
            "the settings name no file for the event log: it goes to standard error",
            hint='set log.file = "brokerd.log", or under systemd: journalctl -u brokerd -f',
        )
    if not path.exists() and not follow:
        raise UsageError(f"there is no log {path}", hint="start the daemon, or wait for it: -f")
    if event is not None:
        event = _event(event)
    is_wanted = _filter(dialog, queue, event, since)
    is_given = context.get_parameter_source("count") is not click.core.ParameterSource.DEFAULT
    has_filter = any(one is not None for one in (dialog, queue, event, since))
    reader = LogReader(path)
    try:
        sources = (reader.older(), reader.lines()) if has_filter else (reader.lines(),)
        latest: Iterable[Line] = (line for lines in sources for line in lines if is_wanted(line))
        if is_given or not has_filter:
            latest = deque(latest, maxlen=count)
        for line in latest:
            _print(line, as_json=as_json)
        if follow:
            asyncio.run(_follow(reader, is_wanted, SystemClock(), as_json=as_json))
    finally:
        reader.close()
        if reader.unreadable:
            warn(f"{counted(reader.unreadable, 'line')} of the log cannot be read as JSON")
    return 0


async def _follow(reader: LogReader, is_wanted: Wanted, clock: Clock, *, as_json: bool) -> None:
    while True:
        for line in reader.lines():
            if is_wanted(line):
                _print(line, as_json=as_json)
        sys.stdout.flush()
        await clock.sleep_until(clock.monotonic() + _LOOK)


def _event(name: str) -> str:
    """Return the whole name of an event.

    Raises:
        UsageError: there is no such event.
    """
    found = [one for one in EVENTS if name in (one, one.partition(".")[2])]
    if found:
        return found[0]
    names = ", ".join(sorted(one.removeprefix("broker.") for one in EVENTS))
    raise UsageError(f"there is no event {name!r}", hint=f"one of: {names}")


def _filter(dialog: str | None, queue: str | None, event: str | None, since: str | None) -> Wanted:
    def names_dialog(line: Line) -> bool:
        return dialog is None or any(
            isinstance(value, str) and value.replace("-", "").startswith(dialog)
            for value in line.values()
        )

    def is_wanted(line: Line) -> bool:
        return (
            (event is None or line.get("event") == event)
            and (queue is None or line.get("queue") == queue)
            and names_dialog(line)
            and (since is None or _time(line) >= since)
        )

    return is_wanted


def _time(line: Line) -> str:
    """Return the time of a line in the form that compares like time itself."""
    time = line.get("time", "")
    if isinstance(time, int | float):  # log.time = "epoch"
        return show_instant(Instant(int(time * 1_000_000)))
    return str(time)


def _print(line: Line, *, as_json: bool) -> None:
    if as_json:
        print_json(line, indent=0)
        return
    what = " ".join(str(line[name]) for name in ("event", "subclass") if line.get(name))
    rest = "  ".join(f"{name}={value}" for name, value in line.items() if name not in _COMMON)
    print_line(f"{_time(line)} {line.get('severity', '')!s:7} {what}  {rest}".rstrip())
