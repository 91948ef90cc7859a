"""`brokerd doctor` with a daemon that runs, and with one that does not."""

import json
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.cli.main import main
from brokerd.ids import show
from tests.acceptance.one_process import Served

Capture = pytest.CaptureFixture[str]
OBJECTS: dict[str, Any] = {
    "broker": {"name": "main", "default_encryption": "off"},
    "queue": [{"name": "desk"}, {"name": "shop"}],
    "service": [
        {"name": "desk", "queue": "desk"},
        {"name": "shop", "queue": "shop", "contracts": ["DEFAULT"]},
    ],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    daemon = Served(tmp_path_factory.mktemp("doctor"), OBJECTS)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Served]:
    """A daemon that a test gives more brokers."""
    daemon = Served(tmp_path, OBJECTS)
    daemon.start()
    yield daemon
    daemon.stop()


def doctor(capsys: Capture, *words: str) -> tuple[int, list[dict[str, Any]]]:
    status = main(["doctor", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)["rows"]


def pasted(finding: dict[str, Any]) -> None:
    """Run the last command of a finding as it was printed."""
    program, *words = shlex.split(finding["commands"][-1])
    assert program == "brokerd"
    assert main(words) == 0


@pytest.mark.rule("MON-21", "PBT-21")
def test_a_daemon_is_well_then_has_a_fault_and_is_mended(served: Served, capsys: Capture) -> None:
    at = ("--address", served.address, "--ignore", "D43")  # the disk is that of who runs this
    assert doctor(capsys, *at) == (0, [])
    assert doctor(capsys, "desk", "shop", *at) == (0, [])
    assert main(["queue", "alter", "shop", "status=off", "--address", served.address]) == 0
    capsys.readouterr()
    status, (found,) = doctor(capsys, *at)
    assert (status, found["code"], found["level"], found["sort"]) == (
        2,
        "D06",
        "error",
        "diagnosis",
    )
    assert found["about"] == "queue shop of broker main"
    status, (found,) = doctor(capsys, "desk", "shop", *at)
    assert (status, found["code"]) == (2, "D06")
    pasted(found)
    capsys.readouterr()
    assert doctor(capsys, "desk", "shop", *at) == (0, [])
    assert main(["doctor", *at]) == 0
    assert capsys.readouterr().out == "nothing is wrong\n"


@pytest.mark.rule("PBT-21")
def test_a_pair_without_a_service_or_a_contract_is_named(served: Served, capsys: Capture) -> None:
    at = ("--address", served.address)
    status, (found,) = doctor(capsys, "desk", "nobody", *at, "--wait", "1")
    assert (status, found["code"]) == (2, "D10")
    status, found_ = doctor(capsys, "desk", "shop", "--contract", "none", *at)
    assert (status, [one["code"] for one in found_]) == (2, ["D07", "D07"])
    assert doctor(capsys, "desk", *at) == (0, [])
    status, (found,) = doctor(capsys, "desk", *at, "--level", "info")
    assert (status, found["code"], found["level"]) == (0, "D07", "info")
    status, (found,) = doctor(capsys, *at, "--broker", "nobody")
    assert (status, found["code"]) == (2, "D01")


@pytest.mark.rule("MON-20", "MON-21")
def test_an_instance_is_looked_at_whatever_its_brokers_are_called(
    tmp_path: Path, capsys: Capture
) -> None:
    daemon = Served(tmp_path, {**OBJECTS, "broker": {**OBJECTS["broker"], "name": "east"}})
    daemon.start()
    try:
        at = ("--address", daemon.address)
        west = tmp_path / "west.toml"
        west.write_text('[broker]\nname = "west"\n[[queue]]\nname = "q"\nstatus = "off"\n')
        assert main(["apply", str(west), *at]) == 0
        capsys.readouterr()
        status, found = doctor(capsys, *at, "--ignore", "D43", "--ignore", "D28")
        assert (status, [one["about"] for one in found]) == (2, ["queue q of broker west"])
        assert main(["status", "--json", *at]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert {one["broker"] for one in shown["queues"]} >= {"east", "west"}
        status, (one,) = doctor(capsys, *at, "--broker", "main")  # whoever names one means it
        assert (status, one["code"]) == (2, "D01")
        status, (one,) = doctor(capsys, "desk", *at)  # a service is of one broker
        assert (status, one["code"]) == (2, "D01")
        assert main(["status", "--broker", "main", *at]) == 67
    finally:
        daemon.stop()


@pytest.mark.rule("PBT-21", "RTE-31")
def test_a_pair_is_examined_at_the_broker_that_the_route_names(
    several: Served, capsys: Capture, tmp_path: Path
) -> None:
    """The first broker by name has the service too, and nothing is wrong with that one."""
    at = ("--address", several.address)
    file = tmp_path / "objects.toml"
    for name, is_on in (("alike", "on"), ("meant", "off")):
        file.write_text(
            f'[broker]\nname = "{name}"\ndefault_encryption = "off"\n'
            f'[[queue]]\nname = "q"\nstatus = "{is_on}"\n'
            '[[service]]\nname = "twin"\nqueue = "q"\ncontracts = ["DEFAULT"]\n'
            f'[[service]]\nname = "only_{name}"\nqueue = "q"\ncontracts = ["DEFAULT"]\n'
        )
        assert main(["apply", str(file), *at]) == 0
    meant = show(several.instance.brokers["meant"].broker_id)
    for service in ("twin", "only_alike"):
        words = [f"service={service}", "address=LOCAL", f"broker={meant}"]
        assert main(["route", "create", f"to_{service}", *words, *at]) == 0
    capsys.readouterr()
    status, (found,) = doctor(capsys, "desk", "twin", *at)
    assert (status, found["code"], found["about"]) == (2, "D06", "queue q of broker meant")
    status, (found,) = doctor(capsys, "desk", "only_alike", *at)
    assert (status, found["code"]) == (2, "D05")
    assert found["text"] == "broker meant has no such service"
    assert main(["route", "explain", "only_alike", *at]) == 1
    assert "refused by broker 'meant', by route 'to_only_alike'" in capsys.readouterr().out
    assert main(["route", "test", "only_alike", *at]) == 1


@pytest.mark.rule("MON-21")
def test_what_could_not_be_looked_at_is_a_finding_and_a_status_of_its_own(
    tmp_path: Path, capsys: Capture
) -> None:
    status, (found,) = doctor(capsys, "--address", f"unix:{tmp_path}/nobody")
    assert (status, found["code"], found["sort"]) == (3, "D48", "problem")
    settings = tmp_path / "b.toml"
    settings.write_text('[instance]\ndata_dir = "there/file"\n')
    (tmp_path / "there").write_text("no directory")
    status, found_ = doctor(capsys, "-c", str(settings), "--ignore", "D43")
    assert (status, [one["code"] for one in found_]) == (3, ["D48", "D42"])
    settings.write_text("[nonsense]\n")
    status, found_ = doctor(capsys, "-c", str(settings), "--ignore", "D43")
    assert (status, [one["code"] for one in found_]) == (2, ["D41"])


@pytest.mark.rule("MON-22")
def test_a_broker_that_is_off_is_found_and_so_is_what_is_wrong_inside(
    served: Served, capsys: Capture
) -> None:
    at = ("--address", served.address)
    assert main(["queue", "alter", "shop", "status=off", *at]) == 0
    assert main(["broker", "disable", "main", *at]) == 0
    capsys.readouterr()
    try:
        status, found = doctor(capsys, *at, "--ignore", "D43")
        assert (status, [one["code"] for one in found]) == (2, ["D02", "D06"])
        status, found = doctor(capsys, "shop", *at)
        assert (status, [one["code"] for one in found]) == (2, ["D02", "D06"])
        pasted(found[0])
    finally:
        assert main(["queue", "alter", "shop", "status=on", *at]) == 0
    capsys.readouterr()
    assert doctor(capsys, *at, "--ignore", "D43") == (0, [])


@pytest.mark.rule("MON-21")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--far", "unix:/nowhere/s"), (3, "D48", "daemon at unix:/nowhere/s")),
        (("--far", "{here}", "--far-broker", "none"), (2, "D01", "broker none at {here}")),
    ],
)
def test_a_far_side_that_cannot_be_asked_is_not_blamed_on_the_near_one(
    served: Served,
    capsys: Capture,
    tmp_path: Path,
    words: tuple[str, ...],
    expected: tuple[int, str, str],
) -> None:
    settings = tmp_path / "b.toml"
    settings.write_text(
        f'[instance]\ndata_dir = "{served.folder}"\n[clients]\nlisten = "{served.address}"\n'
    )
    given = [one.format(here=served.address) for one in words]
    assert doctor(capsys, "desk", "shop", "-c", str(settings)) == (0, [])
    status, (found,) = doctor(capsys, "desk", "shop", *given, "-c", str(settings))
    about = expected[-1].format(here=served.address)
    assert (status, found["code"], found["about"]) == (*expected[:2], about)


