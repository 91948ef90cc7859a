"""Two daemons on one database: one works, the other waits and takes over."""

import asyncio
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import brokerd
from brokerd.errors import BrokerUnavailable
from brokerd.storage.postgresql.ownership import lock_keys
from tests.acceptance.on_server import ServerPlace, receive, send, until
from tests.acceptance.partners import FIGURES, SHOP, Node
from tests.postgresql.cut import ServerRelay
from tests.postgresql.servers import Server, Servers, url_of_all


def both(folder: Path, url: str, *, store: str = "") -> tuple[ServerPlace, ServerPlace]:
    """The places of two daemons with the same stores."""
    return ServerPlace(folder / "a", url, store=store), ServerPlace(folder / "b", url, store=store)


def waits(place: ServerPlace) -> bool:
    return bool(place.log.exists() and place.lines("waiting"))


@pytest.mark.rule("REL-54", "REL-16")
def test_a_second_daemon_waits_says_so_and_takes_over_after_a_kill(
    tmp_path: Path, durable_url: str
) -> None:
    first, second = both(tmp_path, durable_url)
    third = ServerPlace(tmp_path / "c", durable_url)
    words = ("serve", "-c", str(third.settings), "--no-wait")
    with first.running() as active:
        first.answers()
        second.copy_key(first)
        with second.running() as waiting:
            until(lambda: waits(second), "the second waits")
            with brokerd.sync.connect(first.address, broker="main") as client:
                send(client, range(3))
            until((second.data_dir / "brokerd.sock").exists, "the second answers")
            with pytest.raises(BrokerUnavailable, match="held by a daemon on"):
                brokerd.sync.connect(second.address, broker="main")
            said = second.run("status", "-c", str(second.settings))
            assert said.returncode == 69
            assert "waiting for the stores" in said.stderr
            assert not second.is_ready(), "it answers over HTTP that it is not ready"
            refused = third.run(*words)
            assert (refused.returncode, "copy master.key" in refused.stderr) == (78, True)
            third.copy_key(first)
            refused = third.run(*words)
            assert (refused.returncode, "held by a daemon" in refused.stderr) == (73, True)
            active.kill()
            with brokerd.sync.connect(second.address, broker="main", wait=60) as client:
                assert [receive(client) for _ in range(3)] == [0, 1, 2]
            assert waiting.poll() is None


@pytest.mark.rule("REL-54", "REL-57", "MON-120")
def test_a_stopped_daemon_is_replaced_and_waits_itself_when_it_wakes(
    tmp_path: Path, durable_url: str
) -> None:
    first, second = both(tmp_path, durable_url, store='takeover_after = "3s"')
    with first.running() as active:
        first.answers()
        second.copy_key(first)
        with second.running() as waiting:
            until(lambda: waits(second), "the second waits")
            with brokerd.sync.connect(first.address, broker="main") as client:
                send(client, range(2))
            active.send_signal(signal.SIGSTOP)
            with brokerd.sync.connect(second.address, broker="main", wait=60) as client:
                (taken,) = second.lines("takes_over")
                assert float(str(taken["seconds"])) >= 3
                assert receive(client) == 0
                active.send_signal(signal.SIGCONT)
                until(lambda: waits(first), "the first waits in turn")
                assert active.poll() is None, "it came back in its process"
                metrics = first.data_dir / "metrics"
                assert list(metrics.rglob("*.jsonl.gz")), "what it wrote can be shipped"
                assert not list(metrics.rglob("*.open"))
                assert receive(client) == 1
                send(client, [2])
            waiting.send_signal(signal.SIGTERM)
            assert waiting.wait(60) == 0
            with brokerd.sync.connect(first.address, broker="main", wait=60) as client:
                assert receive(client) == 2


@pytest.mark.rule("REL-57", "REL-2")
def test_a_daemon_comes_back_by_itself_when_its_server_does(
    tmp_path: Path, postgresql_servers: Servers
) -> None:
    server = postgresql_servers.started("restarted", fsync=True)
    server.create_database("d")
    place = ServerPlace(tmp_path / "a", server.url("d"))
    with place.running() as daemon:
        place.answers()
        with brokerd.sync.connect(place.address, broker="main", retry=60) as client:
            handle = client.begin_dialog("shop", "warehouse", "orders")
            client.send(handle, b"0", "Order")
            server.kill()
            until(lambda: place.lines("failed"), "the daemon notices")
            server.start()
            # The client connects again, and asks for the outcome of what it does not know.
            client.send(handle, b"1", "Order")
            assert [receive(client), receive(client)] == [0, 1]
        assert daemon.poll() is None, "it is the same process"
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0


