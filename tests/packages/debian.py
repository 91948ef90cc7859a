"""The Debian package, from the installation to the purge, in a root that is thrown away.

The root is this machine's own, with everything that is written kept aside, so root and overlay
mounts are needed. systemd does not run in it: the daemon is started as the unit says.
"""

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packages.conftest import Root
from tools.lock import ROOT
from tools.package.deb import build, debian_version, run_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
NEXT = "1.0.0-1"
"""The version after the candidate: an upgrade by Debian's order of versions."""


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package, and a later version of it."""
    folder = tmp_path_factory.mktemp("deb")
    first = build(folder, python=Path("/usr/bin/python3"), work=folder / "work")
    root = folder / "later"
    run_step(["dpkg-deb", "-R", str(first), str(root)])
    control = root / "DEBIAN" / "control"
    control.write_text(control.read_text().replace(debian_version(), NEXT))
    (root / "opt/brokerd/NEW").write_text("new\n")
    later = folder / "later.deb"
    run_step(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", str(root), str(later)])
    return first, later


START = """
install -d -o brokerd -g brokerd -m 0700 /var/lib/brokerd /run/brokerd
cd /var/lib/brokerd
setpriv --reuid=brokerd --regid=brokerd --clear-groups \\
    /opt/brokerd/bin/brokerd serve --config /etc/brokerd/brokerd.toml >/tmp/log 2>&1 &
daemon=$!
export BROKERD_CONFIG=/etc/brokerd/brokerd.toml
for try in $(seq 200); do
    if brokerd status >/dev/null 2>&1; then break; fi
    kill -0 $daemon || { cat /tmp/log; exit 1; }
done
"""
STOP = """
kill $daemon
wait $daemon
"""
DECLARE = """
brokerd message-type create Note
brokerd contract create notes types.Note=initiator
brokerd queue create a_q
brokerd queue create b_q
brokerd service create a queue=a_q contracts=notes
brokerd service create b queue=b_q contracts=notes
brokerd send --from a --to b --contract notes --type Note --body "keep me"
"""


@pytest.mark.rule("MAN-26")
def test_a_package_keeps_messages_and_settings_from_installation_to_purge(
    root: Root, packages: tuple[Path, Path]
) -> None:
    first, later = packages
    for path, name in ((first, "first"), (later, "later")):
        shutil.copy(path, root.folder / "tmp" / f"{name}.deb")
    root.run("dpkg -i /tmp/first.deb")
    assert "1.0.0rc1" in root.run("brokerd --version").stdout
    assert root.run("getent passwd brokerd").stdout.split(":")[6].strip() == "/usr/sbin/nologin"
    root.run("test -s /usr/share/man/man1/brokerd-queue.1.gz")
    root.run("systemd-analyze verify /usr/lib/systemd/system/brokerd.service")
    root.run("brokerd config check --file-only /etc/brokerd/brokerd.toml")
    root.run(f"{START}{DECLARE}{STOP}")
    # An upgrade keeps what the administrator wrote.
    root.run("echo '# mine' >> /etc/brokerd/brokerd.toml")
    root.run("dpkg -i /tmp/later.deb")
    root.run("test -e /opt/brokerd/NEW && grep -q '# mine' /etc/brokerd/brokerd.toml")
    said = root.run(f"{START}brokerd queue browse b_q{STOP}").stdout
    assert "keep me" in said
    before = root.run("cd /var/lib/brokerd && find . -type f -name '*.db' | xargs sha256sum").stdout
    # A removal takes the program, a purge the settings; neither takes the stores.
    root.run("dpkg -r brokerd")
    root.run("test ! -e /opt/brokerd && test ! -e /usr/bin/brokerd")
    root.run("grep -q '# mine' /etc/brokerd/brokerd.toml")
    said = root.run("dpkg -P brokerd").stderr
    assert "/var/lib/brokerd has stores and keys and was kept" in said
    root.run("test ! -e /etc/brokerd/brokerd.toml")
    after = root.run("cd /var/lib/brokerd && find . -type f -name '*.db' | xargs sha256sum").stdout
    assert after == before


@pytest.mark.rule("MAN-26")
def test_the_same_tree_gives_the_same_package(packages: tuple[Path, Path], tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        again = build(tmp_path, python=Path("/usr/bin/python3"), work=tmp_path / "elsewhere" / "w")
    finally:
        os.umask(before)
    assert again.read_bytes() == packages[0].read_bytes()


@pytest.mark.rule("MAN-26")
def test_lintian_has_nothing_to_say(packages: tuple[Path, Path]) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    command = ["lintian", "--allow-root", "--fail-on", "error,warning", str(packages[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""


def test_the_unit_of_the_package_is_that_of_deploy(packages: tuple[Path, Path]) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.read_string((ROOT / "deploy/brokerd.service").read_text())
    listed = subprocess.run(
        ["dpkg-deb", "-c", str(packages[0])], capture_output=True, text=True, check=True
    ).stdout
    program = unit["Service"]["ExecStart"].split()[0]
    assert f".{program}\n" in listed
