"""Principals, certificates and keys survive restarts; a lost master key is never remade."""

from pathlib import Path
from typing import Any

import pytest

from brokerd.admin.credential_store import CredentialStore
from brokerd.errors import InUse, InvalidArgument, NoMasterKey, ObjectNotFound
from brokerd.ids import InstanceId
from brokerd.security.certificates import Certificate, make_certificate
from brokerd.security.credentials import Credentials, Kind, Purpose
from brokerd.security.dialog_certificates import DialogCertificate, PrivateKeys
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.files.key_file import NAME
from brokerd.storage.rows import audit
from brokerd.telemetry.audit import Action, Entry, Outcome
from brokerd.telemetry.logs import ADMINISTRATION, CERTIFICATE
from tests.integration.one_daemon import START, Daemon, play
from tests.integration.scenarios import alone, given

TRANSPORT = Purpose.TRANSPORT
by_itself = given(alone)


def certificate(name: str = "west") -> Certificate:
    return make_certificate(name, now=START)[0]


def store_of(daemon: Daemon) -> CredentialStore:
    return daemon.instance.parts.credential_store


def everything(credentials: Credentials) -> tuple[object, object]:
    return credentials.principals, credentials.certificates


def entry(action: Action, number: int) -> Entry:
    return Entry(at=START, action=action, actor="192.0.2.1", subject=str(number))


async def actions(daemon: Daemon) -> list[tuple[str, str, str]]:
    found = await daemon.instance.brokers["msdb"].store.audit.page(before=2**62, limit=100)
    return [(one.action.value, one.actor, one.subject) for one in reversed(found)]


def told(daemon: Daemon, event: str) -> list[object]:
    return [fields["subclass"] for name, fields in daemon.log.lines if name == event]


@pytest.mark.of_files("it looks into the file")
@pytest.mark.rule("SEC-2", "SX-6")
@by_itself
async def test_an_instance_makes_its_key_and_certificate_once(daemon: Daemon) -> None:
    before = {}
    for purpose in Purpose:
        mine = store_of(daemon).credentials.own(purpose, daemon.clock.utc())
        assert mine is not None
        assert mine.certificate.subject == "daemon"
        before[purpose] = mine, store_of(daemon).private_key(mine)
        assert before[purpose][1] not in (daemon._folder / "msdb.db").read_bytes()
    of_dialogs, private = before[Purpose.DIALOG]
    assert isinstance(of_dialogs.certificate, DialogCertificate)
    assert PrivateKeys(private).belong_to(of_dialogs.certificate)
    key = (daemon._folder / NAME).read_bytes()
    await daemon.restart()
    for purpose, (mine, private) in before.items():
        again = store_of(daemon).credentials.own(purpose, daemon.clock.utc())
        assert again == mine
        assert store_of(daemon).private_key(again) == private
    assert (daemon._folder / NAME).read_bytes() == key
    assert told(daemon, CERTIFICATE) == ["made", "made"]


