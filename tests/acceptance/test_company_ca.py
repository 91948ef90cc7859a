"""Two daemons with certificates of their company's CA, set up by commands (SEC-67 to SEC-69)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_peer_pair import ADDRESSES, Machine
from tests.authority import Ca

RULE = "{name}.brokers.example"


class Certified(Machine):
    """A daemon with a certificate of the CA."""

    def certify(self, ca: Ca) -> None:
        """Write the files of the CA, and name them in the settings."""
        certificate, key = ca.issue(RULE.replace("{name}", self.folder.name))
        files = {"file": ca.pem, "crl_file": ca.revoked(), "certificate": certificate, "key": key}
        lines = ["[ca]", f'peers = "{RULE}"']
        for name, content in files.items():
            path = self.folder / f"{name}.pem"
            path.write_bytes(content)
            path.chmod(0o600)
            lines.append(f'{name} = "{path}"')
        text = self.settings.read_text().partition("[ca]")[0]
        self.settings.write_text(text + "\n".join(lines) + "\n")

    def do(self, *words: str) -> str:
        """Run a command, which succeeds."""
        done = self.run(*words, "-c", str(self.settings))
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Certified, Certified]]:
    ca = Ca("root")
    east, west = (Certified(tmp_path / name) for name in ADDRESSES)
    for one in (east, west):
        one.certify(ca)
    with east.serving(), west.serving():
        yield east, west


@pytest.mark.rule("SEC-67", "SEC-68", "SEC-64")
def test_a_name_and_a_grant_are_all_that_a_peer_needs(machines: tuple[Certified, ...]) -> None:
    for one, other in (machines, machines[::-1]):
        name = other.folder.name
        at = f"TCP://{ADDRESSES[name]}:{other.port}"
        one.do("peer", "add", name, "--at", at)
        one.do("grant", f"connect on endpoint to peer:{name}")
        one.do("grant", f"send on urn:{one.folder.name} to peer:{name}")
        one.do("route", "create", name, f"service=urn:{name}", f"address={at}")
    east, west = machines
    found = json.loads(east.do("ping", "urn:west", "--from", "urn:east", "--json"))
    assert found["is_complete"]
    # dialogs are secured by certificates that came over the connection
    rows = json.loads(east.do("certificate", "ls", "--json"))["rows"]
    assert [
        row for row in rows if (row["principal_name"], row["purpose"]) == ("peer:west", "dialog")
    ]
    west.certify(Ca("another"))
    east.do("peer", "revoke", "west")
    east.do("peer", "add", "west")
    done = east.run(
        "ping", "urn:west", "--from", "urn:east", "--wait", "5s", "-c", str(east.settings)
    )
    assert done.returncode != 0