@pytest.mark.rule("REL-80", "REL-57")
def test_a_daemon_gives_up_when_its_server_waits_for_no_standby_any_more(
    tmp_path: Path, postgresql_servers: Servers
) -> None:
    server = postgresql_servers.started("primary", fsync=True)
    server.create_database("d")
    standby = postgresql_servers.standby_of(server)
    place = ServerPlace(tmp_path / "a", server.url("d"), store="require_standby = true")
    with place.running() as daemon:
        place.answers()
        with brokerd.sync.connect(place.address, broker="main", retry=60) as client:
            handle = client.begin_dialog("shop", "warehouse", "orders")
            client.send(handle, b"0", "Order")
            server.configure({"synchronous_standby_names": ""})
            until(lambda: waits(place), "the daemon waits for a standby")
            (failed,) = place.lines("failed")
            assert "waits for no synchronous standby" in str(failed)
            words = ("status", "-c", str(place.settings))
            until(lambda: "waits for no sync" in place.run(*words).stderr, "clients are told why")
            assert not place.is_ready()
            server.configure({"synchronous_standby_names": f'FIRST 1 ("{standby.name}")'})
            client.send(handle, b"1", "Order")
            assert [receive(client), receive(client)] == [0, 1]
        assert daemon.poll() is None, "it is the same process"
        assert not place.lines("failed")[1:]


@pytest.mark.rule("REL-81", "REL-54", "REL-2")
def test_a_daemon_leaves_a_server_that_hangs_for_the_promoted_standby(
    tmp_path: Path, postgresql_servers: Servers
) -> None:
    server = postgresql_servers.started("hangs", fsync=True)
    server.create_database("d")
    standby = postgresql_servers.standby_of(server)
    url = url_of_all([server, standby], "d")
    place = ServerPlace(tmp_path / "a", url, store='takeover_after = "3s"')
    with place.running() as daemon:
        place.answers()
        with brokerd.sync.connect(place.address, broker="main", retry=60) as client:
            handle = client.begin_dialog("shop", "warehouse", "orders")
            client.send(handle, b"0", "Order")
            server.pause()  # its machine still acknowledges what it is sent
            standby.promote()
            client.send(handle, b"1", "Order")
            assert [receive(client), receive(client)] == [0, 1]
            assert not client.receive("warehouse_q", wait=0, autocommit=True), "nothing is doubled"
        assert daemon.poll() is None, "it is the same process"
        assert "has lost its claim" in str(place.lines("failed"))


@pytest.mark.rule("REL-89", "REL-54", "REL-2")
def test_a_server_process_that_hangs_is_named_and_given_up(
    tmp_path: Path, durable_server: Server, durable_url: str
) -> None:
    limits = 'takeover_after = "6s"\nslow_after = "1s"'
    place = ServerPlace(tmp_path / "a", durable_url, store=limits)
    usual = place.settings.read_text()
    place.settings.write_text(usual.replace('tick = "1h"', 'tick = "500ms"'))
    with place.running() as daemon, ThreadPoolExecutor(1) as beside:
        place.answers()
        with brokerd.sync.connect(place.address, broker="main", retry=60) as client:
            handle = client.begin_dialog("shop", "warehouse", "orders")
            key = lock_keys("main")[1] & 0xFFFFFFFF
            ((pid,),) = durable_server.query(
                f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid::bigint = {key}"
            )
            os.kill(int(str(pid)), signal.SIGSTOP)
            try:
                with brokerd.sync.connect(place.address, broker="main") as looker:
                    sending = beside.submit(client.send, handle, b"0", "Order")
                    hangs = f"process {pid} hangs: it does not read"
                    until(lambda: hangs in str(looker.status()), "status says so")
                until(lambda: "do not end" in str(place.lines("waiting")), "it is given up")
                assert f"process {pid}, which stands still" in str(place.lines("failed"))
            finally:
                os.kill(int(str(pid)), signal.SIGCONT)
            sending.result(60)
            client.send(handle, b"1", "Order")
            assert [receive(client), receive(client)] == [0, 1]
            assert not client.receive("warehouse_q", wait=0, autocommit=True), "nothing is doubled"
        assert daemon.poll() is None, "it is the same process"


