"""`brokerd peer`, `client` and `certificate`: what an operator types, on real files."""

import json
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from brokerd.cli.main import main
from brokerd.clock import Instant, SystemClock
from brokerd.process.exit_statuses import LOOK, NOT_THERE, REFUSED, USAGE
from brokerd.security.certificate_files import read_certificates
from brokerd.security.certificates import make_certificate, show_id
from brokerd.security.credentials import Purpose
from brokerd.security.dialog_certificates import make_dialog_certificate
from tests.acceptance.one_process import Served

Capture = pytest.CaptureFixture[str]
OBJECTS: dict[str, Any] = {"broker": {"name": "main"}}


class Operator:
    """Types commands."""

    def __init__(self, served: Served, folder: Path, capsys: Capture) -> None:
        self.served = served
        self.folder = folder
        self._capsys = capsys

    def run(self, *words: object, status: int = 0, said: bool = False) -> str:
        """Return what a command prints; if it fails, what it says of that.

        `said`: return what it prints whatever the status is."""
        done = main([*map(str, words), "--address", self.served.address])
        out, err = self._capsys.readouterr()
        assert done == status, err
        return out if status == 0 or said else err

    def rows(self, *words: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run(*words, "--json"))["rows"]
        return found

    def file_of(self, name: str) -> Path:
        """Write what another instance exports."""
        now = SystemClock().utc()
        path = self.folder / f"{name}.pem"
        made = make_certificate(name, now=now)[0], make_dialog_certificate(name, now=now)[0]
        path.write_text("".join(one.pem for one in made))
        return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("o"), OBJECTS)
    served.start()
    yield served
    served.stop()


@pytest.fixture
def operator(served: Served, tmp_path: Path, capsys: Capture) -> Operator:
    return Operator(served, tmp_path, capsys)


@pytest.mark.rule("SEC-4", "SEC-9")
def test_a_peer_is_added_shown_and_revoked(operator: Operator) -> None:
    file = operator.file_of("west")
    said = operator.run("peer", "add", "west", "--certificate", file, "--at", "TCP://WEST")
    assert "peer:west added, 2 certificates installed" in said
    assert "only it may serve tcp://west:4022" in said
    assert "known, 0 certificates installed" in operator.run(
        "peer", "add", "west", "--certificate", file
    )
    (row,) = operator.rows("peer", "ls")
    assert (row["name"], row["certificates"]) == ("peer:west", 2)
    assert row["create_date"].endswith("Z")
    assert "397 days" in operator.run("peer", "ls")
    shown = json.loads(operator.run("peer", "show", "west", "--json"))
    assert {one["purpose"] for one in shown["certificates"]} == {"transport", "dialog"}
    assert operator.rows("client", "ls") == []
    of_west = operator.rows("certificate", "ls", "--owner", "peer:west")
    assert len(of_west) == 2
    dropped = operator.run("certificate", "drop", of_west[0]["certificate_id"][:12])
    assert "removed" in dropped
    assert "1 certificate" in operator.run("peer", "revoke", "peer:west")
    assert operator.rows("peer", "ls") == []
    assert "brokerd peer ls" in operator.run("peer", "show", "west", status=NOT_THERE)


@pytest.mark.rule("SEC-84")
def test_what_leads_to_a_revoked_peer_is_named_and_dropped_if_wanted(operator: Operator) -> None:
    def lead_to(peer: str) -> None:
        file = operator.file_of(peer)
        operator.run("peer", "add", peer, "--certificate", file, "--at", f"TCP://{peer}:4022")
        at = f"address=TCP://{peer}:4022"
        operator.run("route", "create", f"to {peer}", f"service=urn:{peer}", at)
        operator.run("instance-route", "create", f"by {peer}", f"service=urn:{peer}", at)
        principal = f"principal=peer:{peer}"
        operator.run("binding", "create", f"for {peer}", f"service=urn:{peer}", principal)

    def left(noun: str) -> list[str]:
        return [one["name"] for one in operator.rows(noun, "ls") if " " in one["name"]]

    for peer in ("one", "two"):
        lead_to(peer)
    said = operator.run("peer", "revoke", "one")
    for noun, name in (("route", "to one"), ("binding", "for one")):
        assert f"{noun} {name} of broker main: leads nowhere now" in said
        assert f"brokerd {noun} drop '{name}' --broker main" in said
    assert "brokerd instance-route drop 'by one'" in said
    assert "two" not in said
    assert sorted(left("route")) == ["to one", "to two"]
    gone = json.loads(operator.run("peer", "revoke", "two", "--with-routes", "--json"))
    assert [(one["name"], one["is_dropped"]) for one in gone["objects"]] == [
        ("by two", True),
        ("to two", True),
        ("for two", True),
    ]
    assert (left("route"), left("binding"), left("instance-route")) == (
        ["to one"],
        ["for one"],
        ["by one"],
    )
    error = operator.run("peer", "revoke", "nobody", status=NOT_THERE)
    assert "brokerd peer ls" in error
    operator.run("peer", "add", "three", "--certificate", operator.file_of("three"))
    assert 'did you mean "peer:three"?' in operator.run("peer", "revoke", "tree", status=NOT_THERE)
    operator.run("peer", "revoke", "three")


