"""A server that was the primary comes back, takes changes, and is listed first."""

import json
import signal
from pathlib import Path

import pytest

import brokerd
from brokerd.storage.postgresql.last_history import note_history, read_history
from tests.acceptance.on_server import ServerPlace, receive, send, until
from tests.postgresql.servers import Server, Servers, url_of_all


def epoch_at(server: Server) -> str | None:
    """Return how often the store has been opened at a server."""
    ((epoch,),) = server.query("SELECT epoch FROM main.store", database="d")
    return epoch


@pytest.mark.rule("REL-59", "REL-57")
def test_nothing_is_confirmed_at_a_former_primary(
    tmp_path: Path, postgresql_servers: Servers
) -> None:
    former = postgresql_servers.started("former", fsync=True)
    former.create_database("d")
    promoted = postgresql_servers.standby_of(former)
    place = ServerPlace(tmp_path / "a", url_of_all([former, promoted], "d"))
    with place.running() as daemon:
        place.answers()
        with brokerd.sync.connect(place.address, broker="main", retry=60) as client:
            handle = client.begin_dialog("shop", "warehouse", "orders")
            client.send(handle, b"0", "Order")
            former.kill()
            promoted.promote()
            client.send(handle, b"1", "Order")
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0
    noted = [(one["before"], one["timeline"]) for one in place.lines("history_noted")]
    assert noted == [("none", 1), (1, 2)]
    former.configure({"synchronous_standby_names": ""})  # it would wait for nobody
    promoted.stop()
    former.start()
    epoch = epoch_at(former)

    refused = place.run("serve", "-c", str(place.settings))
    assert refused.returncode == 74, refused.stderr
    assert "its timeline is 1, and this daemon was in 2" in refused.stderr
    assert "start the server that was promoted" in refused.stderr

    promoted.start()
    with place.running() as daemon:
        place.answers()
        (passed,) = place.lines("passed_over")
        assert str(former.folder) in str(passed["server"])
        with brokerd.sync.connect(place.address, broker="main", retry=60) as client:
            assert [receive(client), receive(client)] == [0, 1]
            promoted.kill()
            until(lambda: "was the primary before" in str(place.lines("waiting")), "it waits")
            promoted.start()
            send(client, [2])
            assert receive(client) == 2
        assert daemon.poll() is None
    assert epoch_at(former) == epoch, "nothing was written there"


@pytest.mark.rule("REL-60", "REL-15")
def test_an_older_history_is_accepted_and_begins_a_new_one(
    tmp_path: Path, durable_url: str
) -> None:
    place = ServerPlace(tmp_path / "a", durable_url)
    words = ("store", "accept-server", "-c", str(place.settings))
    with place.running() as daemon:
        place.answers()
        with brokerd.sync.connect(place.address, broker="main") as client:
            send(client, [0])
        nothing = place.run(*words)
        assert (nothing.returncode, nothing.stderr) == (0, "")
        assert "with stores of main, msdb" in nothing.stdout
        in_use = place.run(*words, "--yes")
        assert in_use.returncode == 73, in_use.stderr
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0
    file = place.data_dir / "server-history"
    here = read_history(file)
    assert here is not None
    note_history(file, here._replace(timeline="00000002"))  # as after a promotion elsewhere

    shown = place.run(*words, "--json")
    assert shown.returncode == 65
    assert "start the server that was promoted" in shown.stderr
    found = json.loads(shown.stdout)
    assert (found["refused"], found["noted"]["timeline"]) == (True, "00000002")
    accepted = place.run(*words, "--yes")
    assert (accepted.returncode, accepted.stderr) == (0, "")
    assert read_history(file) == here
    with place.running():
        place.answers()
        assert {one["broker"] for one in place.lines("new_history")} == {"main", "msdb"}
        with brokerd.sync.connect(place.address, broker="main") as client:
            assert receive(client) == 0
