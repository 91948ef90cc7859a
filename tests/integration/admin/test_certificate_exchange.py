"""Two paired machines learn each other's next certificates over their connection (SEC-64)."""

import asyncio
from typing import Any

import msgspec
import pytest

from brokerd.admin.certificate_exchange import BURST, EVERY
from brokerd.clock import Instant
from brokerd.errors import InUse
from brokerd.protocol.certificate_lists import CertificatesHere, Shown
from brokerd.security.certificates import make_certificate
from brokerd.security.credentials import Installed, Purpose
from brokerd.security.dialog_certificates import make_dialog_certificate
from brokerd.security.rotation import Ends, prove
from tests.integration.admin.pairing.machines import Machine, two_machines
from tests.integration.shorthand import fails

PURPOSES = list(Purpose)


async def pair(east: Machine, west: Machine) -> None:
    shown = await east.session.admin.invite_peer(shares=["urn:east"])
    await west.session.admin.join_peer(shown.code, shares=["urn:west"])
    assert await works(west, east)


async def works(at: Machine, other: Machine) -> bool:
    """Whether a ping of the whole way comes back."""
    found = await at.session.admin.ping(
        f"urn:{other.name}", from_service=f"urn:{at.name}", wait=30.0
    )
    return found.is_complete


def ends(sender: Machine, receiver: Machine) -> Ends:
    """The ends of the connection between two machines, as its sender knows them."""
    found = connection(sender, receiver)
    return Ends(
        sender.instance.parts.instance_id,
        receiver.instance.parts.instance_id,
        found.own_certificate_id,
        found.identity.certificate_id,
    )


def own(at: Machine) -> set[bytes]:
    return {one.certificate.id for p in PURPOSES for one in at.credentials.own_all(p)}


def known(at: Machine, other: Machine) -> set[bytes]:
    return {one.certificate.id for one in at.credentials.owned_by(f"peer:{other.name}")}


def used(at: Machine) -> dict[Purpose, bytes]:
    found = {p: at.credentials.own(p, at.clock.utc()) for p in PURPOSES}
    return {p: one.certificate.id for p, one in found.items() if one is not None}


def connection(at: Machine, other: Machine) -> Any:
    peers = at.instance.parts.destinations.peers
    return peers.online[other.instance.parts.instance_id]


async def audited(at: Machine, action: str) -> list[Any]:
    rows = await at.session.view("audit", limit=100)
    return [row for row in rows if row["action"] == action]


@pytest.mark.rule("SEC-64", "SEC-66", "SEC-9", "CLP-162", "CLP-164")
@two_machines
async def test_certificates_are_rotated_without_a_file(east: Machine, west: Machine) -> None:
    await pair(east, west)
    before = used(west)
    old = connection(east, west)
    await west.session.admin.make_certificates()
    shown = await west.session.admin.own_certificates(wait=60.0)
    assert [one.lacking for one in shown] == [{}] * 4
    assert known(east, west) == own(west)
    assert len(known(east, west)) == 4
    assert used(west) == before
    done = await west.session.admin.switch_certificates()
    assert {one.certificate_id for one in done} == {one.hex() for one in used(west).values()}
    assert not set(used(west).values()) & set(before.values())
    assert connection(east, west) is old  # nothing was cut
    for one in before.values():
        await west.session.admin.drop_certificate(one)
    assert await works(west, east)
    assert await works(east, west)
    assert connection(east, west) is not old
    assert known(east, west) == own(west) == set(used(west).values())
    rows = await audited(east, "certificates_received")
    assert {(row["actor"], row["subject"]) for row in rows} == {("peer:west", "peer:west")}
    for what in ("installed", "removed"):
        assert sum(len(msgspec.json.decode(row["detail"])[what]) for row in rows) == 2
    lines = [fields for event, fields in east.log.lines if event == "broker.certificate"]
    received = [one for one in lines if one.get("principal") == "peer:west"]
    assert {one["subclass"] for one in received} == {"received"}
    assert len(received) == len(rows)


@pytest.mark.rule("SEC-66", "CLP-164")
@two_machines
async def test_a_switch_waits_for_the_rest_or_names_them(east: Machine, west: Machine) -> None:
    await pair(east, west)
    await east.stop()
    before = used(west)
    await west.session.admin.make_certificates()
    error = await fails(InUse, west.session.admin.switch_certificates(wait=5.0))
    assert "peer:east: no connection" in error.message
    assert used(west) == before
    waiting = asyncio.create_task(west.session.admin.switch_certificates(wait=600.0))
    await west.clock.sleep_until(west.clock.monotonic() + 1.0)
    await east.start(east.folder)
    await waiting
    assert not set(used(west).values()) & set(before.values())
    assert known(east, west) == own(west)


@pytest.mark.rule("SEC-66")
@two_machines
async def test_whoever_insists_switches_without_the_rest(east: Machine, west: Machine) -> None:
    await pair(east, west)
    await east.stop()
    before = used(west)
    await west.session.admin.make_certificates()
    await west.session.admin.switch_certificates(anyway=True)
    assert not set(used(west).values()) & set(before.values())
    assert await west.session.admin.switch_certificates()  # a repeat changes nothing
    await east.start(east.folder)


@pytest.mark.rule("SEC-64", "SEC-65")
@two_machines
async def test_where_it_is_not_accepted_nothing_is_installed(east: Machine, west: Machine) -> None:
    await pair(east, west)
    await east.stop()
    east.accept_rotation = False
    await east.start(east.folder)
    before = east.picture()
    await west.session.admin.make_certificates()
    rows = await west.session.admin.own_certificates(wait=30.0)
    assert "accept_rotation is off" in rows[-1].lacking["peer:east"]
    error = await fails(InUse, west.session.admin.switch_certificates())
    assert "accept_rotation is off" in error.message
    assert east.picture()[1] == before[1]
    for one in rows:
        await east.session.admin.install_principal("peer:west", certificates=[one.pem.encode()])
    await west.session.admin.switch_certificates(wait=30.0)


