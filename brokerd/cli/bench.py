"""`brokerd bench`: the speed of this machine, with settings and percentiles, as JSON."""

import asyncio
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from brokerd.bench import comparison
from brokerd.bench.activation import ActivationOptions
from brokerd.bench.activation import activation as measure_activation
from brokerd.bench.backlog import BacklogOptions
from brokerd.bench.backlog import backlog as measure_backlog
from brokerd.bench.dialogs import DialogsOptions
from brokerd.bench.dialogs import dialogs as measure_dialogs
from brokerd.bench.idle import IdleOptions
from brokerd.bench.idle import idle as measure_idle
from brokerd.bench.large import LargeOptions
from brokerd.bench.large import large as measure_large
from brokerd.bench.latency import MOST_CALLERS, LatencyOptions
from brokerd.bench.latency import latency as measure_latency
from brokerd.bench.loads import TAKES
from brokerd.bench.local import LocalOptions
from brokerd.bench.local import local as measure_local
from brokerd.bench.measuring import MOST_BODY, MOST_CLIENTS, Measure
from brokerd.bench.peer import PeerOptions
from brokerd.bench.peer import peer as measure_peer
from brokerd.bench.replay import ReplayOptions
from brokerd.bench.replay import replay as measure_replay
from brokerd.bench.route import RouteOptions
from brokerd.bench.route import route as measure_route
from brokerd.bench.scale import By, ScaleOptions, picture
from brokerd.bench.scale import scale as measure_scale
from brokerd.bench.scale_out import ScaleOutOptions
from brokerd.bench.scale_out import scale_out as measure_scale_out
from brokerd.bench.stages import StagesOptions
from brokerd.bench.stages import stages as measure_stages
from brokerd.bench.stalled import StalledOptions
from brokerd.bench.stalled import stalled as measure_stalled
from brokerd.bench.stamps import STAMP
from brokerd.bench.tally import MOST_PROCESSES
from brokerd.cli.bench_keys import explained
from brokerd.cli.options import json_option
from brokerd.cli.output import print_json, print_line, table
from brokerd.errors import UsageError
from brokerd.model import Host
from brokerd.process.signals import on_interrupt

_Function = Callable[..., None]


class _Finite(click.FloatRange):
    """The type of an option whose value is a finite number."""

    def convert(
        self,
        value: Any,  # noqa: ANN401  # as click gives it
        parameter: click.Parameter | None,
        context: click.Context | None,
    ) -> float:
        """Return the number; refuse one that is out of range or not finite."""
        number = float(super().convert(value, parameter, context))
        if not math.isfinite(number):
            self.fail(f"{value} is no number that can be measured with", parameter, context)
        return number


class _Directory(click.Path):
    """The type of an option for a writable directory, with an absolute path as its value."""

    def __init__(self, *, exists: bool) -> None:
        super().__init__(exists=exists, file_okay=False, writable=True, path_type=Path)

    def convert(
        self,
        value: str | os.PathLike[str],
        parameter: click.Parameter | None,
        context: click.Context | None,
    ) -> Path:
        """Return the absolute path; refuse one that cannot be used."""
        return Path(os.fsdecode(super().convert(value, parameter, context))).absolute()


class _NewFile(click.Path):
    """The type of an option for a writable file, which is checked before the measurement."""

    def __init__(self, *, suffix: str = "") -> None:
        """Create the type. `suffix`: the only extension that the file's name may have."""
        super().__init__()
        self._suffix = suffix

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path:
        """Return the path; refuse one that cannot be written."""
        file = Path(str(value))
        if self._suffix and file.suffix.lower() not in {"", self._suffix}:
            self.fail(f"{file} would be a {self._suffix} file: name it so", parameter, context)
        if file.is_dir():
            self.fail(f"{file} is a directory", parameter, context)
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            self.fail(f"{file} cannot be written", parameter, context)
        return file


_number = partial(click.option, show_default=True)


def _up_to(most: int) -> Callable[..., Callable[[_Function], _Function]]:
    """Return a decorator that makes options for a number from 1 to `most`."""
    return partial(_number, type=click.IntRange(1, most))