@pytest.mark.rule("SEC-4", "SX-15")
@by_itself
async def test_what_was_changed_is_there_after_a_restart(daemon: Daemon) -> None:
    store = store_of(daemon)
    first, second, mine = certificate(), certificate(), certificate("billing")
    changes = []
    store.credentials.watch(lambda: changes.append(store.credentials.version))
    await store.add_principal(
        Kind.PEER, "west", (TRANSPORT, first), actor="alice", addresses=("TCP://west:4022",)
    )
    await store.install("peer:west", TRANSPORT, second, actor="alice")
    await store.bind_instance("peer:west", InstanceId(b"w" * 16), actor="")
    await store.add_principal(Kind.CLIENT, "billing", (TRANSPORT, mine), actor="bob")
    await store.remove_certificate(first.id, actor="alice")
    assert len(changes) == 5
    before = everything(store.credentials)
    await daemon.restart()
    after = store_of(daemon).credentials
    assert everything(after) == before
    peer = after.owner(second.encoded, TRANSPORT, daemon.clock.utc())
    assert peer.name == "peer:west"
    assert after.server_of("TCP://west:4022") is peer
    assert after.bound_to(InstanceId(b"w" * 16)) is peer
    with pytest.raises(ObjectNotFound):
        after.owner(first.encoded, TRANSPORT, daemon.clock.utc())
    await store_of(daemon).remove_principal("peer:west", actor="alice")
    await daemon.restart()
    assert [one.name for one in store_of(daemon).credentials.principals.values()] == [
        "client:billing"
    ]
    assert second.id not in store_of(daemon).credentials.certificates
    assert (await actions(daemon))[2:] == [
        ("principal_added", "alice", "peer:west"),
        ("certificate_installed", "alice", "peer:west"),
        ("principal_altered", "", "peer:west"),
        ("principal_added", "bob", "client:billing"),
        ("certificate_removed", "alice", "peer:west"),
        ("principal_revoked", "alice", "peer:west"),
    ]
    assert [one for one in told(daemon, ADMINISTRATION) if one != "alter_endpoint"] == [
        "add_principal",
        "install_certificate",
        "alter_principal",
        "add_principal",
        "remove_certificate",
        "revoke_principal",
    ]


@pytest.mark.rule("SEC-4", "SEC-55")
@by_itself
async def test_nothing_belongs_to_two(daemon: Daemon) -> None:
    store, theirs = store_of(daemon), certificate()
    mine = store.credentials.own(TRANSPORT, daemon.clock.utc())
    assert mine is not None
    instance = InstanceId(b"w" * 16)
    await store.add_principal(
        Kind.PEER,
        "west",
        (TRANSPORT, theirs),
        actor="a",
        addresses=("TCP://west:1",),
        instance_id=instance,
    )
    before = everything(store.credentials)
    attempts: list[tuple[str, dict[str, Any]]] = [
        ("west", {}),
        ("east", {"certificate": theirs}),
        ("east", {"certificate": mine.certificate}),
        ("east", {"addresses": ("TCP://west:1",)}),
        ("east", {"instance_id": instance}),
    ]
    for name, said in attempts:
        one = said.pop("certificate", None) or certificate()
        with pytest.raises(InUse):
            await store.add_principal(Kind.PEER, name, (TRANSPORT, one), actor="a", **said)
    with pytest.raises(InvalidArgument):
        await store.add_principal(Kind.PEER, "we st", actor="a")
    with pytest.raises(InUse):
        await store.bind_instance("peer:west", InstanceId(b"x" * 16), actor="a")
    with pytest.raises(InUse):
        await store.remove_certificate(mine.certificate.id, actor="a")
    assert everything(store.credentials) == before
    await daemon.restart()
    assert everything(store_of(daemon).credentials) == before


@pytest.mark.rule("SEC-9")
@by_itself
async def test_a_new_own_certificate_is_used_from_the_switch_on(daemon: Daemon) -> None:
    store, now = store_of(daemon), daemon.clock.utc()
    old = store.credentials.own(TRANSPORT, now)
    assert old is not None
    new = await store.make_own(TRANSPORT, actor="alice", is_active=False)
    assert store.credentials.own(TRANSPORT, now) == old
    await store.switch_own(TRANSPORT, actor="alice")
    await daemon.restart()
    store = store_of(daemon)
    used = store.credentials.own(TRANSPORT, now)
    assert used is not None
    assert used.certificate == new.certificate
    await store.remove_certificate(old.certificate.id, actor="alice")
    assert [one.certificate for one in store.credentials.own_all(TRANSPORT)] == [new.certificate]


