"""What the image and the compose file say is what there is, and what MAN-27 promises."""

import fnmatch
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from brokerd.cli.main import cli
from brokerd.config.loading import load

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    pairs = (line.split(None, 1) for line in text.splitlines() if line.strip())
    return [(name, " ".join(rest.split())) for name, rest in pairs]


def final_stage() -> list[tuple[str, str]]:
    every = instructions()
    last = max(at for at, (name, _) in enumerate(every) if name == "FROM")
    return every[last:]


def of(name: str) -> str:
    (argument,) = (one for instruction, one in final_stage() if instruction == name)
    return argument


def copied() -> list[str]:
    """What the image takes from the checkout."""
    found: list[str] = []
    for name, argument in instructions():
        if name == "COPY" and not argument.startswith("--from"):
            found += argument.split()[:-1]
    return found


def test_the_image_takes_only_what_is_there_and_what_the_context_has() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    assert "*" in ignored
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, one) or source.startswith(f"{one}/") for one in allowed)


@pytest.mark.rule("MAN-27")
def test_the_image_runs_as_a_user_without_rights() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", of("USER"))
    names = [name for name, _ in final_stage()]
    assert "RUN" not in names[names.index("USER") :]
    assert of("VOLUME") == "/var/lib/brokerd"
    settings = load(DEPLOY / "container.toml", environ={}).settings
    assert str(settings.instance.data_dir) == of("VOLUME")
    assert settings.endpoint is None
    assert settings.client_address == "unix:/run/brokerd/brokerd.sock"


@pytest.mark.rule("MAN-27")
def test_the_image_is_healthy_while_the_daemon_answers() -> None:
    options, _, command = of("HEALTHCHECK").partition(" CMD ")
    assert "--timeout" in options
    for words in (json.loads(command), json.loads(of("CMD"))):
        assert words[0] == "brokerd"
        context = click.Context(cli, info_name="brokerd")
        found = cli.get_command(context, words[1])
        assert found is not None
        assert "--check" not in words
        found.make_context(words[1], list(words[2:]), parent=context)


@pytest.mark.rule("MAN-27")
def test_the_compose_file_gives_its_daemons_no_rights_and_a_volume_each() -> None:
    compose: Any = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(compose["services"]) == {"east", "west"}
    volumes = set()
    for name, service in compose["services"].items():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "ports" not in service
        (volume,) = service["volumes"]
        assert volume.endswith(":/var/lib/brokerd")
        volumes.add(volume.partition(":")[0])
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        settings = load(DEPLOY / "container.toml", environ=service["environment"]).settings
        assert settings.instance.name == name
        assert settings.endpoint is not None
        assert settings.endpoint.encryption == "required"
    assert volumes == set(compose["volumes"])


def test_the_commands_in_the_comments_exist() -> None:
    text = (DEPLOY / "compose.yaml").read_text() + (DEPLOY / "Dockerfile").read_text()
    found = re.findall(r"(?:exec (?:\w+ )|exec )(?:\w+ )?brokerd (.*)", text)
    assert len(found) >= 4
    for line in found:
        context = click.Context(cli, info_name="brokerd")
        words = shlex.split(line)
        command = cli.get_command(context, words.pop(0))
        if isinstance(command, click.Group):
            command = command.get_command(context, words.pop(0))
        assert command is not None, line
        command.make_context("x", words, parent=context)