_at_a_time = _up_to(1000)
_transactions = _up_to(TAKES.transactions)
_clients = _up_to(MOST_CLIENTS)
_dialogs = _up_to(1_000_000)
_under_way = _up_to(1_000_000)
_messages = _up_to(10_000_000)
_batch = _up_to(10_000)
_rounds = _up_to(10_000)
_positive = partial(_number, type=_Finite(min=0, min_open=True, max=1_000_000))
_not_negative = partial(_number, type=_Finite(min=0, max=1_000_000))
_body = partial(_number, type=click.IntRange(STAMP, MOST_BODY))
_size = _body(
    "--size", default=256, help="Bytes of a body, which begins with the time of its send."
)

_directory = click.option(
    "--directory", type=_Directory(exists=True), help="Directory for the stores."
)
_save = click.option("--save", type=_NewFile(), help="Also write the result to this file.")


@click.group(name="bench")
def command() -> None:
    """Measure rates and latencies on this machine; daemons and clients run as separate processes.

    The result is one JSON object, which includes the settings of the run; the help of each
    benchmark explains its keys. Rates are per second, percentiles exact to within 2 %.
    """


def _shared(function: _Function) -> _Function:
    for option in (
        _positive("--seconds", default=5.0, help="Length of the measured time."),
        _clients("--clients", default=8, help="Clients on each side."),
        _at_a_time("--outstanding", default=100, help="Sends under way."),
        _dialogs("--dialogs", default=64, help="Dialogs of each client."),
        _size,
        _batch("--batch", default=100, help="Messages in a transaction."),
        _up_to(MOST_PROCESSES)("--processes", default=1, help="Load processes on each side."),
        _directory,
        _save,
    ):
        function = option(function)
    return function


@command.command()
@_shared
@_transactions(
    "--transactions", default=2, help="Transactions under way for each receiving client."
)
@explained
def local(save: Path | None, **options: object) -> None:
    """Measure one daemon: sends, each confirmed separately, then receives in transactions."""
    _run(partial(measure_local, msgspec.convert(options, LocalOptions)), save)


@command.command()
@_shared
@_under_way("--cap", default=1600, help="Messages under way.")
@click.option("--forwarder", is_flag=True, help="Send through a third daemon, which forwards.")
@click.option("--secured", is_flag=True, help="Encrypt and authenticate the dialogs.")
@click.option("--encrypted", is_flag=True, help="Encrypt the connections between the daemons.")
@click.option(
    "--compare", is_flag=True, help="Measure without and with a forwarder, and the ratio."
)
@explained
def peer(save: Path | None, **options: object) -> None:
    """Measure two daemons: send at one, receive and commit at the other."""
    _run(partial(measure_peer, msgspec.convert(options, PeerOptions)), save)


@command.command(name="scale-out")
@_shared
@_under_way("--cap", default=1600, help="Messages under way at each daemon.")
@_up_to(16)("--daemons", default=4, help="Daemons at once.")
@click.option(
    "--url", default="", help="PostgreSQL database that gets all stores, and loses them again."
)
@explained
def scale_out(save: Path | None, **options: object) -> None:
    """Measure one daemon, then several at once, each with a broker of its own."""
    _run(partial(measure_scale_out, msgspec.convert(options, ScaleOutOptions)), save)


@command.command()
@_shared
@_under_way("--cap", default=1600, help="Messages under way.")
@click.option("--peer", is_flag=True, help="Send from one daemon to another; report on both.")
@click.option("--secured", is_flag=True, help="With --peer: encrypt and authenticate the dialogs.")
@click.option("--encrypted", is_flag=True, help="With --peer: encrypt the connection.")
@explained
def stages(save: Path | None, **options: object) -> None:
    """Sample one daemon: processor time per message by stage, and the parts of a flush."""
    _run(partial(measure_stages, msgspec.convert(options, StagesOptions)), save)


