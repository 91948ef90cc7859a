"""`brokerd top`: queues and destinations of an instance, live, what is wrong first (MON-80 to 82).

Calls:  the verb `status` at each interval, `admin.top` for the lines, rich to draw them.
Never:  changes anything in the daemon; leaves the terminal otherwise than it was.
Fails:  if the daemon goes away, the last figures stay on the screen, with the reason, until it is
        back.
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from brokerd.admin.top.attention import Cause, causes, failing
from brokerd.admin.top.board import Board, DestinationLine, QueueLine, Sample, make_board
from brokerd.admin.top.frame import chosen_place, items_about, make_frame, text_of, visible, worst
from brokerd.admin.top.keys import Mode, Screen, press, read_keys
from brokerd.cli.options import (
    SECONDS,
    at_daemon,
    daemon_address,
    daemon_options,
    given_place,
    json_option,
)
from brokerd.cli.output import has_colours, print_json, print_line, terminal_width
from brokerd.cli.session import ask, session_with
from brokerd.client.session import Session
from brokerd.clock import SystemClock
from brokerd.errors import BrokerError, ConnectionLost, DaemonUnreachable
from brokerd.process import exit_statuses
from brokerd.telemetry.status import InstanceStatus

if TYPE_CHECKING:
    from rich.text import Text

EVERY: Final = 2.0
_LEAST: Final = 0.2
_STYLES: Final = {
    "bad": "bold red",
    "warn": "yellow",
    "good": "green",
    "head": "bold",
    "dim": "dim",
    "chosen": "reverse",
}
_PLAIN: Final = {"head": "bold", "chosen": "reverse", "dim": "dim"}
"""Styles of a terminal without colours."""


@click.command(name="top")
@click.option(
    "--every",
    type=SECONDS,
    default=f"{EVERY:g}s",
    show_default=True,
    help="Time between two frames.",
)
@click.option("--once", is_flag=True, help="Print one frame, with the rates of one interval.")
@daemon_options
@json_option
def command(
    *,
    every: float,
    once: bool,
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> int:
    """Show queues and destinations live: what is wrong first, then rates, depths and readers.

    Arrows or j and k choose a line, Enter shows why it suffers and the command that helps, s sorts,
    / filters, ? explains, q quits. Without a terminal, or with --once or --json, one frame is
    printed, after one interval; exit status 2 if something asks for action, else 0.
    """
    every = max(_LEAST, every)
    if once or as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):

        async def fetch(session: Session) -> tuple[InstanceStatus, Board]:
            before = await _sample(session)
            await session.clock.sleep_until(session.clock.monotonic() + every)
            sample = await _sample(session)
            return sample.status, make_board(sample, before)

        seen, board = ask(fetch, address=address, config=config, broker=broker, of_instance=True)
        status = exit_statuses.LOOK if board.attention else exit_statuses.OK
        if as_json:
            print_json(board)
            return status
        found = _at_daemon(causes(seen, board.attention), given_place())
        frame = make_frame(
            board, Screen(cursor=-1), width=terminal_width(), height=None, causes=found
        )
        for line in text_of(frame).splitlines():
            print_line(line)
        return status
    return asyncio.run(_Live(daemon_address(address, config), broker, every).run())


async def _sample(session: Session) -> Sample:
    answer = await session.status()
    return Sample(msgspec.convert(answer, InstanceStatus, strict=False), session.clock.monotonic())


class _Live:
    """The screen while it is live."""

    def __init__(self, where: str, broker: str, every: float) -> None:
        self._where = where
        self._broker = broker
        self._every = every
        self._place = given_place()
        self._screen = Screen()
        self._now: Sample | None = None
        self._board: Board | None = None
        self._lost = ""
        self._services: dict[tuple[str, str], set[str]] = {}
        """The services of each queue, by broker and queue, since the last connection was made."""
        self._changed = asyncio.Event()
        self._input = b""

    async def run(self) -> int:
        """Show frames until the user leaves."""
        from rich.console import Console  # noqa: PLC0415  # takes a tenth of a second
        from rich.live import Live  # noqa: PLC0415

        session = await session_with(self._where, self._broker, retry=0.0, of_instance=True)
        loop = asyncio.get_running_loop()
        descriptor = sys.stdin.fileno()
        console = Console(highlight=False, no_color=not has_colours())
        with (
            _keys_at_once(descriptor),
            Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
        ):
            loop.add_reader(descriptor, self._read, descriptor)
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._leave)
            loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
            sampling = loop.create_task(self._sample_for_ever(session))
            try:
                while not self._screen.is_over:
                    self._changed.clear()
                    live.update(self._drawn(console.size.width, console.size.height), refresh=True)
                    await self._changed.wait()
            finally:
                loop.remove_reader(descriptor)
                while not sampling.done():  # a task that connects may lose one cancellation
                    sampling.cancel()
                    await asyncio.wait({sampling}, timeout=_LEAST)
        return 0

    async def _sample_for_ever(self, session: Session | None) -> None:
        """Ask for the status at each interval; connect again if the daemon was gone."""
        clock = SystemClock()
        while True:
            began = clock.monotonic()
            try:
                if session is None:
                    session = await session_with(
                        self._where, self._broker, retry=0.0, of_instance=True
                    )
                sample = await _sample(session)
                if self._board is None or self._lost:
                    await self._ask_services({one.broker for one in sample.status.queues})
            except (ConnectionLost, DaemonUnreachable) as error:
                self._lost = error.message
                if session is not None:
                    await session.close()
                session = None
            except BrokerError as error:
                self._lost = error.message
            else:
                self._board, self._now, self._lost = make_board(sample, self._now), sample, ""
            self._changed.set()
            await clock.sleep_until(began + self._every)

    async def _ask_services(self, brokers: set[str]) -> None:
        """Ask which services have which queue; brokers that do not answer are left out."""
        self._services.clear()
        for broker in sorted(brokers):
            try:
                async with await session_with(self._where, broker, retry=0.0) as session:
                    for row in await session.view("services"):
                        queue = broker, str(row["service_queue_id"])
                        self._services.setdefault(queue, set()).add(str(row["name"]))
            except BrokerError:  # without a permission, say: the names of queues have to do
                continue

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, 1024)
        if not data:  # the terminal is gone
            self._leave()
            return
        for key in read_keys(data):
            lines = [] if self._board is None else visible(self._board, self._screen)
            self._screen = press(self._screen, key, len(lines), worst(lines))
        self._changed.set()

    def _leave(self) -> None:
        self._screen = msgspec.structs.replace(self._screen, is_over=True)
        self._changed.set()

    def _drawn(self, width: int, height: int) -> "Text":
        from rich.text import Text  # noqa: PLC0415

        if self._board is None:
            return Text(f"{self._where}: {self._lost or 'asking'}"[:width])
        rows = make_frame(
            self._board,
            self._screen,
            width=width,
            height=height,
            causes=self._causes() if self._screen.mode is Mode.DETAIL else (),
            lost=self._lost,
        )
        styles = _STYLES if has_colours() else _PLAIN
        drawn = Text(no_wrap=True, overflow="crop", end="")
        for number, row in enumerate(rows):
            if number:
                drawn.append("\n")
            for piece in row:
                drawn.append(piece.text, styles.get(piece.style))
        return drawn

    def _causes(self) -> list[Cause]:
        """Return why the chosen line suffers, with commands that can be copied."""
        assert self._board is not None, "something is drawn"
        assert self._now is not None, "something was asked"
        lines = visible(self._board, self._screen)
        if not lines:
            return []
        line = lines[chosen_place(lines, self._screen)]
        queue = (line.broker, line.name) if isinstance(line, QueueLine) else None
        items = items_about(self._board, line, self._services.get(queue or ("", ""), ()))
        found = causes(self._now.status, items, queue)
        if not found and isinstance(line, DestinationLine):
            found = failing(self._now.status, line.address)
        return _at_daemon(found, self._place)


def _at_daemon(found: Sequence[Cause], place: str) -> list[Cause]:
    """Return the causes with commands that name the daemon, as `brokerd top` was told to."""
    return [
        cause._replace(
            findings=[
                msgspec.structs.replace(
                    one, commands=tuple(at_daemon(each, place) for each in one.commands)
                )
                for one in cause.findings
            ]
        )
        for cause in found
    ]


@contextmanager
def _keys_at_once(descriptor: int) -> Iterator[None]:
    """Give each key as it is pressed, without showing it; restore the terminal afterwards."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