@pytest.mark.rule("SX-6", "SX-9")
def test_a_new_client_gets_its_files_and_nobody_else_its_key(operator: Operator) -> None:
    out = operator.folder / "keys"
    said = operator.run("client", "new", "till", "--out", out)
    assert "client:till added" in said
    assert {one.name for one in out.iterdir()} == {"till.key", "till.pem", "server.pem"}
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    for one in out.iterdir():
        assert stat.S_IMODE(one.stat().st_mode) == 0o600
    key = serialization.load_pem_private_key((out / "till.key").read_bytes(), None)
    ((_, made),) = read_certificates((out / "till.pem").read_bytes())
    raw = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    assert key.public_key().public_bytes(*raw) in made.encoded
    ((purpose, server),) = read_certificates((out / "server.pem").read_bytes())
    assert purpose is Purpose.TRANSPORT
    credentials = operator.served.instance.parts.credentials
    assert credentials.certificates[server.id].principal is None
    assert credentials.certificates[made.id].principal == "client:till"
    again = operator.run("client", "new", "till", "--out", out, status=USAGE)
    assert "is there already" in again
    operator.run("client", "revoke", "till")
    secret = (out / "till.key").read_text().splitlines()[1]
    for event, fields in operator.served.log.lines:
        assert secret not in f"{event} {fields}"
    assert secret not in operator.run(
        "peer", "add", "x", "--certificate", out / "till.key", status=USAGE
    )


@pytest.mark.rule("SX-6")
def test_a_client_that_cannot_be_added_leaves_no_key(operator: Operator) -> None:
    out = operator.folder / "keys"
    words = ("client", "new", "till", "--out", str(out), "--address", "unix:/nowhere/s")
    assert main(list(words)) != 0
    assert list(out.iterdir()) == []
    assert "no name for a client" in operator.run(
        "client", "new", "t/ill", "--out", out, status=USAGE
    )


@pytest.mark.rule("SEC-9", "SEC-66")
def test_certificates_are_exported_renewed_and_switched(operator: Operator) -> None:
    first = operator.run("certificate", "export")
    assert [purpose for purpose, _ in read_certificates(first.encode())] == list(Purpose)
    (of_dialogs,) = read_certificates(
        operator.run("certificate", "export", "--only", "dialog").encode()
    )
    assert of_dialogs[0] is Purpose.DIALOG
    assert "no next certificate" in operator.run(
        "certificate", "export", "--next", status=NOT_THERE
    )
    operator.run("peer", "add", "north", "--certificate", operator.file_of("north"))
    assert "not used yet" in operator.run("certificate", "renew")
    refused = operator.run("certificate", "switch", "--wait", "0s", status=REFUSED)
    assert "peer:north: no connection" in refused
    following = operator.run("certificate", "export", "--next")
    assert not set(read_certificates(following.encode())) & set(read_certificates(first.encode()))
    assert operator.run("certificate", "export") != first
    assert operator.run("certificate", "switch", "--anyway").count("in use") == 2
    assert operator.run("certificate", "export") == following
    used = [one for one in operator.rows("certificate", "ls") if one["is_in_use"]]
    assert len([one for one in used if one["principal_name"] is None]) == 2
    operator.run("peer", "revoke", "north")