@command.command()
@_messages("--messages", default=1_000_000, help="Number of messages that wait in the end.")
@_dialogs("--dialogs", default=64, help="Dialogs of the messages.")
@_size
@_batch("--batch", default=100, help="Messages in a transaction.")
@_directory
@_save
@explained
def backlog(save: Path | None, **options: object) -> None:
    """Measure memory, store and receives of one daemon with few, then many, waiting messages."""
    _run(partial(measure_backlog, msgspec.convert(options, BacklogOptions)), save)


@command.command()
@_messages("--dialogs", "--messages", "dialogs", default=100_000, help="Dialogs to measure.")
@click.option("--peer", is_flag=True, help="Use two daemons, each with one side of the dialogs.")
@_not_negative("--replay-guard", default=1.0, help="Seconds for which a closed dialog is kept.")
@_at_a_time("--outstanding", default=100, help="Dialogs begun at a time.")
@_transactions("--readers", default=8, help="Transactions that receive at a time.")
@_size
@_directory
@_save
@explained
def dialogs(save: Path | None, **options: object) -> None:
    """Begin and end dialogs of one message each: their rate, and what remains of them."""
    _run(partial(measure_dialogs, msgspec.convert(options, DialogsOptions)), save)


@command.command()
@_positive("--seconds", default=5.0, help="Measured time of each phase.")
@_positive("--rate", default=500.0, help="Messages a second of end_to_end.")
@_up_to(MOST_CALLERS)("--callers", default=64, help="Callers of call_many.")
@_size
@_directory
@_save
@explained
def latency(save: Path | None, **options: object) -> None:
    """Measure latencies of one lightly loaded daemon, compared with one sync of the disk."""
    _run(partial(measure_latency, msgspec.convert(options, LatencyOptions)), save)


@command.command()
@_positive("--seconds", default=5.0, help="Measured time of each phase.")
@_rounds("--rounds", default=3, help="Rounds of both phases; the median round is reported.")
@_positive("--rate", default=500.0, help="Small messages a second.")
@_dialogs("--dialogs", default=16, help="Dialogs of the small messages.")
@_size
@_body("--large", default=16 * 1024 * 1024, help="Bytes of a large message.")
@_positive("--every", default=1.0, help="Seconds between large messages.")
@_directory
@_save
@explained
def large(save: Path | None, **options: object) -> None:
    """Measure small messages alone, then with large ones of another dialog among them.

    The messages go from one daemon to another.
    """
    _run(partial(measure_large, msgspec.convert(options, LargeOptions)), save)


@command.command()
@_positive("--seconds", default=5.0, help="Measured time of each phase.")
@_dialogs("--dialogs", default=16, help="Dialogs to each peer.")
@_size
@_under_way("--cap", default=400, help="Messages under way to each of the three peers.")
@_positive("--rate", default=200.0, help="Messages a second to the fourth peer.")
@_directory
@_save
@explained
def stalled(save: Path | None, **options: object) -> None:
    """Measure sending to three peers, while a fourth peer works and while it is stopped."""
    _run(partial(measure_stalled, msgspec.convert(options, StalledOptions)), save)


@command.command()
@_dialogs("--dialogs", default=10_000, help="Open dialogs, each with a received message.")
@_clients("--connections", default=100, help="Idle clients.")
@_positive("--seconds", default=20.0, help="Length of the measured time.")
@click.option(
    "--keep",
    type=_Directory(exists=False),
    help="Directory to keep the dialogs in, and to reuse them.",
)
@_directory
@_save
@explained
def idle(save: Path | None, **options: object) -> None:
    """Measure one newly started daemon: its memory and processor time while it is idle."""
    _run(partial(measure_idle, msgspec.convert(options, IdleOptions)), save)


@command.command()
@_rounds("--rounds", default=30, help="Messages sent to an idle queue.")
@_up_to(10_000)("--groups", default=64, help="Groups that arrive at once.")
@_up_to(100_000)("--messages", default=100, help="Messages of each group.")
@_up_to(32_767)("--max-readers", default=8, help="Most readers of the queue.")
@click.option(
    "--host", type=click.Choice([one.value for one in Host]), help="Only handlers that run here."
)
@_not_negative("--work", default=0.01, help="Seconds of work per message.")
@_directory
@_save
@explained
def activation(save: Path | None, **options: object) -> None:
    """Measure how quickly readers start, and how many, in the daemon and in processes."""
    _run(partial(measure_activation, msgspec.convert(options, ActivationOptions)), save)


