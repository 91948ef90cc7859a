"""Users who may do some things and not others: a real broker, and clients of several users."""

import asyncio
import os
import pwd
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.client.session import Session
from brokerd.clock import SystemClock
from brokerd.config.settings import Clients
from brokerd.errors import AccessDenied, ConversationNotFound, GroupNotFound
from brokerd.ids import show
from brokerd.process.exit_statuses import exit_status
from brokerd.protocol import client_frames as frames
from brokerd.security.certificates import make_certificate
from brokerd.security.grants import Grants, Rights, parse_grant
from brokerd.sessions.permissions import CLIENT_FRAMES, Sender
from brokerd.sessions.principals import Principals
from brokerd.telemetry.audit import Action, Outcome
from brokerd.telemetry.status import InstanceStatus, concerns
from tests.integration.one_daemon import ADDRESS, Daemon, closing, play
from tests.integration.sessions.raw_client import ME, ask, frame, stranger
from tests.integration.shorthand import answered, bodies, fails, group_of, take, talk, undone

ANN, EVE = 4_000_000_001, 4_000_000_002
"""Users whom this machine does not know by name."""
GRANTS = (
    f"receive on main/desk to {ANN}",
    f"send on urn:shop to {ANN}",
    f"control on other to {ANN}",
    f"execute on other to {ANN}",
    "send on urn:spare to public",
)


@pytest.mark.rule("CLP-130")
def test_a_grant_to_nobody_is_told(tmp_path: Path) -> None:
    grants = (
        *("control on * to rooot", f"send on * to {ANN}", "send on a to public"),
        "send on a to peer:west",
    )

    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(
            declare=False, clients=Clients(listen=ADDRESS, trust_network=True, grants=grants)
        )
        told = [one for _, one in daemon.log.lines if one.get("subclass") == "unknown_user"]
        problems = [
            "there is no user 'rooot' on this machine; did you mean \"root\"?",
            "no certificate of peer:west is installed here",
        ]
        assert [one["problem"] for one in told] == problems
        daemon.network.users = {"owner": os.geteuid()}
        async with await daemon.session(node="owner") as session:
            status = msgspec.convert(await session.status(), InstanceStatus, strict=False)
        assert concerns(status) == [f"grants: {problem}" for problem in problems]
        (public,) = status.open_to_public
        assert (public.permission, public.securable, public.origin) == ("send", "a", "settings")

    play(program, tmp_path)


