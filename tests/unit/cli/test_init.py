"""`brokerd init` and `brokerd completion`: files and scripts that work as they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.cli.main import COMMANDS, main
from brokerd.config.loading import load
from brokerd.objects.declarations import read

Capture = pytest.CaptureFixture[str]


@pytest.mark.rule("MAN-22")
@pytest.mark.parametrize("words", [(), ("--pair",)], ids=["alone", "pair"])
def test_what_init_writes_is_accepted(
    tmp_path: Path, words: tuple[str, ...], capsys: Capture
) -> None:
    place = tmp_path / "new"
    assert main(["init", str(place), "--name", "east", *words]) == 0
    said = capsys.readouterr().out
    files = str(place / "brokerd.toml"), "--objects", str(place / "objects.toml")
    assert f"brokerd serve -c {files[0]} --objects {files[2]}" in said
    assert "brokerd receive answerer_q --ack -c" in said  # without it the command refuses
    assert main(["config", "check", *files]) == 0
    settings = load(place / "brokerd.toml").settings
    assert settings.instance.name == "east"
    assert read(place / "objects.toml")[1].brokers
    assert [path.stat().st_mode & 0o777 for path in (place, *sorted(place.iterdir()))] == [
        0o700,
        0o600,
        0o600,
    ]


@pytest.mark.rule("MAN-22")
def test_what_init_writes_is_closed_to_other_machines(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "a")]) == 0
    assert main(["init", str(tmp_path / "b"), "--pair"]) == 0
    alone, paired = (load(tmp_path / one / "brokerd.toml").settings for one in "ab")
    assert alone.endpoint is None
    assert paired.endpoint is not None
    assert (paired.endpoint.encryption, paired.endpoint.authentication) == (
        "required",
        "certificate",
    )
    for settings in (alone, paired):
        assert settings.client_address.startswith("unix:")
        assert not settings.clients.trust_network
        assert not settings.transport.allow_plaintext


@pytest.mark.rule("MAN-22")
@pytest.mark.parametrize("there", ["brokerd.toml", "objects.toml"])
def test_init_overwrites_nothing(tmp_path: Path, there: str, capsys: Capture) -> None:
    (tmp_path / there).write_text("mine")
    assert main(["init", str(tmp_path)]) == 64
    assert there in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]


@pytest.mark.rule("MAN-22")
def test_init_refuses_a_name_that_no_instance_can_have(tmp_path: Path, capsys: Capture) -> None:
    assert main(["init", str(tmp_path), "--name", 'a"b']) == 64
    assert "letters" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("MAN-28")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    """A shell runs the script and asks, as at the press of Tab."""
    (tmp_path / "brokerd").write_text(f'#!/bin/sh\nexec {sys.executable} -m brokerd "$@"\n')
    (tmp_path / "brokerd").chmod(0o755)
    script = """
        eval "$(brokerd completion bash)"
        try() {
            COMPREPLY=() COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
            _brokerd_completion brokerd
            echo "${COMPREPLY[@]}"
        }
        try brokerd que
        try brokerd queue pur
        try brokerd queue purge --dry
    """
    environ = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["queue", "purge", "--dry-run"]


@pytest.mark.rule("MAN-28")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(shell: str, capsys: Capture) -> None:
    assert main(["completion", shell]) == 0
    assert "_BROKERD_COMPLETE" in capsys.readouterr().out


def test_every_command_is_in_a_group_of_the_help(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for entry in COMMANDS:
        assert f"\n  {entry.name} " in said