@pytest.mark.rule("MON-20")
@pytest.mark.parametrize(
    "words",
    [
        ("desk", "shop", "--far", "rubbish"),
        ("desk", "shop", "--mirror", "rubbish"),
        ("desk", "shop", "--far-broker", "main"),
        ("desk", "--far", "unix:/s"),
        ("--far", "unix:/s"),
        ("--contract", "talk"),
        ("--address", "rubbish"),
    ],
)
def test_words_that_would_be_left_unused_or_are_no_address_are_refused(
    served: Served, words: tuple[str, ...]
) -> None:
    at = () if "--address" in words else ("--address", served.address)
    assert main(["doctor", *words, *at]) == 64


@pytest.mark.rule("END-1", "NBT-8")
def test_a_destination_of_an_instance_without_an_endpoint_is_not_to_be_started(
    served: Served, capsys: Capture
) -> None:
    assert main(["destination", "retry", "all", "--address", served.address]) == 64
    told = capsys.readouterr().err
    assert "no broker endpoint" in told
    assert "[endpoint] section" in told


@pytest.mark.rule("MON-21")
def test_a_message_to_a_mistyped_service_is_named_and_its_dialog_can_be_given_up(
    served: Served, capsys: Capture
) -> None:
    at = ("--address", served.address)
    words = ("send", "--from", "desk", "--to", "wherehouse", "--body", "hello")
    assert main([*words, "--json", *at]) == 0
    handle = json.loads(capsys.readouterr().out)["conversation_handle"]
    ignored = ("--ignore", "D43")  # the disk is that of who runs this
    status, found = doctor(capsys, *at, *ignored)
    while not found:  # the daemon has not looked for a route yet
        status, found = doctor(capsys, *at, *ignored)
    assert (status, [one["code"] for one in found]) == (2, ["D10"])
    assert f"dialog {handle} to wherehouse" in found[0]["text"]
    assert found[0]["commands"][-1].startswith(f"brokerd dialog end {handle} --cleanup")
    pasted(found[0])
    capsys.readouterr()
    assert doctor(capsys, *at, *ignored) == (0, [])


