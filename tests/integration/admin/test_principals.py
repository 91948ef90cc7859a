"""An administrator adds and revokes peers and clients, and replaces certificates."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.client.session import Session
from brokerd.clock import Instant
from brokerd.errors import InUse, InvalidArgument, NoMasterKey, ObjectNotFound
from brokerd.maintenance.certificate_expiry import DAY
from brokerd.security.certificates import DAYS, Certificate, make_certificate
from brokerd.security.credentials import Credentials, Purpose
from brokerd.security.dialog_certificates import make_dialog_certificate
from brokerd.storage.files.key_file import NAME
from tests.integration.one_daemon import START, Daemon, play
from tests.integration.scenarios import scenario
from tests.integration.shorthand import fails

TRANSPORT, DIALOG = Purpose.TRANSPORT, Purpose.DIALOG


def certificate(name: str = "west", *, days: int = DAYS) -> Certificate:
    return make_certificate(name, now=START, days=days)[0]


def exported(name: str = "west") -> tuple[bytes, set[str]]:
    """Return a file with both certificates of an instance, and their ids."""
    made = certificate(name), make_dialog_certificate(name, now=START)[0]
    return "".join(one.pem for one in made).encode(), {one.id.hex() for one in made}


def credentials(daemon: Daemon) -> Credentials:
    return daemon.instance.parts.credentials


def own(daemon: Daemon, purpose: Purpose) -> Certificate:
    found = credentials(daemon).own(purpose, daemon.clock.utc())
    assert found is not None
    return found.certificate


async def jump(daemon: Daemon, session: Session, *, days: int) -> None:
    daemon.clock.jump(timedelta(microseconds=days * DAY))
    await daemon.pass_time(6)
    await session.admin.confirm_clock()


async def audited(session: Session) -> list[tuple[Any, Any]]:
    return [(row["action"], row["subject"]) for row in await session.view("audit", limit=3)]


@pytest.mark.rule("CLP-160", "SEC-4", "SX-15")
@scenario
async def test_a_peer_is_added_once_with_all_that_its_file_has(
    daemon: Daemon, session: Session
) -> None:
    file, ids = exported()
    done = await session.admin.install_principal(
        "peer:west", certificates=[file], addresses=["TCP://WEST:4022", "tcp://west"]
    )
    assert done.is_new
    assert done.addresses == ("tcp://west:4022",)
    assert {one.certificate_id for one in done.installed} == ids
    assert await audited(session) == [("principal_added", "peer:west")] + [
        ("certificate_made", one.id.hex()) for one in (own(daemon, DIALOG), own(daemon, TRANSPORT))
    ]
    version = credentials(daemon).version
    again = await session.admin.install_principal("peer:west", certificates=[file])
    assert (again.is_new, again.installed, again.addresses) == (False, (), done.addresses)
    assert credentials(daemon).version == version
    further = certificate()
    more = await session.admin.install_principal(
        "peer:west", certificates=[further.encoded], addresses=[]
    )
    assert [one.certificate_id for one in more.installed] == [further.id.hex()]
    assert more.addresses == ()
    assert await audited(session) == [
        ("principal_altered", "peer:west"),
        ("certificate_installed", "peer:west"),
        ("principal_added", "peer:west"),
    ]


@pytest.mark.rule("CLP-160", "SEC-11")
@scenario
async def test_what_is_wrong_with_it_is_said_and_nothing_changes(
    daemon: Daemon, session: Session
) -> None:
    install = session.admin.install_principal
    await install("peer:west", certificates=[exported()[0]], addresses=["TCP://west"])
    file, _ = exported("east")
    expired = certificate("old", days=1)
    await jump(daemon, session, days=2)
    version = credentials(daemon).version
    for name, given in (
        ("west", {"certificates": [file]}),
        ("user:west", {"certificates": [file]}),
        ("peer:", {"certificates": [file]}),
        ("peer:we/st", {"certificates": [file]}),
        ("peer:east", {"certificates": [b"nothing"]}),
        ("peer:east", {"certificates": [file], "addresses": ["nowhere"]}),
        ("client:east", {"certificates": [file], "addresses": ["TCP://west:1"]}),
        ("peer:east", {"certificates": [expired.encoded]}),
    ):
        await fails(InvalidArgument, install(name, **given))
    await fails(ObjectNotFound, install("peer:east"))
    await fails(InUse, install("peer:east", certificates=[own(daemon, DIALOG).encoded]))
    await fails(InUse, install("peer:east", certificates=[file], addresses=["TCP://west:4022"]))
    await fails(ObjectNotFound, session.admin.revoke_principal("peer:east"))
    assert credentials(daemon).version == version


@pytest.mark.rule("CLP-160", "SEC-11")
@scenario
async def test_a_certificate_that_begins_later_is_installed_with_a_word(
    daemon: Daemon, session: Session
) -> None:
    later = make_certificate("west", now=Instant(daemon.clock.utc() + DAY))[0]
    done = await session.admin.install_principal("peer:west", certificates=[later.encoded])
    assert "compare the clocks" in done.notes[0]


@pytest.mark.rule("CLP-161", "SEC-4")
@scenario
async def test_who_is_revoked_is_nobody_from_then_on(daemon: Daemon, session: Session) -> None:
    file, ids = exported()
    await session.admin.install_principal("peer:west", certificates=[file])
    changes: list[int] = []
    credentials(daemon).watch(lambda: changes.append(len(credentials(daemon).principals)))
    gone = await session.admin.revoke_principal("peer:west")
    assert {one.certificate_id for one in gone.certificates} == ids
    assert changes == [0]
    assert not ids & {one.hex() for one in credentials(daemon).certificates}


@pytest.mark.rule("CLP-162", "CLP-163", "CLP-164", "CLP-165", "SEC-9")
@scenario
async def test_certificates_are_replaced_in_steps(daemon: Daemon, session: Session) -> None:
    admin = session.admin
    await admin.install_principal("client:till", certificates=[certificate("till").encoded])
    old = {one.purpose: one for one in await admin.own_certificates()}
    assert old["transport"].pem == own(daemon, TRANSPORT).pem
    assert old["dialog"].pem == own(daemon, DIALOG).pem
    made = {one.purpose: one for one in await admin.make_certificates()}
    assert not any(one.is_in_use for one in made.values())
    await fails(InUse, admin.make_certificates(["transport"]))
    assert own(daemon, TRANSPORT).pem == old["transport"].pem
    both = await admin.own_certificates()
    assert [one.is_in_use for one in both] == [True, False, True, False]
    old_id = bytes.fromhex(old["transport"].certificate_id)
    await fails(InUse, admin.drop_certificate(old_id))
    for _ in range(2):  # a repeat changes nothing
        used = await admin.switch_certificates()
        assert [one.certificate_id for one in used] == [
            made["transport"].certificate_id,
            made["dialog"].certificate_id,
        ]
        assert all(one.is_in_use for one in used)
    assert own(daemon, TRANSPORT).pem == made["transport"].pem
    dropped = await admin.drop_certificate(old_id)
    assert dropped.certificate_id == old["transport"].certificate_id
    await fails(ObjectNotFound, admin.drop_certificate(old_id))
    assert len(await admin.own_certificates()) == 2


@pytest.mark.rule("CLP-163", "SEC-9")
@scenario
async def test_a_certificate_that_nobody_knows_is_replaced_at_once(
    daemon: Daemon, session: Session
) -> None:
    (made,) = await session.admin.make_certificates(["transport"])
    assert made.is_in_use
    assert own(daemon, TRANSPORT).pem == made.pem
    assert len(credentials(daemon).own_all(DIALOG)) == 1


@pytest.mark.rule("SEC-9", "NBT-21")
@scenario
async def test_the_next_certificate_is_used_when_the_other_has_expired(
    daemon: Daemon, session: Session
) -> None:
    await session.admin.install_principal("peer:west", certificates=[exported()[0]])
    await jump(daemon, session, days=100)
    made = {one.purpose: one for one in await session.admin.make_certificates()}
    before = own(daemon, TRANSPORT)
    assert before.pem != made["transport"].pem
    await jump(daemon, session, days=DAYS - 99)
    await daemon.pass_time(30)
    assert own(daemon, TRANSPORT).pem == made["transport"].pem
    assert len(credentials(daemon).own_all(TRANSPORT)) == 2


@pytest.mark.rule("CLP-166", "SEC-38", "SX-6")
@pytest.mark.parametrize("how", ["gone", "another", "damaged"])
def test_a_key_that_is_lost_for_good_is_replaced_on_request_only(tmp_path: Path, how: str) -> None:
    async def program(daemon: Daemon) -> None:
        path = tmp_path / NAME
        lost = {one.certificate.id for one in credentials(daemon).certificates.values()}
        theirs = certificate()
        async with await daemon.session() as session:
            await session.admin.install_principal("peer:west", certificates=[theirs.encoded])
            await fails(InUse, session.admin.replace_master_key())
        await daemon.stop()
        kept = path.read_bytes()
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(kept[:-3] + b"00\n" if how == "another" else b"x")
        await daemon.start()
        async with await daemon.session() as session:
            await fails(NoMasterKey, session.admin.make_certificates())
            made = await session.admin.replace_master_key()
            assert [one.purpose for one in made] == ["transport", "dialog"]
            assert not lost & set(credentials(daemon).certificates)
            assert theirs.id in credentials(daemon).certificates
            assert ("master_key_replaced", NAME) in await audited(session)
            assert (await session.status())["no_master_key"] == ""
        aside = path.with_name(f"{NAME}.lost-1")
        assert aside.exists() is (how != "gone")
        await daemon.restart()
        store = daemon.instance.parts.credential_store
        for one in made:
            found = credentials(daemon).certificates[bytes.fromhex(one.certificate_id)]
            assert store.private_key(found)

    play(program, tmp_path)


@pytest.mark.rule("SEC-38", "SX-6")
def test_a_crash_while_the_key_is_replaced_leaves_a_way_on(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        path = tmp_path / NAME
        await daemon.stop()
        path.write_bytes(b"x")
        await daemon.start()
        dies = patch("brokerd.admin.credential_store.set_aside", side_effect=OSError("crash"))
        with dies, pytest.raises(OSError, match="crash"):
            await daemon.instance.parts.credential_store.replace_key(actor="a")
        await daemon.restart()
        async with await daemon.session() as session:
            made = await session.admin.replace_master_key()
            assert len(made) == 2

    play(program, tmp_path)