@pytest.mark.rule("SEC-64")
@two_machines
async def test_what_changed_without_a_connection_is_learnt_at_the_next(
    east: Machine, west: Machine
) -> None:
    await pair(east, west)
    await east.stop()
    await west.session.admin.make_certificates()
    await west.stop()
    await west.start(west.folder)
    await east.start(east.folder)
    assert await works(east, west)
    assert known(east, west) == own(west)


@pytest.mark.rule("SEC-65")
@two_machines
async def test_a_certificate_without_proof_is_not_installed(east: Machine, west: Machine) -> None:
    await pair(east, west)
    peer = east.instance.parts.instance_id
    stolen, _ = make_certificate("north", now=west.clock.utc())
    _, key = make_certificate("west", now=west.clock.utc())
    one = Installed(
        certificate=stolen, purpose=Purpose.TRANSPORT, principal=None, installed_at=west.clock.utc()
    )
    proof = prove(one, key, ends(west, east))
    assert proof is not None
    before = known(east, west)
    frame = CertificatesHere((Shown("transport", stolen.encoded, proof),))
    assert west.instance.parts.destinations.show_certificates(peer, frame)
    assert await works(west, east)
    assert known(east, west) == before


ED25519, UNKNOWN_KIND = b"\x06\x03\x2b\x65\x70\x03", b"\x06\x03\x2b\x65\x01\x03"
"""The head of an Ed25519 key in a certificate, and that of a key of a kind that nobody knows."""


@pytest.mark.rule("SEC-64", "REL-32")
@two_machines
async def test_a_certificate_that_cannot_be_read_stops_nobody(east: Machine, west: Machine) -> None:
    await pair(east, west)
    made, _ = make_certificate("west", now=west.clock.utc())
    odd = made.encoded.replace(ED25519, UNKNOWN_KIND)
    assert odd != made.encoded
    frame = CertificatesHere((Shown("transport", odd, bytes(64)),))
    peer = east.instance.parts.instance_id
    assert west.instance.parts.destinations.show_certificates(peer, frame)
    assert await works(west, east)
    assert not east.instance.failed.done()


@pytest.mark.rule("SEC-64", "REL-32")
@two_machines
async def test_an_error_over_a_list_is_logged_and_answered(east: Machine, west: Machine) -> None:
    await pair(east, west)
    frame = CertificatesHere((Shown("nothing", b"", bytes(64)),))  # type: ignore[arg-type]
    east.instance.parts.certificate_exchange.arrived(west.instance.parts.instance_id, frame)
    assert await works(west, east)
    assert not east.instance.failed.done()
    lines = [fields for event, fields in east.log.lines if event == "broker.certificate"]
    assert [one["principal"] for one in lines if one["subclass"] == "list_failed"] == ["peer:west"]


@pytest.mark.rule("SEC-65")
@two_machines
async def test_who_changes_his_list_without_end_is_slowed_down(
    east: Machine, west: Machine
) -> None:
    await pair(east, west)
    peer = east.instance.parts.instance_id
    now, begin = west.clock.utc(), west.clock.monotonic()
    newest = b""
    shown: tuple[Shown, ...] = ()
    for at in range(100):
        made, key = make_dialog_certificate("west", now=Instant(now + at * 1_000_000))
        one = Installed(certificate=made, purpose=Purpose.DIALOG, principal=None, installed_at=now)
        proof = prove(one, key, ends(west, east))
        assert proof is not None
        newest, shown = made.id, (*shown[-3:], Shown("dialog", made.encoded, proof))
        assert west.instance.parts.destinations.show_certificates(peer, CertificatesHere(shown))
        await west.clock.sleep_until(begin + at * EVERY / 2)
    changes = len(await audited(east, "certificates_received"))
    assert 40 <= changes <= BURST + 50 + 1
    await west.clock.sleep_until(west.clock.monotonic() + BURST * EVERY)
    assert newest in known(east, west)


@pytest.mark.rule("SEC-65", "SEC-4")
@two_machines
async def test_nobody_is_revoked_and_comes_back_by_a_list(east: Machine, west: Machine) -> None:
    await pair(east, west)
    await east.session.admin.revoke_principal("peer:west")
    await west.session.admin.make_certificates()
    rows = await west.session.admin.own_certificates(wait=30.0)
    assert rows[-1].lacking["peer:east"] == "no connection"
    assert known(east, west) == set()
    assert "peer:west" not in east.credentials.principals


@pytest.mark.rule("SEC-65", "SX-3")
@two_machines
async def test_a_list_ends_with_the_certificate_that_has_shown_it(
    east: Machine, west: Machine
) -> None:
    await pair(east, west)
    await west.session.admin.make_certificates()
    await west.session.admin.own_certificates(wait=60.0)
    me = west.instance.parts.instance_id
    identity = connection(east, west).identity
    made, key = make_certificate("west", now=Instant(west.clock.utc() + 60_000_000))
    one = Installed(
        certificate=made, purpose=Purpose.TRANSPORT, principal=None, installed_at=west.clock.utc()
    )
    proof = prove(one, key, ends(west, east))
    assert proof is not None
    await east.session.admin.drop_certificate(identity.certificate_id)
    before = known(east, west)
    assert before
    frame = CertificatesHere((Shown("transport", made.encoded, proof),))
    await east.instance.parts.certificate_exchange._install(me, identity, frame)
    assert known(east, west) == before