@pytest.mark.rule("MON-20", "PBT-21")
def test_what_is_watched_is_told_and_then_what_is_wrong_between_its_services(
    served: Served, capsys: Capture
) -> None:
    at = ("--address", served.address)
    words = ("send", "--from", "desk", "--to", "nobody", "--body", "hello")
    assert main([*words, "--json", *at]) == 0
    handle = json.loads(capsys.readouterr().out)["conversation_handle"]
    try:
        status, found = doctor(capsys, "--watch", "0", "--of", handle, "--wait", "1", *at)
        assert (status, [one["code"] for one in found]) == (2, ["D39", "D10"])
        assert doctor(capsys, "--watch", "0", *at) == (0, [])
    finally:  # other tests find nothing wrong
        assert main(["dialog", "end", handle, "--cleanup", "--reason", "test", *at]) == 0
    capsys.readouterr()
    for wrong in (("--of", handle), ("--new",), ("--show-events",), ("desk", "--watch", "1")):
        assert main(["doctor", *wrong, *at]) == 64


@pytest.mark.rule("MON-21")
def test_a_daemon_that_is_there_and_says_nothing_is_not_taken_for_one_that_is_stopped(
    served: Served, tmp_path: Path, capsys: Capture
) -> None:
    settings = tmp_path / "b.toml"
    settings.write_text(
        f'[instance]\ndata_dir = "{served.folder}"\n[clients]\nlisten = "unix:{tmp_path}/s"\n'
    )
    with socket.socket(socket.AF_UNIX) as listening:  # its line of waiting clients is full
        listening.bind(f"{tmp_path}/s")
        listening.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(f"{tmp_path}/s")
            status, (found,) = doctor(capsys, "-c", str(settings), "--ignore", "D43")
    assert (status, found["code"], found["sort"]) == (3, "D48", "problem")
    assert "says nothing" in found["mend"]


@pytest.mark.rule("MON-76")
def test_the_first_digits_of_an_id_are_enough(served: Served, capsys: Capture) -> None:
    at = ("--address", served.address)
    words = ("send", "--from", "desk", "--to", "nobody", "--body", "hello")
    assert main([*words, "--json", *at]) == 0
    handle = json.loads(capsys.readouterr().out)["conversation_handle"]
    for command in (("dialog", "show"), ("dialog", "status")):
        assert main([*command, handle[:8], "--json", *at]) == 0
        assert handle in capsys.readouterr().out
    assert main(["dialog", "show", f"{handle[:7]}z", *at]) == 64
    assert main(["dialog", "end", handle[:13], "--cleanup", "--reason", "test", *at]) == 0
    capsys.readouterr()
    assert main(["dialog", "show", handle[:8], *at]) == 67
