"""Logins with certificates of a company's own CA, over real TCP (SEC-67 to SEC-69, SX-4)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from brokerd.clock import SystemClock
from brokerd.config.settings import Authentication, CertificateAuthority, Encryption
from brokerd.errors import InvalidArgument, UnsafeFile
from brokerd.ids import InstanceId
from brokerd.instance.authority_files import AuthorityFiles
from brokerd.maintenance.certificate_expiry import CertificateExpiry
from brokerd.protocol.connection_effects import LoginOutcome
from brokerd.security.authority import Authority, context_of, name_of
from brokerd.security.certificates import read_certificate
from brokerd.security.credentials import Credentials, Kind, Principal
from brokerd.security.names import rule_problem
from brokerd.security.tls import Contexts
from brokerd.telemetry.log import NullLog
from brokerd.telemetry.status import replacement
from brokerd.transport.login_guard import LoginGuard
from tests.authority import HOUR, Ca
from tests.integration.transport.conftest import QUICK, Node
from tests.integration.transport.keys import Keys, now
from tests.integration.transport.test_logins import Rules, Secured

RULE = "{name}.brokers.example"
Make = Callable[..., Awaitable[Secured]]


def authority(
    ca: Ca, certificate: bytes, key: bytes, *, root: Ca | None = None, revoked: bytes = b""
) -> Authority:
    trusted = (root or ca).pem
    return Authority(trusted=trusted, own=certificate, key=key, revoked=revoked, peers=RULE)


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    nodes: list[Node] = []

    async def made(number: int, name: str, by: Callable[[], Authority]) -> Secured:
        keys = Keys(name)
        rules = Rules(keys)
        instance_id = InstanceId(bytes([number]) * 16)
        guard = LoginGuard(
            instance_id=instance_id,
            credentials=keys.credentials,
            contexts=Contexts(
                credentials=keys.credentials,
                kind=Kind.PEER,
                private_key=lambda one: keys.private_keys[one.certificate.id],
                utc=now,
                authority=by,
            ),
            events=rules,
            encryption=Encryption.REQUIRED,
            authentication=Authentication.CERTIFICATE,
        )
        node = Node(number, guard=guard, instance_id=instance_id, options=QUICK)
        rules.moved = node.moved
        await node.transport.start(must_listen=True)
        nodes.append(node)
        return Secured(node, keys, rules)

    yield made
    await asyncio.gather(*(node.transport.stop() for node in nodes))


def know(at: Secured, *names: str) -> None:
    """Add peers without certificates, and let them connect."""
    for name in names:
        at.keys.credentials.put(
            Principal(name=f"peer:{name}", kind=Kind.PEER, created_at=now(), created_by="test")
        )
        at.rules.connect.add(f"peer:{name}")


async def two(
    make: Make, ca: Ca, *issued: Any, root: Ca | None = None, revoked: bytes = b""
) -> tuple[Secured, Secured]:
    """Two instances; the second one has the given certificate, the first one the list."""
    east = authority(ca, *ca.issue("east.brokers.example"), root=root, revoked=revoked)
    west = authority(ca, *(issued or ca.issue("west.brokers.example")), root=root)
    one, other = await make(1, "east", lambda: east), await make(2, "west", lambda: west)
    know(one, "west")
    know(other, "east")
    return one, other


@pytest.mark.rule("SEC-67", "SEC-68", "SEC-2")
async def test_a_certificate_of_the_ca_is_that_of_the_peer_it_names(make: Make) -> None:
    east, west = await two(make, Ca("root"))
    connection = await west.delivers(east)
    assert connection.identity.name == "peer:east"
    assert connection.identity.by_authority
    there = east.node.transport.peers.online[west.node.instance_id]
    assert there.identity.name == "peer:west"
    # nothing that changes credentials ends it
    east.node.transport.check_identities()
    assert east.node.transport.peers.online[west.node.instance_id] is there
    east.rules.connect.clear()
    east.node.transport.check_identities()
    assert west.node.instance_id not in east.node.transport.peers.online


@pytest.mark.rule("SEC-67")
async def test_an_intermediate_ca_is_sent_by_whoever_has_its_certificate(make: Make) -> None:
    root = Ca("root")
    east, west = await two(make, Ca("below", root), root=root)
    await west.delivers(east)


async def refused(make: Make, ca: Ca, *issued: bytes, **how: Any) -> tuple[str, str]:
    """Return why a certificate is refused, as both sides have it."""
    east, west = await two(make, ca, *issued, **how)
    status = await west.refused(east)
    await east.until(lambda: bool(east.rules.logins))
    (login, *_) = east.rules.logins
    assert login.outcome is LoginOutcome.AUTHENTICATION_FAILURE
    return login.detail, status.detail


@pytest.mark.rule("SEC-67", "SX-4")
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"end": -HOUR / 2}, "expired"),
        ({"begin": HOUR / 2}, "not yet valid"),
        ({"usage": [ExtendedKeyUsageOID.SERVER_AUTH]}, "purpose"),
        ({"usage": [ExtendedKeyUsageOID.CODE_SIGNING]}, "purpose"),
    ],
    ids=["expired", "future", "only for servers", "for code"],
)
async def test_dates_and_usage_count(make: Make, how: dict[str, Any], why: str) -> None:
    ca = Ca("root")
    here, there = await refused(make, ca, *ca.issue("west.brokers.example", **how))
    assert why in here
    assert "does not accept" in there or "ca.file" in there


@pytest.mark.rule("SEC-67", "SX-4")
async def test_a_certificate_for_clients_only_cannot_serve(make: Make) -> None:
    ca = Ca("root")
    usage = [ExtendedKeyUsageOID.CLIENT_AUTH]
    east, west = await two(make, ca, *ca.issue("west.brokers.example", usage=usage))
    status = await east.refused(west)
    assert "purpose" in status.detail


@pytest.mark.rule("SEC-67")
async def test_another_ca_of_the_same_name_does_not_count(make: Make) -> None:
    here, _ = await refused(make, Ca("root"), *Ca("root").issue("west.brokers.example"))
    assert "ca.file" in here


@pytest.mark.rule("SEC-67")
async def test_an_installed_certificate_does_not_count_beside_the_ca(make: Make) -> None:
    ca = Ca("root")
    east, west = await two(make, ca)
    stranger = Keys("west")
    east.keys.trust(stranger)
    west.node.transport.peers.guard.contexts = stranger.contexts()  # type: ignore[union-attr]
    status = await west.refused(east)
    assert status.reason == "auth_failed"


@pytest.mark.rule("SEC-68")
@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["west.elsewhere.example"], "follows"),
        (["west.brokers.example", "north.brokers.example"], "several"),
        (["a.west.brokers.example"], "follows"),
        (["south.brokers.example"], "brokerd peer add south"),
        ([], "follows"),
    ],
    ids=["other domain", "two", "two labels", "unknown", "none"],
)
async def test_only_one_known_name_by_the_rule_counts(
    make: Make, names: list[str], why: str
) -> None:
    ca = Ca("root")
    here, _ = await refused(make, ca, *ca.issue(*names))
    assert why in here


@pytest.mark.rule("SEC-67", "SX-4")
async def test_who_is_revoked_is_refused_and_so_is_everybody_by_an_old_list(make: Make) -> None:
    ca = Ca("root")
    bad = ca.issue("west.brokers.example")
    ca.revoke(bad[0])
    here, _ = await refused(make, ca, *bad, revoked=ca.revoked())
    assert "revoked" in here


@pytest.mark.rule("SEC-67")
async def test_a_list_lets_others_in(make: Make) -> None:
    root = Ca("root")
    ca = Ca("below", root)
    ca.revoke(ca.issue("west.brokers.example")[0])
    east, west = await two(make, ca, root=root, revoked=ca.revoked())
    await west.delivers(east)


@pytest.mark.rule("SEC-67")
async def test_a_list_that_is_out_of_date_lets_nobody_in(make: Make) -> None:
    ca = Ca("root")
    issued = ca.issue("west.brokers.example")
    here, _ = await refused(make, ca, *issued, revoked=ca.revoked(end=-HOUR))
    assert "CRL has expired" in here


@pytest.mark.rule("SEC-68")
def test_names_and_rules() -> None:
    ca = Ca("root")

    def named(*names: str, **how: Any) -> str:
        return name_of(read_certificate(ca.issue(*names, **how)[0]).encoded, RULE)

    assert named("WEST.brokers.example", "other.example") == "west"
    assert named(common_name="west.brokers.example") == "west"
    with pytest.raises(InvalidArgument):  # the common name does not count beside others
        named("x.example", common_name="west.brokers.example")
    uri = ca.issue("spiffe://example/brokerd/west")[0]
    assert name_of(read_certificate(uri).encoded, "spiffe://example/brokerd/{name}") == "west"
    assert rule_problem("") == rule_problem(RULE) == ""
    for wrong in ("{name}", "brokers.example", "{name}.{name}.example"):
        assert rule_problem(wrong)


@pytest.mark.rule("SEC-68")
def test_a_rule_is_for_dns_names_or_for_uris() -> None:
    both = read_certificate(Ca("root").issue("tag://west", "east.brokers.example")[0]).encoded
    assert name_of(both, RULE) == "east"
    assert name_of(both, "tag://{name}") == "west"
    # a URI without a scheme, which a CA may hand out to anybody
    uri = x509.UniformResourceIdentifier("west.brokers.example")
    with pytest.raises(InvalidArgument, match="follows"):
        name_of(with_names(x509.SubjectAlternativeName([uri])), RULE)


@pytest.mark.rule("SEC-68", "REL-32")
def test_names_that_cannot_be_read_prove_nothing() -> None:
    odd = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\xff\xff")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        name_of(with_names(odd), RULE)


def with_names(names: x509.ExtensionType) -> bytes:
    """Return a certificate with this extension, in DER."""
    ca = Ca("root")
    key = ca.certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    made = ca._sign(ca.name, key, [(names, False)])
    return made.public_bytes(serialization.Encoding.DER)


def written(folder: Path, ca: Ca) -> CertificateAuthority:
    certificate, key = ca.issue("east.brokers.example")
    folder.chmod(0o700)
    files = {"file": ca.pem, "certificate": certificate, "key": key, "crl_file": ca.revoked()}
    for name, content in files.items():
        path = folder / f"{name}.pem"
        path.write_bytes(content)
        path.chmod(0o600)
    return CertificateAuthority(
        file=folder / "file.pem",
        crl_file=folder / "crl_file.pem",
        certificate=folder / "certificate.pem",
        key=folder / "key.pem",
        peers=RULE,
    )


@pytest.mark.rule("SEC-69", "SX-24")
def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ca = Ca("root")
    files = AuthorityFiles(written(tmp_path, ca), NullLog())
    assert files.vouching_for(Kind.CLIENT) is None
    assert files.vouching_for(Kind.PEER) is not None
    first = files.authority()
    assert files.authority() is first
    assert not files.have_changed()
    context_of(first, accepting=True)
    written(tmp_path, Ca("another"))
    assert files.have_changed()
    assert not files.have_changed()
    assert files.authority().certificate != first.certificate
    (tmp_path / "key.pem").chmod(0o640)
    (tmp_path / "key.pem").touch()
    with pytest.raises(UnsafeFile):
        files.authority()
    (tmp_path / "key.pem").unlink()
    with pytest.raises(InvalidArgument, match=r"ca\.key"):
        files.authority()
    written(tmp_path, ca)
    (tmp_path / "file.pem").write_bytes(b"nothing")
    with pytest.raises(InvalidArgument, match=r"ca\.file"):
        context_of(files.authority(), accepting=False)


@pytest.mark.rule("SEC-67")
def test_a_certificate_among_the_lists_is_no_root_of_trust(tmp_path: Path) -> None:
    ca = Ca("root")
    settings = written(tmp_path, ca)
    assert settings.crl_file is not None
    for content, why in (
        (ca.revoked() + Ca("another").pem, "has a CERTIFICATE"),
        (Ca("another").pem.replace(b"CERTIFICATE", b"TRUSTED CERTIFICATE"), "TRUSTED CERT"),
        (b"-----BEGIN X509 CRL-----\n" + Ca("another").pem, "damaged"),
        (b"", "no list"),
    ):
        settings.crl_file.write_bytes(content)
        with pytest.raises(InvalidArgument, match=why):
            AuthorityFiles(settings, NullLog()).authority()
    root = Ca("root")
    lists = Ca("below", root).revoked()
    settings.crl_file.write_bytes(b"of two CAs\n" + lists.replace(b"\n", b"\r\n"))
    found = AuthorityFiles(settings, NullLog()).authority()
    assert found.revoked == lists
    context_of(found, accepting=True)


@pytest.mark.rule("SEC-69")
async def test_who_is_revoked_meanwhile_is_gone_with_the_next_pass(
    make: Make, tmp_path: Path
) -> None:
    ca = Ca("root")
    settings = written(tmp_path, ca)
    files = AuthorityFiles(settings, NullLog())
    issued = ca.issue("west.brokers.example")
    theirs = authority(ca, *issued)
    east, west = await make(1, "east", files.authority), await make(2, "west", lambda: theirs)
    know(east, "west")
    know(west, "east")
    await west.delivers(east)
    files.have_changed()
    ca.revoke(issued[0])
    assert settings.crl_file is not None
    settings.crl_file.write_bytes(ca.revoked())
    assert files.have_changed()
    assert east.node.transport.verify_again() == 1
    await east.until(lambda: not east.node.transport.peers.online)
    await west.until(lambda: not west.node.transport.peers.online)
    status = await west.refused(east)
    assert status.reason == "auth_failed"


@pytest.mark.rule("SEC-69", "NBT-21")
def test_the_certificate_of_the_ca_is_watched_as_well(tmp_path: Path) -> None:
    files = AuthorityFiles(written(tmp_path, Ca("root")), NullLog())
    watch = CertificateExpiry(
        credentials=Credentials(),
        clock=SystemClock(),
        log=NullLog(),
        of_authority=files.certificate,
    )
    (row,) = watch.soon()
    assert (row.owner, row.days_left) == ("ca.certificate", 0)
    assert "have the CA make the next one" in replacement(row.owner)
    assert set(watch.days_left()) == {"own_certificate_days"}
    assert watch.check() == 1
    (tmp_path / "key.pem").unlink()
    assert watch.soon() == []
    assert AuthorityFiles(CertificateAuthority(), NullLog()).certificate() is None
