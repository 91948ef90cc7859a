"""Grants made and revoked while a daemon runs, and what open connections may do then."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.messages import FOREVER
from brokerd.client.session import Session
from brokerd.config.settings import Clients
from brokerd.errors import (
    AccessDenied,
    InvalidArgument,
    ObjectNotFound,
    TransactionAborted,
)
from brokerd.security.certificates import make_certificate
from brokerd.security.credentials import Kind, Purpose
from brokerd.sessions.session import REVOKED
from brokerd.telemetry.logs import ADMINISTRATION
from tests.integration.one_daemon import ADDRESS, START, Daemon, closing, play
from tests.integration.shorthand import bodies, fails, receive_all, take, talk, undone

ANN, EVE = 4_000_000_001, 4_000_000_002
"""Users whom this machine does not know by name."""
FIRST = f"receive on main/desk to {ANN}"
SHOP = f"receive on main/shop to {ANN}"
Scenario = Callable[[Daemon, Session, Session, Session], Awaitable[None]]


def played(scenario: Scenario, folder: Path, *grants: str) -> None:
    """Play with these grants in the settings; `scenario(daemon, ann, eve, owner)`."""

    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(
            declare=False, clients=Clients(listen=ADDRESS, trust_network=True, grants=grants)
        )
        daemon.network.users = {"ann": ANN, "eve": EVE, "owner": os.geteuid()}
        ann = await daemon.session(node="ann")
        eve = await daemon.session(node="eve")
        owner = await daemon.session(node="owner")
        async with closing(ann), closing(eve), closing(owner):
            await scenario(daemon, ann, eve, owner)

    play(program, folder)


async def audited(daemon: Daemon) -> list[tuple[str, str, object]]:
    found = await daemon.instance.brokers["msdb"].store.audit.page(before=2**62, limit=100)
    return [
        (one.action.value, one.subject, one.detail["grant"])
        for one in reversed(found)
        if "grant" in one.detail
    ]


@pytest.mark.rule("SX-3", "CLP-130", "CLP-140")
def test_the_first_grant_limits_everybody_who_is_connected(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        handle = await talk(eve, b"before there were grants")
        done = await owner.admin.grant(FIRST)
        assert (done.is_new, done.origin, str(done)) == (True, "online", FIRST)
        await fails(AccessDenied, eve.receive("desk", autocommit=True))
        await fails(AccessDenied, eve.begin_dialog("urn:desk", "urn:shop", "talk"))
        await fails(AccessDenied, eve.admin.clean_up(handle, "it was hers"))
        assert await ann.receive("desk", autocommit=True) == []
        await fails(AccessDenied, ann.begin_dialog("urn:desk", "urn:shop", "talk"))
        await owner.admin.grant(f"send on urn:shop to {ANN}")
        await talk(ann, b"from ann")
        assert await receive_all(owner) == [b"before there were grants", b"from ann"]

    played(scenario, tmp_path)


@pytest.mark.rule("SX-3", "CLP-141")
def test_a_revoked_grant_is_gone_for_open_connections_and_for_what_they_have_begun(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        await talk(owner, b"for ann")
        await owner.admin.grant(SHOP)
        async with undone(eve) as other:
            async with undone(ann) as tx:
                assert len(await tx.receive("shop")) == 1
                await other.receive("spare")  # of somebody who loses nothing
                await owner.admin.revoke(SHOP)
                with pytest.raises(TransactionAborted, match=REVOKED):
                    await tx.receive("shop")
            assert await other.receive("spare") == []
        await fails(AccessDenied, ann.receive("shop", autocommit=True))
        assert bodies(await take(owner, "shop")) == [b"for ann"]

    played(scenario, tmp_path, f"receive on main/spare to {EVE}")


@pytest.mark.rule("SX-3", "CLP-140")
def test_a_grant_counts_in_transactions_that_are_open(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        await talk(owner, b"for ann")
        async with undone(ann) as tx:
            assert await tx.receive("desk") == []
            await owner.admin.grant(SHOP)
            assert bodies(await tx.receive("shop")) == [b"for ann"]

    played(scenario, tmp_path, FIRST)


@pytest.mark.rule("SX-3", "CLP-141")
def test_a_receive_that_waits_ends_when_its_permission_is_revoked(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        await owner.admin.grant(SHOP)
        async with undone(ann) as tx:
            waiting = asyncio.ensure_future(tx.receive("shop", wait=FOREVER))
            while not daemon.instance.parts.sessions.waiting:
                await owner.status()
            await owner.admin.revoke(SHOP)
            with pytest.raises(TransactionAborted, match=REVOKED):
                await waiting
        assert not daemon.instance.parts.sessions.waiting

    played(scenario, tmp_path)


@pytest.mark.rule("CLP-140", "CLP-141", "SX-15", "SEC-50")
def test_grants_outlive_a_restart_and_are_audited(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        await owner.admin.grant(FIRST)
        await owner.admin.grant(f"send on urn:* to {ANN}")
        again = await owner.admin.grant(FIRST)
        assert not again.is_new
        await owner.admin.revoke(f"send on urn:* to {ANN}")
        grants = [("granted", FIRST), ("granted", f"send on urn:* to {ANN}")]
        gone = ("revoked", f"send on urn:* to {ANN}")
        assert await audited(daemon) == [(how, str(ANN), text) for how, text in [*grants, gone]]
        lines = [fields for event, fields in daemon.log.lines if event == ADMINISTRATION]
        assert [(one["before"], one["after"]) for one in lines] == [
            (None, FIRST),
            (None, gone[1]),
            (gone[1], None),
        ]
        assert all(str(one["actor"]).startswith("client ") for one in lines)
        await daemon.restart()
        answer = await owner.admin.who_can()
        assert [str(one) for one in answer.grants] == [FIRST]
        assert answer.grants[0].granted_at is not None
        assert answer.grants[0].granted_by.startswith("client ")
        await fails(AccessDenied, eve.receive("desk", autocommit=True))

    played(scenario, tmp_path)


@pytest.mark.rule("CLP-141", "CLP-130")
def test_the_last_revoke_opens_nothing_now_or_after_a_restart(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        await owner.admin.grant(FIRST)
        done = await owner.admin.revoke(FIRST)
        assert any("only the daemon's own user and root" in one for one in done.notes)
        for _ in range(2):
            for user in (ann, eve):
                await fails(AccessDenied, user.receive("desk", autocommit=True))
            await daemon.restart()
        opened = await owner.admin.grant("control on * to public")
        assert any("public is everybody" in one for one in opened.notes)
        assert await eve.receive("desk", autocommit=True) == []

    played(scenario, tmp_path)


@pytest.mark.rule("CLP-141")
def test_what_the_settings_grant_is_revoked_there(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        error = await fails(InvalidArgument, owner.admin.revoke(FIRST))
        assert "stands in the daemon's settings, at clients.grants" in error.message
        done = await owner.admin.grant(FIRST)
        assert (done.is_new, done.origin) == (False, "settings")
        assert await ann.receive("desk", autocommit=True) == []
        assert [row["origin"] for row in await owner.view("grants")] == ["settings"]
        error = await fails(ObjectNotFound, owner.admin.revoke(f"receive on main/shop to {ANN}"))
        assert "is not granted" in error.message

    played(scenario, tmp_path, FIRST)


async def install(daemon: Daemon, kind: Kind, name: str) -> None:
    certificate = make_certificate(name, now=START)[0]
    store = daemon.instance.parts.credential_store
    await store.add_principal(kind, name, (Purpose.TRANSPORT, certificate), actor="ops")


@pytest.mark.rule("CLP-140", "SEC-4", "SEC-6")
def test_a_peer_or_client_gets_grants_once_it_is_installed_and_loses_them_with_its_name(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        grants = daemon.instance.parts.grants
        grants.authenticates = True  # as an endpoint with certificates is
        await install(daemon, Kind.PEER, "west")
        error = await fails(ObjectNotFound, owner.admin.grant("connect on endpoint to peer:wets"))
        assert 'did you mean "peer:west"?' in error.message
        await owner.admin.grant("connect on endpoint to peer:west")
        await owner.admin.grant("send on urn:shop to peer:west")
        assert grants.may_connect("peer:west")
        await ann.admin.who_can()  # grants to peers limit no client
        await daemon.instance.parts.credential_store.remove_principal("peer:west", actor="ops")
        assert not grants.may_connect("peer:west")
        assert grants.entries == []
        await install(daemon, Kind.PEER, "west")
        await daemon.restart()
        assert daemon.instance.parts.grants.entries == []

    played(scenario, tmp_path)


ASKED: list[tuple[tuple[Any, ...], dict[str, Any], list[str], str]] = [
    (("send", "urn:shop"), {}, ["send on urn:* to public"], "own user and root"),
    (("send", "urn:shp"), {}, ["send on urn:* to public"], 'did you mean "urn:shop"?'),
    (("receive", "main/desk"), {}, [FIRST], "own user and root"),
    (("RECEIVE", "main/dsk"), {}, [], 'did you mean "main/desk"?'),
    (("control", "mein"), {}, [], 'did you mean "main"?'),
    ((), {"principal": str(ANN)}, [FIRST, "send on urn:* to public"], "own user and root"),
    ((), {"principal": "public"}, ["send on urn:* to public"], "own user and root"),
    ((), {"principal": "rooot"}, ["send on urn:* to public"], 'did you mean "root"?'),
    ((), {"principal": "peer:west"}, ["send on urn:* to public"], "no certificate of peer:west"),
    ((), {}, [FIRST, "send on urn:* to public"], "own user and root"),
]


@pytest.mark.rule("CLP-142", "SEC-50")
@pytest.mark.parametrize(("asked", "named", "grants", "note"), ASKED)
def test_who_can_answers_for_objects_and_for_principals(
    tmp_path: Path, asked: tuple[Any, ...], named: dict[str, Any], grants: list[str], note: str
) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        await owner.admin.grant("send on urn:* to public")
        answer = await owner.admin.who_can(*asked, **named)
        assert [str(one) for one in answer.grants] == grants
        assert any(note in one for one in answer.notes), answer.notes
        await fails(AccessDenied, ann.admin.who_can(*asked, **named))
        await fails(AccessDenied, ann.view("grants"))

    played(scenario, tmp_path, FIRST)


@pytest.mark.rule("CLP-140", "CLP-142")
def test_a_grant_or_question_of_another_form_is_refused_with_the_right_one(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Daemon, ann: Session, eve: Session, owner: Session) -> None:
        error = await fails(InvalidArgument, owner.admin.grant("read on main/desk to ann"))
        assert "receive on BROKER/QUEUE" in error.message
        error = await fails(InvalidArgument, owner.admin.who_can("receives", "main/desk"))
        assert 'did you mean "receive"?' in error.message
        error = await fails(InvalidArgument, owner.admin.who_can("receive", "desk"))
        assert "BROKER/QUEUE" in error.message
        done = await owner.admin.grant("execute on main to rooot")
        assert any('did you mean "root"?' in one for one in done.notes)
        assert any("beside control only" in one for one in done.notes)
        done = await owner.admin.grant("receive on main/dsk to root")
        assert done.notes == (
            "there is no queue 'main/dsk' in this instance; did you mean \"main/desk\"?",
        )

    played(scenario, tmp_path)
