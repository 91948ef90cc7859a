"""Benchmarks run to their end and count what they say; how fast is nobody's business here."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from brokerd.bench import daemons, dialogs, idle, stalled
from brokerd.bench.activation import ActivationOptions, activation
from brokerd.bench.backlog import BacklogOptions, backlog
from brokerd.bench.daemons import free_ports
from brokerd.bench.large import LargeOptions, Round, large, middle
from brokerd.bench.latency import LatencyOptions, latency
from brokerd.bench.loads import Phase
from brokerd.bench.local import LocalOptions, local
from brokerd.bench.measuring import BenchFailed
from brokerd.bench.peer import PeerOptions
from brokerd.bench.peer import peer as measure_peer
from brokerd.bench.replay import ReplayOptions, replay
from brokerd.bench.scale_out import ScaleOutOptions, scale_out
from brokerd.errors import ProcessEnded
from brokerd.model import Host
from brokerd.process.exit_statuses import exit_status
from tests.explained import unexplained


def quiet(_text: str) -> None:
    """Nobody listens."""


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short one: the path of a socket has room for about a hundred characters."""
    return tmp_path_factory.mktemp("b")


@pytest.fixture(autouse=True)
def no_long_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "UPKEEP_LIMIT", 1.0)


def test_local_counts_what_was_sent_and_received(tmp_path: Path) -> None:
    options = LocalOptions(seconds=0.3, clients=2, dialogs=4, directory=tmp_path)
    result: Any = asyncio.run(local(options, quiet))
    assert not unexplained("local", result)
    assert result["send"].messages > 0
    assert result["receive"].messages > 0
    assert result["send"].flushes > 0
    assert result["settings"]["durability"].startswith("each confirmation after an fsync")
    assert not list(tmp_path.iterdir())


def test_backlog_drains_all_it_filled_in(tmp_path: Path) -> None:
    options = BacklogOptions(messages=3000, dialogs=4, directory=tmp_path)
    result: Any = asyncio.run(backlog(options, quiet))
    assert not unexplained("backlog", result)
    assert result["many"].messages == 3000
    assert result["many"].store_bytes > result["empty"].store_bytes
    assert result["receive_ratio"] > 0


