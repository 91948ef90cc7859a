"""The Debian package's own files; the package itself is tried by `make deb-test`."""

import re
import subprocess
from pathlib import Path

import pytest

from brokerd.cli.main import COMMANDS
from brokerd.config.loading import load
from tools.lock import ROOT
from tools.package.deb import debian_version
from tools.package.man_pages import _text, pages, version

DEBIAN = ROOT / "deploy" / "debian"
MACROS = {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".nf", ".fi", ".RS", ".RE"}


def test_every_command_has_a_page_and_so_have_the_settings() -> None:
    found = pages()
    assert set(found) == {
        "brokerd.1",
        "brokerd.toml.5",
        *(f"brokerd-{entry.name}.1" for entry in COMMANDS),
    }
    assert r"\fB\-\-dry\-run\fR" in found["brokerd-queue.1"]
    assert r"\fBendpoint.encryption\fR" in found["brokerd.toml.5"]
    for text in found.values():
        requests = {line.split()[0] for line in text.splitlines() if line.startswith(".")}
        assert requests <= MACROS
        assert version() in text.splitlines()[0]


def test_no_text_of_a_page_is_a_request() -> None:
    assert _text(".PP\n'x\\-y") == "\\&.PP\n\\&'x\\e\\-y"


def test_pages_say_nothing_about_the_machine() -> None:
    for text in pages().values():
        assert str(ROOT) not in text
        assert str(Path.home()) not in text


@pytest.mark.rule("MAN-26")
@pytest.mark.parametrize("name", ["postinst", "prerm", "postrm"])
def test_a_script_of_the_package_deletes_nothing(name: str) -> None:
    subprocess.run(["sh", "-n", str(DEBIAN / name)], check=True)
    text = (DEBIAN / name).read_text()
    assert text.startswith("#!/bin/sh\n")
    assert "\nset -e\n" in text
    assert not re.search(
        r"^\s*(rm|rmdir|find|mv|chown|chmod|userdel|deluser)\b", text, re.MULTILINE
    )


@pytest.mark.rule("MAN-26")
def test_the_settings_of_the_package_are_closed_to_other_machines() -> None:
    settings = load(DEBIAN / "brokerd.toml", environ={}).settings
    assert settings.endpoint is None
    assert settings.client_address == "unix:/run/brokerd/brokerd.sock"
    assert str(settings.instance.data_dir) == "/var/lib/brokerd"


def test_a_candidate_comes_before_its_release_in_debians_order() -> None:
    version = debian_version()
    assert re.fullmatch(r"\d+\.\d+\.\d+(~(a|b|rc)\d+)?-1", version)
    release = re.sub(r"~\w+", "", version)
    if "~" in version:
        subprocess.run(["dpkg", "--compare-versions", version, "lt", release], check=True)