@pytest.mark.rule("SEC-96")
def test_a_copied_file_is_compared_with_the_original(operator: Operator) -> None:
    exported = operator.folder / "own.pem"
    exported.write_text(operator.run("certificate", "export"))
    own = operator.rows("certificate", "check-copy", exported)
    assert [one["purpose"] for one in own] == ["transport", "dialog"]
    assert all(one["installed_for"] == "this instance" and one["is_in_use"] for one in own)
    copy = operator.file_of("west")
    shown = operator.run("certificate", "check-copy", copy)
    made = read_certificates(copy.read_bytes())
    ids = [show_id(certificate.id) for _, certificate in made]
    assert all(one in shown for one in ids)
    assert shown.count("not here") == 2
    operator.run("peer", "add", "west", "--certificate", copy)
    assert operator.run("certificate", "check-copy", copy).count("here, for peer:west") == 2
    operator.run("peer", "revoke", "west")


@pytest.mark.rule("SEC-96")
def test_a_file_that_was_exchanged_is_found_out(operator: Operator) -> None:
    copy = operator.file_of("west")
    first, second = (show_id(one.id) for _, one in read_certificates(copy.read_bytes()))
    check = ("certificate", "check-copy", copy)
    spaced = " ".join(second[at : at + 4] for at in range(0, 64, 4)).upper()
    said = operator.run(*check, "--id", first[:32], "--id", spaced)
    assert said.count("the same") == 2
    # Both ids have to be given: a changed certificate could be the one without an id.
    assert operator.run(*check, "--id", first, status=LOOK, said=True).count("another one") == 1
    strange = "0" * 32
    said = operator.run(
        *check, "--id", first, "--id", second, "--id", strange, status=LOOK, said=True
    )
    assert f"no certificate in the file has the id {strange}" in said
    assert "32 digits" in operator.run(*check, "--id", first[:31], status=USAGE)
    assert "32 digits" in operator.run(*check, "--id", "x" * 64, status=USAGE)


@pytest.mark.rule("SEC-96", "SEC-11")
def test_a_copy_that_is_not_valid_any_more_is_named(operator: Operator) -> None:
    copy = operator.folder / "old.pem"
    old = SystemClock().utc() - 400 * 24 * 3600 * 1_000_000
    copy.write_text(make_certificate("old", now=Instant(old))[0].pem)
    said = operator.run("certificate", "check-copy", copy, status=LOOK, said=True)
    assert "the certificate of 'old' expired at" in said


@pytest.mark.rule("SEC-96", "SX-14")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty"),
        (b"not a certificate\n", "there is no certificate in the file"),
        (b"-----BEGIN CERTIFICATE-----\nMIIB\n", "the file is cut off"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no X.509"),
        (b"-----BEGIN PRIVATE KEY-----\nAA\n-----END PRIVATE KEY-----\n", "private key"),
        (b"x" * 70_000, "larger than"),
    ],
)
def test_a_file_without_certificates_is_refused_with_the_reason(
    operator: Operator, content: bytes, why: str
) -> None:
    copy = operator.folder / "bad.pem"
    copy.write_bytes(content)
    assert why in operator.run("certificate", "check-copy", copy, status=USAGE)


@pytest.mark.rule("SX-14")
def test_wrong_words_are_told_with_the_way_out(operator: Operator) -> None:
    nothing = operator.folder / "nothing.pem"
    assert "cannot be read" in operator.run(
        "peer", "add", "w", "--certificate", nothing, status=USAGE
    )
    assert "--certificate FILE" in operator.run("peer", "add", "w", status=NOT_THERE)
    assert "8 digits" in operator.run("certificate", "drop", "xyz", status=USAGE)
    assert "certificate ls" in operator.run("certificate", "drop", "0" * 64, status=NOT_THERE)


@pytest.mark.rule("SX-15", "SEC-87")
def test_the_audit_names_the_user(operator: Operator) -> None:
    operator.run("peer", "add", "south", "--certificate", operator.file_of("south"))
    (row,) = operator.rows("peer", "ls")
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert user in row["created_by"]
    operator.run("peer", "revoke", "south")
    rows = operator.rows("audit", "--event", "principal_revoked", "--principal", user)
    assert rows[0]["subject"] == "peer:south"
    assert rows[0]["event_time"].endswith("Z")
    assert operator.rows("audit", "--event", "principal_revoked", "--since", "2999-01-01") == []
