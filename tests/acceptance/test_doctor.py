"""`brokerd doctor` with a daemon that runs, and with one that does not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.cli.main import main
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


def doctor(capsys: Capture, *words: str) -> tuple[int, list[dict[str, str]]]:
    status = main(["doctor", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)["findings"]


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
    mend = found["mend"].removeprefix("brokerd ").split()
    assert main([*mend, "--address", served.address]) == 0
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
    assert main(["doctor", "desk", *at]) == 64
    status, (found,) = doctor(capsys, *at, "--broker", "nobody")
    assert (status, found["code"]) == (2, "D01")


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