@command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@_not_negative(
    "--speed", default=1.0, help="Speed, as a multiple of the recorded one; 0 = without waiting."
)
@_clients("--readers", default=8, help="Receiving clients.")
@_at_a_time("--outstanding", default=100, help="Transactions under way for each client.")
@_batch("--batch", default=100, help="Messages in a transaction.")
@click.option("--peer", is_flag=True, help="Use two daemons: send at one, receive at the other.")
@_directory
@_save
@explained
def replay(save: Path | None, **options: object) -> None:
    """Replay recorded traffic, with its times, its message sizes and its number of dialogs.

    FILES were written by brokerd.FileRecorder, one for each recorded process.
    """
    _run(partial(measure_replay, msgspec.convert(options, ReplayOptions)), save)


@command.command()
@click.option(
    "--by",
    required=True,
    type=click.Choice([one.value for one in By]),
    help="The quantity that grows.",
)
@click.option("--points", help="Values to measure, with commas.  [default: by --by]")
@_positive("--seconds", default=2.0, help="Measured time of each phase.")
@click.option("--cold", is_flag=True, help="Also receive from a restarted daemon.")
@click.option("--plot", type=_NewFile(suffix=".svg"), help="Draw the result to this SVG file.")
@_directory
@_save
@explained
def scale(save: Path | None, plot: Path | None, points: str | None, **options: object) -> None:
    """Measure rates, memory and processor time per message as one quantity grows.

    Each value is measured with a daemon of its own. Limits: 16 MiB of size, 1,000,000 dialogs,
    10,000 queues, 999 connections, 10,000,000 waiting messages.
    """
    asked = {**options, "points": _numbers(points)}
    result = _run(partial(measure_scale, msgspec.convert(asked, ScaleOptions)), save)
    if plot is not None:
        plot.write_text(picture(result))


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return () if text is None else tuple(int(one) for one in text.split(","))
    except ValueError:
        raise UsageError(
            f"--points {text!r}: whole numbers with commas are expected",
            hint="--points 10,100,1000",
        ) from None


@command.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@json_option
@explained
def compare(before: Path, after: Path, as_json: bool) -> None:
    """Compare two results of a benchmark, written with `--save`, figure by figure.

    A figure that only one result has is shown as "-" for the other: the lists of the busiest
    modules may differ, or the number of daemons.
    """
    found = comparison.compare(comparison.read(before), comparison.read(after))
    if as_json:
        print_json(found)
        return
    for name, (old, new) in found.settings.items():
        print_line(f"different setting: {name} was {old} and is {new}")
    table(
        f"bench {found.benchmark}",
        ("figure", "before", "after", "after / before"),
        [
            (one.name, *("-" if n is None else n for n in (one.before, one.after, one.ratio)))
            for one in found.figures
        ],
    )


@command.command()
@_up_to(1_000_000)("--routes", default=10_000, help="Routes in the table.")
@_messages("--dialogs", default=100_000, help="Dialogs to classify.")
@_save
@explained
def route(save: Path | None, **options: object) -> None:
    """Measure the rate of classifying dialogs with a large routing table, without a daemon."""
    _run(partial(measure_route, msgspec.convert(options, RouteOptions)), save)


def _run(measure: Measure, save: Path | None) -> dict[str, object]:
    result = uvloop.run(_ended_by_signals(measure))
    text = msgspec.json.format(msgspec.json.encode(result).decode(), indent=2)
    click.echo(text)
    if save is not None:
        save.write_text(text + "\n")
    return result


async def _ended_by_signals(measure: Measure) -> dict[str, object]:
    """Run a benchmark and return its result; the first signal ends it and cleans up."""
    task = asyncio.current_task()
    assert task is not None, "it runs as one"
    with on_interrupt(task.cancel):  # a second signal would leave processes running
        try:
            return await measure(lambda text: click.echo(text, err=True))
        except asyncio.CancelledError:
            raise click.Abort from None
