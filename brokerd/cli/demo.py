"""`brokerd demo`: runs two services that converse, and prints a verdict in the last line."""

import signal
import sys
from pathlib import Path

import click

from brokerd.cli.options import json_option
from brokerd.cli.output import print_json, print_line, warn
from brokerd.clock import Clock, SystemClock

_FILE_EVERY = 5.0
"""Seconds between two lines of progress if a line cannot replace the one before."""


@click.command(name="demo")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/demo"),
    show_default=True,
    help="Directory of the demo; replaced by each run.",
)
@click.option(
    "--dialogs", type=click.IntRange(1), default=500, show_default=True, help="Dialogs to begin."
)
@click.option(
    "--orders", type=click.IntRange(1), default=20_000, show_default=True, help="Orders to send."
)
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Send the files below this directory instead of orders.",
)
@click.option("--pattern", default="*", show_default=True, help="With --input: the files to send.")
@click.option("--limit-files", type=click.IntRange(1), help="With --input: most files to send.")
@click.option(
    "--limit-lines",
    type=click.IntRange(1),
    help="With --input: begin no further file after this number of lines.",
)
@click.option("--no-kill", is_flag=True, help="Do not kill the daemons.")
@click.option("--no-report", is_flag=True, help="Make no report, for which Spark is needed.")
@click.option("--keep", is_flag=True, help="Keep the stores; logs and report are always kept.")
@json_option
def command(
    *,
    directory: Path,
    dialogs: int,
    orders: int,
    source: Path | None,
    pattern: str,
    limit_files: int | None,
    limit_lines: int | None,
    no_kill: bool,
    no_report: bool,
    keep: bool,
    as_json: bool,
) -> int:
    """Let two instances converse, kill each in mid-stream, and check that no message was lost.

    Two daemons, east and west, are started as separate processes and paired, so that all between
    them is encrypted. A client at east begins dialogs
    with the service warehouse at west and sends orders in transactions; workers at west answer each
    in the transaction that receives it. After a third of the answers west is killed (SIGKILL) and
    started again, after two thirds east is. The client checks every reply: its number, its count,
    and a running hash of all orders before it, which the worker keeps in the same commit. At the
    end both stores must have settled, both daemons stop, and the report is made from their logs.

    With --input each file is sent on a dialog of its own, a message per line; lines above 64 KiB
    are cut. The far side updates a SHA-256 in the commits that receive the lines, and answers with
    it at the end; it must be the hash of the file.

    The last line is "demo: settled: ..." with exit status 0, or "demo: FAILED: ..." with 1.
    """
    from brokerd.demo.result import described  # noqa: PLC0415
    from brokerd.demo.run import DemoOptions, Teller, demo  # noqa: PLC0415  # loads a lot

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop as Ctrl-C does
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background of a script
    options = DemoOptions(
        directory=directory,
        dialogs=dialogs,
        orders=orders,
        source=source,
        pattern=pattern,
        limit_files=limit_files,
        limit_lines=limit_lines,
        kill=not no_kill,
        report=not no_report,
        keep=keep,
    )
    line = _Line(SystemClock(), to_errors=as_json)
    result = demo(options, Teller(say=line.print_line, progress=line.progress))
    for text in described(result):
        line.print_line(text)
    if result.report:
        line.print_line(f"report     {result.report}")
    for fault in result.differs:
        for text in fault.splitlines():
            line.print_line(f"differs    {text}")
    if not result.ok:
        line.print_line(f"logs       {result.directory}/east.log, {result.directory}/west.log")
    if as_json:
        print_json({"verdict": result.verdict, "ok": result.ok, "result": result})
    else:
        line.print_line(result.verdict)
    return 0 if result.ok else 1


class _Line:
    """The output of the demo; on a terminal, a line of progress replaces the one before."""

    def __init__(self, clock: Clock, *, to_errors: bool) -> None:
        self._clock = clock
        self._to_errors = to_errors
        self._stream = sys.stderr if to_errors else sys.stdout
        self._terminal = self._stream.isatty()
        self._drawn = False
        self._printed_at = clock.monotonic()

    def print_line(self, text: str) -> None:
        """Print a line that stays."""
        self._clear()
        (warn if self._to_errors else print_line)(text)
        self._stream.flush()

    def progress(self, text: str) -> None:
        """Print a line that the next one replaces; without a terminal, print only some lines."""
        if self._terminal:
            self._clear()
            click.echo(text, nl=False, err=self._to_errors)
            self._drawn = True
        elif self._clock.monotonic() - self._printed_at >= _FILE_EVERY:
            self._printed_at = self._clock.monotonic()
            self.print_line(text)

    def _clear(self) -> None:
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=self._to_errors)
            self._drawn = False