@pytest.mark.rule("SX-21")
def test_what_is_open_to_other_machines_is_logged_at_each_start(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        for grants, risk in (((), "do everything"), (GRANTS, "clients.grants gives to public")):
            await daemon.stop()
            daemon.log.lines.clear()
            await daemon.start(clients=Clients(listen=ADDRESS, trust_network=True, grants=grants))
            told = [one for _, one in daemon.log.lines if one.get("subclass") == "open_to_network"]
            assert [one["listener"] for one in told] == ["clients"]
            assert told[0]["address"] == ADDRESS
            assert risk in str(told[0]["risk"])
            daemon.network.users = {"owner": os.geteuid()}
            async with await daemon.session(node="owner") as session:
                status = msgspec.convert(await session.status(), InstanceStatus, strict=False)
            (door,) = status.open_listeners
            assert (door.who, door.address) == ("clients", ADDRESS)

    play(program, tmp_path)


def played(scenario: Any, folder: Path) -> None:
    """Play with grants; `scenario(daemon, ann, eve, owner)`."""

    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(
            declare=False, clients=Clients(listen=ADDRESS, trust_network=True, grants=GRANTS)
        )
        daemon.network.users = {"ann": ANN, "eve": EVE, "owner": os.geteuid()}
        ann = await daemon.session(node="ann")
        eve = await daemon.session(node="eve")
        owner = await daemon.session(node="owner")
        async with closing(ann), closing(eve), closing(owner):
            await scenario(daemon, ann, eve, owner)

    play(program, folder)


@pytest.mark.rule("RCV-26", "ERR-8494", "CLP-130")
def test_who_has_no_receive_permission_receives_nothing(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        _, yours = await answered(owner)
        await owner.send(yours, b"an answer", "Answer")
        await talk(owner, b"1", b"2")
        for asked in (eve.receive("shop", autocommit=True), ann.receive("shop", autocommit=True)):
            error = await fails(AccessDenied, asked)
            assert "receive permission on queue 'shop' of 'main'" in error.message
            assert (error.ssb_code, error.retryable, exit_status(error)) == (8494, False, 77)
        async with undone(eve) as tx:
            await fails(AccessDenied, tx.get_group("shop"))
        await fails(AccessDenied, eve.browse_page("shop"))
        assert b"an answer" in bodies(await take(ann, "desk"))
        assert (await ann.browse_page("desk")).messages == []
        assert bodies(await take(owner, "shop")) == [b"1", b"2"]

    played(scenario, tmp_path)


@pytest.mark.rule("SEC-82", "CLP-130")
def test_a_declaration_by_which_nothing_changes_needs_no_control(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        here = {"queue": [{"name": "desk"}], "service": [{"name": "urn:desk", "queue": "desk"}]}
        before = daemon.broker.store.catalog
        for one in (ann, eve):
            assert await one.apply(here, ensure=True) == []
            error = await fails(AccessDenied, one.apply(here))  # others would be dropped
            assert "apply needs control permission on broker 'main'" in error.message
        more = here | {"message_type": [{"name": "Fresh"}]}
        error = await fails(AccessDenied, ann.apply(more, ensure=True))
        assert "message type Fresh" in error.hint
        elsewhere = {"broker": {"name": "other"}, **here}
        error = await fails(AccessDenied, eve.apply(elsewhere, ensure=True))
        assert "control permission" in error.message
        routes = here | {"instance_route": []}
        error = await fails(AccessDenied, eve.apply(routes, ensure=True))
        assert "control" in error.message
        shown, _ = make_certificate("west", now=SystemClock().utc())
        await owner.admin.install_principal("peer:west", certificates=[shown.pem.encode()])
        told = set()
        for principal in ("peer:west", "peer:north"):
            probe = {"name": "probe", "service": "urn:x", "principal": principal}
            declared = {"remote_service_binding": [probe]}
            error = await fails(AccessDenied, eve.apply(declared, ensure=True))
            told.add((error.message, error.hint))
        assert len(told) == 1, "a principal that exists is as one that does not"
        assert daemon.broker.store.catalog == before

    played(scenario, tmp_path)


@pytest.mark.rule("SND-25", "ERR-8494", "CLP-130")
def test_who_begins_a_dialog_may_receive_the_answers_and_send_to_the_service(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        handle = await talk(ann, b"from ann")
        await ann.send(handle, b"again", "Ask")
        assert bodies(await take(owner, "shop")) == [b"from ann", b"again"]
        error = await fails(AccessDenied, eve.begin_dialog("urn:desk", "urn:spare", "talk"))
        assert "'urn:desk'" in error.message
        assert "queue 'desk' of 'main'" in error.message
        error = await fails(AccessDenied, ann.begin_dialog("urn:desk", "urn:mill", "talk"))
        assert "no send permission on service 'urn:mill'" in error.message
        await ann.begin_dialog("urn:desk", "urn:spare", "talk")  # public may
        await fails(AccessDenied, ann.post_one("urn:desk", "urn:shop", b"x", error_queue="shop"))

    played(scenario, tmp_path)


@pytest.mark.rule("SND-25", "BI-R2", "CLP-130")
def test_a_dialog_of_somebody_else_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        mine, yours = await answered(owner)
        told = await fails(ConversationNotFound, eve.send(mine, b"forged", "Ask"))
        unknown = await fails(ConversationNotFound, eve.send(b"x" * 16, b"forged", "Ask"))
        assert told.code == unknown.code
        await fails(ConversationNotFound, ann.send(yours, b"forged", "Answer"))
        await fails(ConversationNotFound, eve.end(mine))
        await fails(ConversationNotFound, eve.transmission_status(mine))
        group = group_of(daemon, mine)
        async with undone(eve) as tx:
            await fails(GroupNotFound, tx.state(group, take_lock=True))
        await ann.send(mine, b"the queue is hers too", "Ask")
        assert bodies(await take(owner, "shop"))[-1] == b"the queue is hers too"

    played(scenario, tmp_path)


NAMING: dict[str, Callable[[Session, bytes, bytes, bytes], Awaitable[object]]] = {
    "send": lambda ann, theirs, _group, _own: ann.send(theirs, b"x", "Answer"),
    "send on two": lambda ann, theirs, _group, own: ann.send([own, theirs], b"x", "Ask"),
    "end": lambda ann, theirs, _group, _own: ann.end(theirs),
    "end two": lambda ann, theirs, _group, own: ann.end([own, theirs]),
    "set_timer": lambda ann, theirs, _group, _own: ann.set_timer(theirs, 5),
    "move from": lambda ann, theirs, _group, own: ann.move(theirs, own),
    "move to": lambda ann, _theirs, group, own: ann.move(own, group),
    "resend from": lambda ann, theirs, _group, own: ann.resend_pending(theirs, own),
    "resend to": lambda ann, theirs, _group, own: ann.resend_pending(own, theirs),
    "related": lambda ann, theirs, _group, _own: ann.begin_dialog(
        "urn:desk", "urn:shop", "talk", related_conversation=theirs
    ),
    "receive": lambda ann, theirs, _group, _own: ann.receive(
        "desk", conversation=theirs, autocommit=True
    ),
    "receive of group": lambda ann, _theirs, group, _own: ann.receive(
        "desk", group=group, autocommit=True
    ),
    "group": lambda ann, _theirs, group, _own: ann.group(group).__aenter__(),
    "set_state": lambda ann, _theirs, group, _own: set_state(ann, group),
    "status": lambda ann, theirs, _group, _own: ann.transmission_status(theirs),
}


async def set_state(session: Session, group: bytes) -> None:
    async with session.transaction() as tx:
        await tx.set_state(group, b"forged")


@pytest.mark.rule("BI-R2", "CLP-130")
@pytest.mark.parametrize("verb", NAMING)
def test_no_verb_tells_a_dialog_of_somebody_else_from_none(tmp_path: Path, verb: str) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        _, theirs = await answered(owner)
        own = await talk(ann)
        group = group_of(daemon, theirs)
        told = []
        for handle, named in ((theirs, group), (b"?" * 16, b"?" * 16)):
            with pytest.raises((ConversationNotFound, GroupNotFound)) as caught:
                await NAMING[verb](ann, handle, named, own)
            text = caught.value.message
            for one in (handle, named):
                text = text.replace(show(one), "it")
            told.append((type(caught.value), text, caught.value.ssb_code))
        assert told[0] == told[1]
        async with owner.transaction() as tx:
            assert await tx.state(group, take_lock=True) is None

    played(scenario, tmp_path)


@pytest.mark.rule("DLG-23", "CLP-102", "CLP-130")
def test_who_has_no_control_administers_nothing(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        handle = await talk(ann, b"1")
        error = await fails(AccessDenied, ann.admin.clean_up(handle, "it hangs"))
        assert "clean_up needs control permission on broker 'main'" in error.message
        await fails(AccessDenied, ann.create("queue", "mine"))
        await fails(AccessDenied, ann.view("conversation_endpoints"))
        await fails(AccessDenied, ann.admin.forget_broker("main"))
        await eve.status()
        await owner.admin.clean_up(handle, "it hangs")

    played(scenario, tmp_path)


COMMAND = {"command": ["/bin/true"], "run_as": "root"}


@pytest.mark.rule("SX-23", "SX-3", "CLP-130", "OBJ-60")
def test_only_control_sets_what_the_daemon_runs(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        await owner.create("queue", "run", activation=COMMAND | {"max_readers": 0})
        before = await owner.objects()
        tried = (
            ann.create("queue", "mine", activation=COMMAND),
            ann.create("queue", "mine", activation={"handler": "os:abort"}),
            ann.alter("queue", "shop", activation=COMMAND),
            ann.alter("queue", "run", activation={"command": ["/bin/false"]}),
            ann.alter("queue", "run", activation={"run_as": "OWNER"}),
            ann.alter("queue", "run", activation={"max_readers": 9}),
            ann.alter("queue", "run", activation={"status": "off"}),
            ann.alter("service", "urn:shop", queue="run"),
            ann.create("service", "urn:mine", queue="run", contracts=["talk"]),
            ann.create("event_notification", "wake", queue="shop", events=["QUEUE_ACTIVATION"]),
            ann.apply({"queue": [{"name": "mine", "activation": COMMAND}]}),
            ann.apply({"queue": [{"name": "mine", "activation": COMMAND}]}, dry_run=True),
            ann.apply({"queue": [{"name": "mine", "activation": COMMAND}]}, ensure=True),
            ann.drop("queue", "run"),
            ann.admin.drain_queue("run"),
        )
        for asked in tried:
            error = await fails(AccessDenied, asked)
            assert "control permission on broker 'main'" in error.message
        assert await owner.objects() == before

    played(scenario, tmp_path)


@pytest.mark.rule("SX-23", "SX-3", "CLP-130")
def test_control_of_one_broker_is_not_control_of_another(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        await owner.apply({"broker": {"name": "other"}})
        before = await owner.objects()
        queue = [{"name": "mine", "activation": COMMAND}]
        async with (
            await daemon.session(node="ann", broker="other") as mine,
            await daemon.session(node="ann", broker="msdb") as msdb,
        ):
            tried = {
                "main": (
                    mine.apply({"broker": {"name": "main"}, "queue": queue}),
                    mine.apply({"broker": [{"name": "other"}, {"name": "main", "queue": queue}]}),
                    msdb.apply({"queue": queue}),
                    mine.admin.disable("main"),
                    mine.admin.new_broker("main"),
                    mine.admin.backup(tmp_path / "backups" / "main.db", broker="main"),
                    mine.admin.drain_queue("shop", broker="main"),
                ),
                "another": (mine.apply({"broker": {"name": "another"}}),),
                "msdb": (
                    mine.apply({"instance_route": []}),
                    mine.create("instance_route", "r", service="s", address="LOCAL"),
                    mine.drop("instance_route", "AutoCreatedLocal"),
                    mine.admin.retry_destination(),
                    msdb.create("queue", "mine", activation=COMMAND),
                ),
            }
            for broker, requests in tried.items():
                for asked in requests:
                    error = await fails(AccessDenied, asked)
                    assert f"control permission on broker {broker!r}" in error.message
            assert await owner.objects() == before
            assert daemon.broker.enabled
            assert daemon.instance.brokers.keys() == {"main", "other", "msdb"}
            await mine.create("queue", "mine", activation=COMMAND | {"max_readers": 0})

    played(scenario, tmp_path)


FRAMES = {
    frames.REQUEST: ask(1, None, "status"),
    frames.PART_UP: frame([frames.PART_UP, b"x"]),
    frames.CANCEL: frames.encode_cancel(1),
    frames.PING: frames.encode_ping(1),
}


@pytest.mark.rule("SX-2", "SX-3", "CLP-10")
@pytest.mark.parametrize("kind", [*CLIENT_FRAMES, max(CLIENT_FRAMES) + 1])
def test_before_the_login_only_the_login_is_read(tmp_path: Path, kind: int) -> None:
    async def program(daemon: Daemon) -> None:
        raw = await stranger(daemon)
        if CLIENT_FRAMES.get(kind) is Sender.ANYBODY:
            raw.write(frames.encode_hello(ME, "main", {"pid": 1}))
            assert await raw.answers() == ["welcome"]
            return
        raw.write(FRAMES.get(kind) or frame([kind, 1]))
        assert await raw.answers() == [("goodbye", frames.VIOLATION)]
        assert raw.is_gone()

    play(program, tmp_path)


@pytest.mark.rule("SX-15")
def test_what_a_client_is_denied_is_audited_with_its_user(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        for _ in range(3):
            await fails(AccessDenied, eve.receive("shop", autocommit=True))
        await fails(AccessDenied, ann.begin_dialog("urn:desk", "urn:mill", "talk"))
        async with await daemon.session(node="far") as far:
            await fails(AccessDenied, far.admin.disable("main"))
        found = await daemon.instance.brokers["msdb"].store.audit.page(before=2**62, limit=9)
        refused = [one for one in reversed(found) if one.action is Action.ACCESS]
        assert [(one.actor, one.subject) for one in refused] == [
            (str(EVE), "main"),
            (str(ANN), "main"),
            ("public", "main"),
        ]
        assert {one.outcome for one in refused} == {Outcome.REFUSED}
        assert "receive permission on queue 'shop'" in str(refused[0].detail["why"])
        assert str(refused[1].detail["client"]).endswith(f", {ANN})")

    played(scenario, tmp_path)


@pytest.mark.rule("CLP-130")
def test_somebody_whom_nobody_knows_has_what_public_has(tmp_path: Path) -> None:
    """So it is over TCP, where no kernel says who is at the other end."""

    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        far = await daemon.session(node="far")
        async with closing(far):
            await far.status()
            await far.objects()
            await fails(AccessDenied, far.receive("desk", autocommit=True))
            await fails(AccessDenied, far.begin_dialog("urn:desk", "urn:spare", "talk"))
            await fails(AccessDenied, far.view("queues"))
            await fails(AccessDenied, far.admin.disable("main"))

    played(scenario, tmp_path)


@pytest.mark.rule("CLP-1", "CLP-130")
def test_without_grants_everybody_may_do_everything(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        daemon.network.users = {"eve": EVE}
        eve = await daemon.session(node="eve")
        async with closing(eve):
            await eve.create("queue", "mine")
            await talk(eve, b"1")
            assert bodies(await take(eve, "shop")) == [b"1"]

    play(program, tmp_path)


def rights_at(principals: Principals, transport: asyncio.BaseTransport) -> Rights | None:
    return principals.rights(principals.names(transport))


@pytest.mark.rule("CLP-130", "SEC-4")
def test_over_tcp_the_owner_of_the_certificate_is_known_and_nobody_else() -> None:
    grants = Grants(map(parse_grant, ("send on a to client:till", "send on b to public")))
    principals = Principals(grants)
    till = rights_at(principals, asyncio.BaseTransport({"principal": "client:till"}))
    assert till == Rights(send=("a", "b"))
    assert rights_at(principals, asyncio.BaseTransport()) == Rights(send=("b",))


@pytest.mark.rule("CLP-130")
def test_a_user_is_a_name_or_a_number_and_root_and_the_daemons_own_may_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: EVE)
    masters = {0, EVE}
    user = next(one for one in pwd.getpwall() if one.pw_uid not in masters)
    for to in (user.pw_name, str(user.pw_uid)):
        principals = Principals(Grants([parse_grant(f"receive on main/desk to {to}")]))
        rights = {
            uid: rights_at(principals, asyncio.BaseTransport({"peer_uid": uid}))
            for uid in (*masters, user.pw_uid, ANN)
        }
        assert [rights[uid] for uid in masters] == [None] * len(masters)
        theirs, others = rights[user.pw_uid], rights[ANN]
        assert theirs is not None
        assert theirs.may_receive("main", "desk")
        assert others is not None
        assert not others.may_receive("main", "desk")


@pytest.mark.rule("CLP-130")
async def test_the_kernel_says_who_is_at_the_other_end() -> None:
    grants = Grants([parse_grant("receive on main/desk to public")])
    principals, strange = Principals(grants), Principals(grants)
    strange._masters = (-1,)
    one, other = socket.socketpair(socket.AF_UNIX)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(asyncio.Protocol, sock=one)
    try:
        assert rights_at(principals, transport) is None  # the daemon's own user
        rights = rights_at(strange, transport)
        assert rights is not None
        assert rights.may_receive("main", "desk")
        assert not rights.may_receive("main", "shop")
    finally:
        transport.close()
        other.close()