@pytest.mark.rule("REL-58")
def test_stores_are_handed_over_and_a_client_of_both_daemons_notices_nothing(
    tmp_path: Path, durable_url: str
) -> None:
    first, second = both(tmp_path, durable_url)
    with first.running() as active, ThreadPoolExecutor(1) as beside:
        first.answers()
        alone = first.run("broker", "hand-over", "-c", str(first.settings))
        assert (alone.returncode, "no other daemon waits" in alone.stderr) == (75, True)
        second.copy_key(first)
        with second.running():
            until(lambda: waits(second), "the second waits")
            # The one that waits is named first, and refuses: the other is tried at once.
            addresses = f"{second.address},{first.address}"
            with brokerd.sync.connect(addresses, broker="main", retry=60) as client:
                handle = client.begin_dialog("shop", "warehouse", "orders")
                for number in range(200):
                    if number == 100:
                        words = ("broker", "hand-over", "--address", addresses)
                        handing_over = beside.submit(first.run, *words)
                    client.send(handle, b"%d" % number, "Order")
                    # Until the other one has taken over, so that the sends are around it.
                    if number == 199:
                        until(lambda: waits(first), "the first waits")
                assert [receive(client) for _ in range(200)] == list(range(200))
            said = handing_over.result(60)
            assert said.returncode == 0, said.stderr
            assert f"the daemon at {second.address} has the stores" in said.stdout
            assert active.poll() is None
            assert second.lines("ready")
            assert [one["waiting"] for one in first.lines("hand_over")] == ["this machine"]
            back = second.run("broker", "hand-over", "--json", "-c", str(second.settings))
            assert (back.returncode, back.stderr) == (0, "")
            assert "held by a daemon on this machine" in json.loads(back.stdout)["to"]


@pytest.mark.rule("REL-57", "REL-2")
async def test_a_commit_without_an_answer_is_asked_for_by_its_token(
    tmp_path: Path, durable_server: Server, durable_url: str
) -> None:
    assert durable_url
    async with ServerRelay(durable_server) as relay:
        place = ServerPlace(tmp_path / "a", relay.url("stores"))
        with place.running() as daemon:
            await asyncio.to_thread(place.answers)
            async with brokerd.connect(place.address, broker="main", retry=60) as client:
                handle = await client.begin_dialog("shop", "warehouse", "orders")
                held = relay.hold()
                sending = asyncio.ensure_future(client.send(handle, b"0", "Order"))
                assert await held.answered() == "COMMIT"
                held.reset()  # it is durable, and the daemon cannot know
                await sending
                await client.send(handle, b"1", "Order")
                bodies: list[bytes | None] = []
                while len(bodies) < 2:
                    found = await client.receive("warehouse_q", wait=20, autocommit=True)
                    bodies += [one.body for one in found]
                assert bodies == [b"0", b"1"]
                # nothing is doubled
                assert not await client.receive("warehouse_q", wait=0, autocommit=True)
            assert place.lines("failed")
            assert daemon.poll() is None


@pytest.mark.rule("REL-54", "RTE-53")
async def test_a_peer_follows_by_a_mirrored_route(tmp_path: Path, durable_url: str) -> None:
    sender = Node(tmp_path, "sender", shared=None)
    sender.declare(SHOP)
    first, second = both(tmp_path, durable_url)
    back = (
        f'[[route]]\nname = "back"\nservice = "shop"\naddress = "TCP://127.0.0.1:{sender.port}"\n'
    )
    for place in (first, second):
        place.objects.write_text(
            SHOP.replace("shop", "warehouse") + 'contracts = ["orders"]\n' + back
        )
        usual = place.settings.read_text()
        place.settings.write_text(usual.replace('[clock]\ntick = "1h"\n', FIGURES))
    try:
        await sender.start()
        with first.running() as active:
            await asyncio.to_thread(first.answers)
            second.copy_key(first)
            with second.running():
                await asyncio.to_thread(until, lambda: waits(second), "the second waits")
                async with brokerd.connect(first.address, broker="main") as client:
                    rows = await client.view("brokers", where={"name": "main"})
                async with brokerd.connect(sender.address, broker="main") as client:
                    await client.create(
                        "route",
                        "to_warehouse",
                        service="warehouse",
                        broker=str(rows[0]["broker_id"]),
                        address=f"TCP://127.0.0.1:{first.port}",
                        mirror=f"TCP://127.0.0.1:{second.port}",
                    )
                    handle = await client.begin_dialog("shop", "warehouse", "orders")
                    await client.send(handle, b"0", "Order")
                    async with brokerd.connect(first.address, broker="main") as there:
                        assert await _bodies(there, 1) == [b"0"]
                    active.kill()
                    await client.send(handle, b"1", "Order")
                    async with brokerd.connect(second.address, broker="main", wait=60) as there:
                        assert await _bodies(there, 1) == [b"1"]
    finally:
        sender.kill()


async def _bodies(client: brokerd.Session, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        messages = await client.receive("warehouse_q", wait=30, autocommit=True)
        assert messages, "none came"
        found += [one.body for one in messages]
    return found
