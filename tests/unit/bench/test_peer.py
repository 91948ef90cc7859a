"""The daemons of `bench peer`: each knows one way, and only the one in the middle forwards."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from brokerd.bench import peer
from brokerd.bench.comparison import compare, read
from brokerd.bench.daemons import Daemon
from brokerd.bench.loads import Phase
from brokerd.bench.peer import PeerOptions
from brokerd.objects.declarations import parse
from brokerd.objects.declared import Declared


def declared(one: Daemon) -> Declared:
    return parse(tomllib.loads(one._objects))


def routes(one: Daemon) -> list[tuple[str | None, str]]:
    objects = declared(one)
    found = {**objects.routes, **(objects.instance_routes or {})}
    return [(route.service_name, route.address) for route in found.values()]


def at(one: Daemon) -> str:
    return f"tcp://127.0.0.1:{one._port}"


def test_two_daemons_know_each_other(tmp_path: Path) -> None:
    east, west = peer._daemons(PeerOptions(), tmp_path)
    assert routes(east) == [("bench_sink", at(west))]
    assert routes(west) == [("bench_source", at(east))]
    assert not east._forwarding


def test_a_forwarder_is_all_that_the_two_know(tmp_path: Path) -> None:
    east, middle, west = peer._daemons(PeerOptions(forwarder=True), tmp_path)
    assert routes(east) == [("bench_sink", at(middle))]
    assert routes(west) == [("bench_source", at(middle))]
    assert sorted(routes(middle)) == [("bench_sink", at(west)), ("bench_source", at(east))]
    assert [one._forwarding for one in (east, middle, west)] == [False, True, False]
    assert not declared(middle).services


@pytest.mark.parametrize("forwarder", [False, True])
def test_connections_are_encrypted_and_dialogs_bound_where_it_is_asked_for(
    tmp_path: Path, forwarder: bool
) -> None:
    for asked in (False, True):
        options = PeerOptions(forwarder=forwarder, encrypted=asked, secured=asked)
        made = peer._daemons(options, tmp_path)
        assert all(('encryption = "disabled"' in one._transport) is not asked for one in made)
        bound = declared(made[0]).remote_service_bindings.values()
        assert [(one.service_name, one.principal) for one in bound] == (
            [("bench_sink", "peer:west")] if asked else []
        )


async def test_both_ways_are_measured_and_a_result_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def measure(options: PeerOptions, _say: object) -> dict[str, object]:
        rate = 600.0 if options.forwarder else 800.0
        return {"end_to_end": Phase(messages=1, seconds=1.0, rate=rate, latency_us={})}

    monkeypatch.setattr(peer, "_measure", measure)
    result = await peer.peer(PeerOptions(compare=True), lambda _text: None)
    assert result["rate_ratio"] == 0.75
    file = tmp_path / "saved"
    file.write_bytes(msgspec.json.encode(result))
    found = compare(read(file), read(file))
    assert not found.settings
    assert [one.name for one in found.figures if one.name.endswith("rate")] == [
        "direct.end_to_end.rate",
        "forwarder.end_to_end.rate",
    ]