@pytest.mark.rule("SEC-5", "SEC-38", "SX-6")
@pytest.mark.parametrize("how", ["gone", "another", "damaged"])
def test_a_lost_master_key_is_not_remade(tmp_path: Path, how: str) -> None:
    async def program(daemon: Daemon) -> None:
        mine = store_of(daemon).credentials.own(TRANSPORT, daemon.clock.utc())
        assert mine is not None
        await daemon.stop()
        path = daemon._folder / NAME
        kept = path.read_bytes()
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(kept[:-3] + b"00\n" if how == "another" else kept[:-3])
        left = path.read_bytes() if path.exists() else None
        await daemon.start()
        store = store_of(daemon)
        assert store.master_key is None
        for attempt in (store.key, lambda: store.private_key(mine)):
            with pytest.raises(NoMasterKey, match=r"master\.key") as found:
                attempt()
            assert found.value.ssb_code == 28055
        with pytest.raises(NoMasterKey):
            await store.make_own(TRANSPORT, actor="", is_active=True)
        assert told(daemon, CERTIFICATE)[2:] == ["no_master_key"]
        async with await daemon.session() as session:  # local work goes on
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"1", "Ask")
        assert (path.read_bytes() if path.exists() else None) == left
        await daemon.stop()
        path.write_bytes(kept)
        path.chmod(0o600)
        await daemon.start()
        assert store_of(daemon).private_key(mine)

    play(program, tmp_path / "daemon")


@pytest.mark.rule("SX-15")
@by_itself
async def test_what_an_administrator_did_is_recorded_before_it_is_answered(
    daemon: Daemon,
) -> None:
    async with await daemon.session() as session:
        await session.admin.disable("main")
        with pytest.raises(ObjectNotFound):
            await session.admin.enable("nowhere")
        await session.admin.enable("main")
        (last, before) = await session.view("audit", limit=2)
    assert (last["action"], last["subject"], before["action"]) == ("enable", "main", "disable")
    assert str(last["actor"]).startswith("client ")


@pytest.mark.rule("SX-15")
@by_itself
async def test_repeats_from_outside_are_counted(daemon: Daemon) -> None:
    trail = daemon.instance.parts.audit
    for _at in range(50):
        trail.record(
            Action.LOGIN, actor="192.0.2.1", subject="endpoint", outcome=Outcome.REFUSED, why="x"
        )
    await daemon.pass_time(61)
    trail.record(Action.LOGIN, actor="192.0.2.1", subject="endpoint", outcome=Outcome.REFUSED)
    trail.record(Action.ACCESS, actor="client:b", subject="queue", outcome=Outcome.REFUSED)
    await daemon.restart()
    found = await daemon.instance.brokers["msdb"].store.audit.page(before=2**62, limit=3)
    assert [(one.action, one.detail) for one in found] == [
        (Action.ACCESS, {}),
        (Action.LOGIN, {"repeated": 49}),
        (Action.LOGIN, {"why": "x"}),
    ]


@pytest.mark.rule("SX-15")
@by_itself
async def test_repeats_of_what_whoever_controls_a_broker_can_do_are_counted(daemon: Daemon) -> None:
    trail = daemon.instance.parts.audit
    for _at in range(50):
        trail.record(Action.CLEAN_UP, actor="client:b", subject="main")
    await daemon.restart()
    found = await daemon.instance.brokers["msdb"].store.audit.page(before=2**62, limit=9)
    assert [one.action for one in found if one.actor == "client:b"] == [Action.CLEAN_UP]


@pytest.mark.rule("SX-15", "MAN-24")
@by_itself
async def test_entries_that_others_can_cause_never_displace_others(daemon: Daemon) -> None:
    often = (
        Action.LOGIN,
        Action.BODY_SHOWN,
        Action.QUEUE_SWITCHED,
        Action.CERTIFICATES_RECEIVED,
        Action.PURGE_QUEUE,
    )

    def append(connection: Connection) -> None:
        with transaction(connection):
            for action in often:
                entries = [entry(action, number) for number in range(audit.MOST + 7)]
                audit.append(connection, entries)

    await store_of(daemon).add_principal(Kind.CLIENT, "first", actor="alice")
    msdb = daemon.instance.brokers["msdb"].store
    await msdb.run(append)
    found = await msdb.audit.page(before=2**62, limit=6 * audit.MOST)
    assert len(found) == len(often) * audit.MOST + 3
    assert found[-1].action is Action.CERTIFICATE_MADE
    assert found[-3].action is Action.PRINCIPAL_ADDED
    assert found[-4].subject == "7"
