"""What `deploy/` starts is what there is: commands and options that exist, files that parse."""

import ast
import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from brokerd.cli.main import cli
from tests.restricted import directives

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted([*DEPLOY.glob("*.service"), *DEPLOY.glob("*.timer")])


def commands() -> list[str]:
    """Every call of brokerd in the files, from the command on."""
    found = []
    for path in sorted(one for one in DEPLOY.rglob("*") if one.is_file()):
        lines = path.read_text().replace("\\\n", " ").splitlines()
        text = "\n".join(line for line in lines if not line.startswith("#"))
        found += re.findall(r"^(?:.*/bin/)?brokerd ((?:ship|report|serve) .*)", text, re.MULTILINE)
        found += re.findall(r"/bin/brokerd ((?:ship|report|serve) .*)", text)
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_has_the_parts_of_its_kind(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment]  # its documented use
    unit.read_string(path.read_text().replace("\\\n", " "))
    assert unit["Unit"]["Description"]
    if path.suffix == ".timer":
        assert unit["Timer"]["OnCalendar"]
        assert path.with_suffix(".service").exists()
    else:
        assert "/opt/brokerd/bin/brokerd " in unit["Service"]["ExecStart"]


@pytest.mark.rule("FP-8")
def test_a_daemon_that_gives_no_sign_of_life_is_started_again() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.read_string((DEPLOY / "brokerd.service").read_text())
    service = unit["Service"]
    assert (service["Type"], service["WatchdogSec"]) == ("notify", "30")
    assert service["Restart"] in ("on-failure", "on-watchdog", "on-abnormal", "always")


MOST_EXPOSED = 2.0
"""What `systemd-analyze security` may say of a unit; 10 is one with all rights."""
JIT = ("brokerd-report.service",)
"""Units whose program makes code at run time: Java."""
SERVICES = [path for path in UNITS if path.suffix == ".service"]


@pytest.mark.rule("SX-16")
@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_unit_has_no_more_rights_than_its_program_needs(path: Path) -> None:
    asked = directives(path)
    expected = {
        "AmbientCapabilities": "",
        "CapabilityBoundingSet": "",
        "LimitCORE": "0",
        "NoNewPrivileges": "yes",
        "PrivateDevices": "yes",
        "PrivateTmp": "yes",
        "ProtectSystem": "strict",
        "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
        "SystemCallArchitectures": "native",
        "SystemCallFilter": "@system-service",
    }
    assert {key: asked.get(key) for key in expected} == expected
    assert asked["User"] != "root"
    assert int(asked["UMask"], 8) & 0o027 == 0o027
    assert (asked.get("MemoryDenyWriteExecute") == "yes") is (path.name not in JIT)


@pytest.mark.rule("SX-16")
def test_the_daemon_shares_nothing_with_others_of_its_group() -> None:
    asked = directives(DEPLOY / "brokerd.service")
    assert asked["UMask"] == "0077"
    assert asked["StateDirectoryMode"] == asked["RuntimeDirectoryMode"] == "0700"
    assert int(asked["LimitNOFILE"]) >= 4096


@pytest.mark.rule("SX-16")
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_systemd_finds_little_exposed(path: Path) -> None:
    said = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(path)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= MOST_EXPOSED, said


@pytest.mark.rule("SX-16")
def test_nothing_runs_as_root() -> None:
    lines = (DEPLOY / "brokerd.cron").read_text().splitlines()
    users = [line.split()[5] for line in lines if re.match(r"[*\d]", line)]
    assert users == [
        directives(DEPLOY / f"brokerd-{one}.service")["User"] for one in ("ship", "report")
    ]
    assert "root" not in users


def test_every_command_and_option_exists() -> None:
    assert len(commands()) > 4
    for line in commands():
        command: click.Command = cli
        context = click.Context(command)
        words = shlex.split(re.split(r"[>|;']", line)[0])
        while isinstance(command, click.Group) and words:
            found = command.get_command(context, words.pop(0))
            assert found is not None, line
            command = found
        known = {name for one in command.params for name in one.opts}
        given = {word for word in words if word.startswith("--")}
        assert given <= known, line


def test_the_dag_makes_the_report_of_the_day_before() -> None:
    """Of a plain cron text Airflow 2 makes the day before and Airflow 3 the one that begins."""
    text = (DEPLOY / "airflow_dag.py").read_text()
    calls = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Call)]
    (made,) = (one for one in calls if isinstance(one.func, ast.Name) and one.func.id == "DAG")
    (schedule,) = (one.value for one in made.keywords if one.arg == "schedule")
    assert isinstance(schedule, ast.Call)
    assert isinstance(schedule.func, ast.Name)
    assert schedule.func.id == "CronDataIntervalTimetable"
    assert "--date {{{{ data_interval_start | ds }}}} " in text
