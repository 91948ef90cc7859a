"""Words of `brokerd bench` that cannot be measured with are refused before anything is."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from brokerd.bench.activation import ActivationOptions
from brokerd.bench.backlog import BacklogOptions
from brokerd.bench.comparison import compare
from brokerd.bench.daemons import Daemon, running
from brokerd.bench.dialogs import DialogsOptions
from brokerd.bench.idle import IdleOptions
from brokerd.bench.large import LargeOptions
from brokerd.bench.latency import LatencyOptions
from brokerd.bench.local import LocalOptions
from brokerd.bench.measuring import Options, bench_directory
from brokerd.bench.peer import PeerOptions
from brokerd.bench.replay import ReplayOptions
from brokerd.bench.route import RouteOptions
from brokerd.bench.sampled import Report
from brokerd.bench.scale import Cost, Point, ScaleOptions
from brokerd.bench.stages import StagesOptions, per_flush, stage_costs
from brokerd.bench.stalled import StalledOptions
from brokerd.cli import bench
from brokerd.cli.main import main
from tests.explained import unexplained


@pytest.mark.parametrize(
    "words",
    [
        ("stages", "--seconds", "0"),
        ("stages", "--seconds", "nan"),
        ("local", "--dialogs", "0"),
        ("local", "--clients", "-1"),
        ("local", "--outstanding", "1001"),
        ("local", "--batch", "0"),
        ("local", "--batch", "10001"),
        ("local", "--transactions", "17"),
        ("stages", "--batch", "1000000000"),
        ("local", "--processes", "0"),
        ("local", "--processes", "33"),
        ("local", "--size", "7"),
        ("local", "--size", "16777217"),
        ("peer", "--cap", "0"),
        ("backlog", "--messages", "0"),
        ("dialogs", "--dialogs", "0"),
        ("dialogs", "--replay-guard", "-1"),
        ("latency", "--rate", "0"),
        ("latency", "--callers", "0"),
        ("latency", "--callers", "1901"),
        ("dialogs", "--readers", "17"),
        ("large", "--large", "16777217"),
        ("large", "--every", "0"),
        ("stalled", "--rate", "inf"),
        ("idle", "--connections", "0"),
        ("idle", "--connections", "1000000"),
        ("idle", "--seconds", "nan"),
        ("activation", "--rounds", "0"),
        ("activation", "--work", "nan"),
        ("replay", "x", "--batch", "0"),
        ("replay", "x", "--batch", "-1"),
        ("replay", "x", "--speed", "nan"),
        ("replay", "x", "--speed", "inf"),
        ("replay", "x", "--readers", "0"),
        ("scale", "--by", "size", "--seconds", "0"),
        ("scale", "--by", "size", "--plot", "{there}"),
        ("scale", "--by", "size", "--plot", "{there}/x.png"),
        ("scale", "--by", "size", "--points", ""),
        ("scale", "--by", "size", "--points", "64,"),
        ("idle", "--keep", "{there}/file"),
        ("local", "--directory", "{there}/none"),
        ("local", "--directory", "{there}/file"),
        ("route", "--routes", "0"),
        ("route", "--save", "{there}"),
        ("route", "--save", "{there}/none/x"),
    ],
)
def test_it_is_refused_with_the_status_of_wrong_words(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["bench", *(one.format(there=tmp_path) for one in words)]) == 64
    assert "Traceback" not in capsys.readouterr().err


def test_directories_are_the_same_wherever_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def measure(options: object, _say: object) -> dict[str, Any]:
        asked.append(options)
        return {}

    monkeypatch.setattr(bench, "measure_idle", measure)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "idle", "--directory", ".", "--keep", "new"]) == 0
    assert (asked[0].directory, asked[0].keep) == (tmp_path, tmp_path / "new")


def test_every_number_has_an_upper_limit() -> None:
    """One that is too large for what it is used for would end a load process in the middle."""
    numbers = [
        (name, option)
        for name, command in bench.command.commands.items()
        for option in command.params
        if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    ]
    assert len(numbers) > 40
    for name, option in numbers:
        assert getattr(option.type, "max", None) is not None, (name, option.name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_ends_it_finds_neither_its_directory_nor_its_daemons(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    interrupts = signal.getsignal(signal.SIGINT)
    # Nothing interrupts what runs in the background of a shell; these tests may run there too.
    in_front = number is signal.SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler if in_front else signal.SIG_IGN)

    class Kept(Daemon):
        async def start(self) -> None:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()

        async def kill(self) -> None:
            stopped.append(self.name)

    async def measure(_options: object, _say: object) -> dict[str, Any]:
        with bench_directory(Options(directory=tmp_path)) as directory:
            async with running(*(Kept(directory, one, port=0, objects="") for one in "ab")):
                return {}

    monkeypatch.setattr(bench, "measure_route", measure)
    try:
        assert main(["bench", "route"]) == 130
    finally:
        signal.signal(signal.SIGINT, interrupts)
    assert stopped == ["a", "b"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", list(bench.command.commands))
def test_the_help_explains_the_keys_in_lines_of_a_small_terminal(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "  Keys of the result:\n" in text
    assert max(map(len, text.splitlines())) < 80


def test_keys_of_what_takes_long_to_measure_are_explained() -> None:
    zero = Report(number=1, at=0.0, loop={}, threads={}, kernel=0.0)
    daemon = {**stage_costs(zero, zero, 1), "flush_times": per_flush({}, 1)}
    assert not unexplained("stages", {"daemons": {"east": daemon}})
    cost = Cost(rate=1, processor_us_per_message=1, client_us_per_message=1)
    point = Point(send=cost, receive=cost, memory_bytes=1)
    assert not unexplained("scale", {"points": {"10": point}})
    assert not unexplained("compare", compare(*[{"benchmark": "x", "settings": {}, "n": 1}] * 2))


def test_keys_of_a_result_are_explained(tmp_path: Path) -> None:
    file = tmp_path / "result"
    assert main(["bench", "route", "--routes", "8", "--dialogs", "8", "--save", str(file)]) == 0
    result = msgspec.json.decode(file.read_bytes())
    assert not unexplained("route", result)
    assert unexplained("route", result | {"other": {"rate_us": 1}}) == {"other", "rate_us"}


def test_a_result_is_printed_before_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gone" / "x"
    file.parent.mkdir()

    async def measure(_options: object, _say: object) -> dict[str, Any]:
        file.parent.rmdir()  # while it was measured
        return {"rate": 1}

    monkeypatch.setattr(bench, "measure_route", measure)
    assert main(["bench", "route", "--save", str(file)]) == 74
    assert '"rate": 1' in capsys.readouterr().out


def test_a_result_is_kept_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def measure(_options: object, _say: object) -> dict[str, Any]:
        return {"rate": 1}

    monkeypatch.setattr(bench, "measure_route", measure)
    assert main(["bench", "route", "--save", str(tmp_path / "x")]) == 0
    assert main(["bench", "route", "--save", str(tmp_path / "x")]) == 0  # written over
    assert (tmp_path / "x").read_text() == '{\n  "rate": 1\n}\n'


def test_a_figure_that_only_one_result_has_is_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, figure in (("a", '"old": 1'), ("b", '"new": 2')):
        (tmp_path / name).write_text(f'{{"benchmark": "x", "settings": {{}}, {figure}}}')
    files = (str(tmp_path / "a"), str(tmp_path / "b"))
    assert main(["bench", "compare", *files]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["old", "1", "-", "-"] in rows
    assert ["new", "-", "2", "-"] in rows
    assert main(["bench", "compare", *files, "--json"]) == 0
    assert {"name": "new", "before": None, "after": 2, "ratio": None} in json.loads(
        capsys.readouterr().out
    )["figures"]
    assert main(["bench", "compare", files[0], str(tmp_path / "c")]) == 74


def test_settings_are_those_that_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside them is what the machine has; nothing is stored where nothing is kept."""
    assert main(["bench", "route", "--routes", "10", "--dialogs", "20"]) == 0
    out, err = capsys.readouterr()
    settings = json.loads(out)["settings"]
    assert (settings["routes"], settings["dialogs"]) == (10, 20)
    assert not {"messages", "durability", "sqlite", "flushes"} & set(settings)
    assert err == "10 routes, 20 dialogs\n"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("local", LocalOptions),
        ("peer", PeerOptions),
        ("stages", StagesOptions),
        ("backlog", BacklogOptions),
        ("dialogs", DialogsOptions),
        ("latency", LatencyOptions),
        ("large", LargeOptions),
        ("stalled", StalledOptions),
        ("idle", IdleOptions),
        ("activation", ActivationOptions),
        ("replay", ReplayOptions),
        ("scale", ScaleOptions),
        ("route", RouteOptions),
    ],
)
def test_every_setting_is_an_option_and_has_its_name_and_default(
    name: str, options: type[Options]
) -> None:
    parameters = {str(one.name): one for one in bench.command.commands[name].params}
    fields = {one.name: one for one in msgspec.structs.fields(options) if one.name != "directory"}
    assert set(fields) == set(parameters) - {"directory", "save", "plot"}
    for key, field in fields.items():
        flags = [one.removeprefix("--").replace("-", "_") for one in parameters[key].opts]
        assert key in flags
        if type(field.default) in {int, float}:
            assert parameters[key].default == field.default


def test_summaries_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "...\n" not in shown.partition("Commands:")[2]
    assert "another dialog among them." in " ".join(shown.split())


def test_choices_are_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scale"]) == 64
    first = capsys.readouterr().err.splitlines()[0]
    assert first.endswith("Choose from: size, dialogs, queues, connections, backlog")
