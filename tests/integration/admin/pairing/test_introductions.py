"""What a pairing installs in an instance, all of it or nothing."""

from pathlib import Path
from typing import Any

import pytest

from brokerd.admin.pairing.acquaintance import Stranger, Wishes
from brokerd.admin.pairing.introductions import Introductions
from brokerd.client.session import Session
from brokerd.clock import Instant
from brokerd.errors import Busy, InvalidArgument
from brokerd.ids import InstanceId
from brokerd.security.certificates import make_certificate
from brokerd.security.credentials import Credentials, Purpose
from brokerd.security.dialog_certificates import make_dialog_certificate
from brokerd.security.pairing import Acquaintance
from tests.integration.one_daemon import START, Daemon, play
from tests.integration.scenarios import scenario
from tests.integration.shorthand import fails

ADDRESS = "tcp://10.0.0.8:4022"
GRANTS = {"connect on endpoint to peer:west", "send on urn:desk to peer:west"}


def stranger(**changed: Any) -> Stranger:
    transport, _ = make_certificate("west", now=START)
    dialog, _ = make_dialog_certificate("west", now=START)
    usual = {"name": "west", "instance_id": InstanceId(b"w" * 16), "address": ADDRESS}
    who = {**usual, "certificate": transport, **changed}
    return Stranger(
        acquaintance=Acquaintance(**who), dialog_certificate=dialog, services=("far", "urn:shop")
    )


def introductions(daemon: Daemon) -> Introductions:
    parts = daemon.instance.parts
    return Introductions(
        store=parts.credential_store,
        grants=parts.grants,
        objects=parts.administration.objects,
        clock=daemon.clock,
        log=daemon.log,
    )


def wishes(daemon: Daemon, **changed: Any) -> Wishes:
    return Wishes(**{"broker": daemon.broker, "actor": "ann", "shares": ("urn:desk",), **changed})


def picture(daemon: Daemon) -> tuple[object, ...]:
    """Everything that a pairing may change."""
    parts, catalog = daemon.instance.parts, daemon.broker.store.catalog
    known: Credentials = parts.credentials
    return (
        dict(known.principals),
        dict(known.certificates),
        {str(one) for one in parts.grants.online},
        catalog.routes,
        catalog.remote_service_bindings,
    )


@pytest.mark.rule("SEC-61")
@scenario
async def test_a_peer_is_installed_with_all_that_it_needs(daemon: Daemon, session: Session) -> None:
    west = stranger()
    done = await introductions(daemon).install(west, wishes(daemon))
    assert (done.principal, done.is_new) == ("peer:west", True)
    assert list(done.left_out) == ["urn:shop"]
    principals, certificates, grants, routes, bindings = picture(daemon)
    assert isinstance(principals, dict)
    peer = principals["peer:west"]
    assert (peer.instance_id, peer.addresses, peer.created_by) == (b"w" * 16, (ADDRESS,), "ann")
    assert isinstance(certificates, dict)
    owned = {one.purpose for one in certificates.values() if one.principal == "peer:west"}
    assert owned == {Purpose.TRANSPORT, Purpose.DIALOG}
    assert grants == set(done.grants) == GRANTS
    assert isinstance(routes, dict)
    assert isinstance(bindings, dict)
    assert routes["west/far"].address == ADDRESS
    assert bindings["west/far"].principal == "peer:west"


@pytest.mark.rule("SEC-61")
def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    async def first(daemon: Daemon) -> Any:
        await introductions(daemon).install(stranger(), wishes(daemon))
        return picture(daemon)

    async def second(daemon: Daemon) -> Any:
        return picture(daemon)

    before, after = play(first, tmp_path), play(second, tmp_path)
    assert [set(one) for one in before] == [set(one) for one in after]
    assert before[0] == after[0]


@pytest.mark.rule("SEC-61", "SEC-62")
@scenario
async def test_pairing_again_renews_and_undoing_it_restores(
    daemon: Daemon, session: Session
) -> None:
    known = introductions(daemon)
    old = stranger()
    await known.install(old, wishes(daemon))
    before = picture(daemon)
    new = stranger(address="tcp://10.0.0.88:4022")
    error = await fails(InvalidArgument, known.install(new, wishes(daemon)))
    assert "another certificate" in error.message
    assert picture(daemon) == before
    done = await known.install(new, wishes(daemon, name="west"))
    assert not done.is_new
    credentials = daemon.instance.parts.credentials
    now = Instant(START)
    transport = credentials.of_principal("peer:west", Purpose.TRANSPORT, now)
    dialog = credentials.of_principal("peer:west", Purpose.DIALOG, now)
    assert transport is not None
    assert transport.certificate == new.acquaintance.certificate
    assert dialog is not None
    assert dialog.certificate == new.dialog_certificate
    assert old.acquaintance.certificate.id not in credentials.certificates
    assert old.dialog_certificate is not None
    assert not credentials.certificates[old.dialog_certificate.id].is_active
    await known.undo(done, wishes(daemon))
    assert picture(daemon) == before


@pytest.mark.rule("SEC-62")
@scenario
async def test_a_first_pairing_is_undone_without_a_trace(daemon: Daemon, session: Session) -> None:
    known, before = introductions(daemon), picture(daemon)
    done = await known.install(stranger(), wishes(daemon))
    await known.undo(done, wishes(daemon))
    assert picture(daemon) == before
    await known.install(stranger(), wishes(daemon))
    assert "peer:west" in daemon.instance.parts.credentials.principals


@pytest.mark.rule("SEC-61")
@scenario
async def test_where_the_objects_cannot_be_made_nothing_is(
    daemon: Daemon, session: Session
) -> None:
    before = picture(daemon)
    exclusive = daemon.instance.parts.sessions.exclusive
    await exclusive.hold(daemon.broker, force=False, wait=1.0)
    await fails(Busy, introductions(daemon).install(stranger(), wishes(daemon)))
    exclusive.release(daemon.broker)
    assert picture(daemon) == before


@pytest.mark.rule("SEC-61")
@scenario
async def test_nobody_brings_the_dialog_certificate_of_another(
    daemon: Daemon, session: Session
) -> None:
    known = introductions(daemon)
    west = stranger()
    await known.install(west, wishes(daemon))
    before = picture(daemon)
    north = stranger(name="north", instance_id=InstanceId(b"n" * 16), address="tcp://n:1")
    thief = Stranger(
        acquaintance=north.acquaintance,
        dialog_certificate=west.dialog_certificate,
        services=(),
    )
    error = await fails(InvalidArgument, known.install(thief, wishes(daemon)))
    assert "installed here for peer:west" in error.message
    assert picture(daemon) == before