@pytest.mark.rule("REL-85")
def test_figures_of_stores_on_a_server_are_those_of_the_server(
    tmp_path: Path, durable_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERD_STORE__URL", durable_url)
    options = BacklogOptions(messages=1000, dialogs=4, directory=tmp_path)
    result: Any = asyncio.run(backlog(options, quiet))
    assert result["many"].store_bytes > result["empty"].store_bytes > 0
    assert "PostgreSQL" in result["settings"]["durability"]


@pytest.mark.parametrize("peer", [False, True])
def test_dialogs_of_one_message_leave_no_endpoint(
    tmp_path: Path, peer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialogs, "WARM", 10)
    monkeypatch.setenv("BROKERD_CLOCK__TICK", "100ms")  # endpoints go with the passes
    later = 0.0

    async def shrunk(_daemon: object, _size: int) -> None:
        nonlocal later
        later += 10_000.0

    monkeypatch.setattr(daemons.Daemon, "shrunk", shrunk)
    monkeypatch.setattr(dialogs, "perf_counter", lambda: time.perf_counter() + later)
    options = dialogs.DialogsOptions(dialogs=100, outstanding=10, directory=tmp_path, peer=peer)
    result: Any = asyncio.run(dialogs.dialogs(options, quiet))
    assert not unexplained("dialogs", result)
    assert (result["dialogs"], result["endpoints_left"]) == (100, 0)
    assert result["gone_after_seconds"] < 10_000  # and not when the store had shrunk
    assert result["cost_in_messages"] > 0 < result["part_of_the_message_rate"]
    assert list(result["daemons"]) == (["east", "west"] if peer else ["dialogs"])
    assert all(len(one["memory_on_the_way_bytes"]) == 10 for one in result["daemons"].values())


def test_activation_counts_the_readers_that_load_calls_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.bench.activation._BLOCKING", 0.2)
    options = ActivationOptions(
        rounds=2, groups=4, messages=2, work=0.0, host=Host.DAEMON, directory=tmp_path
    )
    result: Any = asyncio.run(activation(options, quiet))
    assert not unexplained("activation", result)
    home = result["daemon"]
    assert home["step_load"].readers >= 1
    assert home["step_load"].rate > 0
    assert home["beside_poison"].rate > 0
    assert home["send_beside_blocking_ms"].most > 50  # ms: somebody blocks the loop
    assert "process" not in result


def test_latency_has_an_answer_for_every_way_to_wait(tmp_path: Path) -> None:
    options = LatencyOptions(seconds=0.3, rate=100.0, callers=4, directory=tmp_path)
    result: Any = asyncio.run(latency(options, quiet))
    assert not unexplained("latency", result)
    for phase in ("send_alone", "end_to_end", "call_alone", "call_many"):
        assert result[phase].messages > 0, phase
        assert 0 < result[phase].latency_us["p50"] <= result[phase].latency_us["p999"], phase
    assert result["disk_sync_us"] > 0


@pytest.mark.parametrize("engine", ["files", "postgresql"])
def test_scale_out_adds_up_what_each_daemon_has_done(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("durable_url") if engine == "postgresql" else ""
    options = ScaleOutOptions(
        seconds=0.5, clients=1, dialogs=2, directory=tmp_path, cap=100, daemons=2, url=url
    )
    result: Any = asyncio.run(scale_out(options, quiet))
    assert not unexplained("scale_out", result)
    for many, phase in ((1, result["alone"]), (2, result["together"])):
        assert len(phase["rates"]) == many
        assert min(phase["rates"]) > 0
        assert phase["sum"].rate == pytest.approx(sum(phase["rates"]), abs=2)
    if url:
        server = request.getfixturevalue("durable_server")
        left = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'bench%'"
        assert server.query(left, database="stores") == []


def test_scale_out_says_why_no_daemon_started(tmp_path: Path) -> None:
    """Not that schemas could not be removed, of which there are none."""
    (port,) = free_ports(1)
    url = f"postgresql://nobody@127.0.0.1:{port}/stores"
    with pytest.raises(ProcessEnded, match=r"d0 did not start: .* PostgreSQL"):
        asyncio.run(scale_out(ScaleOutOptions(directory=tmp_path, daemons=2, url=url), quiet))


@pytest.mark.rule("FWD-1")
def test_peer_passes_through_a_third_daemon(tmp_path: Path) -> None:
    options = PeerOptions(
        seconds=0.5, clients=2, dialogs=4, directory=tmp_path, cap=100, forwarder=True
    )
    result: Any = asyncio.run(measure_peer(options, quiet))
    assert not unexplained("peer", result)
    assert result["end_to_end"].messages > 0
    assert result["counters"]["middle"]["fragments_received"] == 0  # passed on, not taken
    assert result["counters"]["west"]["fragments_stored"] > 0
    assert set(result["processor_us_per_message"]) == {"east", "middle", "west"}


@pytest.mark.rule("SEC-14")
@pytest.mark.parametrize(
    ("forwarder", "encrypted"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_secured_dialogs_are_measured(tmp_path: Path, forwarder: bool, encrypted: bool) -> None:
    options = PeerOptions(
        seconds=0.5,
        clients=2,
        dialogs=4,
        directory=tmp_path,
        cap=100,
        forwarder=forwarder,
        secured=True,
        encrypted=encrypted,
    )
    result: Any = asyncio.run(measure_peer(options, quiet))
    assert result["settings"]["secured"]
    assert result["counters"]["west"]["fragments_stored"] > 0


@pytest.mark.rule("SEC-14")
def test_no_secured_dialog_is_measured_in_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def introduce(*_daemons: object) -> None:
        """Install no certificates: dialogs have to wait for them."""

    monkeypatch.setattr("brokerd.bench.peer.introduce", introduce)
    options = PeerOptions(seconds=0.2, clients=1, dialogs=1, directory=tmp_path, secured=True)
    with pytest.raises(BenchFailed, match="nothing to tell of"):
        asyncio.run(measure_peer(options, quiet))


def test_large_messages_are_received_among_small_ones(tmp_path: Path) -> None:
    options = LargeOptions(
        seconds=0.5, rounds=1, rate=50.0, every=0.25, large=1_000_000, directory=tmp_path
    )
    result: Any = asyncio.run(large(options, quiet))
    assert not unexplained("large", result)
    assert result["alone"].messages > 0
    assert result["among_large"].messages > 0
    assert result["large"].messages > 0
    assert result["p99_ratios"] == [result["p99_ratio"]] > [0]


def test_the_round_in_the_middle_is_told_of_large_messages() -> None:
    def measured(p99: int) -> Phase:
        return Phase(messages=1, seconds=1.0, rate=1.0, latency_us={"p99": p99})

    rounds = [Round(measured(10), measured(among), measured(0)) for among in (90, 20, 30, 25)]
    assert [one.p99_ratio for one in rounds] == [9.0, 2.0, 3.0, 2.5]
    assert middle(rounds).p99_ratio == 2.5
    assert middle(rounds[:3]).p99_ratio == 3.0


def test_a_daemon_that_is_started_anew_is_watched_while_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "_SETTLED", 0.0)
    monkeypatch.setattr(idle, "_AT_ONCE", 20)
    options = idle.IdleOptions(dialogs=30, connections=3, seconds=0.2, directory=tmp_path)
    result: Any = asyncio.run(idle.idle(options, quiet))
    assert not unexplained("idle", result)
    assert result["seconds_until_ready"] > 0
    assert result["memory_bytes"] > 0
    assert result["percent_of_one_processor"] >= 0


async def _run_while_another_has(keep: Path) -> None:
    told: list[str] = []
    options = idle.IdleOptions(dialogs=10, connections=1, seconds=0.1, keep=keep)
    with idle._kept(keep):
        await idle.idle(options, told.append)
    assert told == []


def test_two_runs_do_not_share_a_directory_that_is_kept(tmp_path: Path) -> None:
    with pytest.raises(idle.DirectoryTaken, match=f"(?m)^another run has {tmp_path}$"):
        asyncio.run(_run_while_another_has(tmp_path))
    assert not list(tmp_path.iterdir())


def test_dialogs_that_are_kept_are_all_measured_again_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "_SETTLED", 0.0)
    keep, told = tmp_path / "k", list[str]()
    for dialogs_wanted, there in ((3, 3), (2, 3), (4, 4)):
        options = idle.IdleOptions(dialogs=dialogs_wanted, connections=1, seconds=0.1, keep=keep)
        result: Any = asyncio.run(idle.idle(options, told.append))
        assert result["settings"]["dialogs"] == there
    assert told.count("3 dialogs are there already: all of them are measured") == 1


def test_of_a_store_that_could_not_be_made_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERD_CLIENTS__LISTEN", "nowhere")
    options = idle.IdleOptions(dialogs=3, connections=1, seconds=0.1, keep=tmp_path / "k")
    with pytest.raises(ProcessEnded) as told:
        asyncio.run(idle.idle(options, quiet))
    assert "daemon idle did not start: it ended with status 78" in told.value.message
    assert "'nowhere' is neither" in told.value.message
    assert exit_status(told.value) == 78
    assert not list(tmp_path.iterdir())


@pytest.mark.rule("REL-23")
def test_who_is_stalled_gets_nothing_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalled, "PEERS", 2)
    options = stalled.StalledOptions(seconds=0.3, dialogs=2, cap=50, directory=tmp_path)
    result: Any = asyncio.run(stalled.stalled(options, quiet))
    assert not unexplained("stalled", result)
    assert result["all_work"].messages > 0
    assert result["one_stalled"].messages > 0
    assert result["rate_ratio"] > 0


def test_recorded_traffic_is_sent_at_its_times_and_received(tmp_path: Path) -> None:
    file = tmp_path / "traffic.jsonl"
    file.write_text(
        "".join(
            f'{{"t":{number * 1000},"op":"send","dialog":"{number % 3}","size":{number % 20}}}\n'
            for number in range(200)
        )
    )
    options = ReplayOptions(files=(str(file),), speed=2.0, readers=2, directory=tmp_path)
    result: Any = asyncio.run(replay(options, quiet))
    assert not unexplained("replay", result)
    assert (result["recorded"]["messages"], result["recorded"]["dialogs"]) == (200, 3)
    assert result["send"].messages == result["end_to_end"].messages == 200
    assert result["behind_us"]["most"] >= result["behind_us"]["p50"]
    assert [path.name for path in tmp_path.iterdir()] == ["traffic.jsonl"]
