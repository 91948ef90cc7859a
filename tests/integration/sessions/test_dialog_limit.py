"""The open dialogs that one user, or one peer, may have begun (REL-45)."""

from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.config.settings import Clients, Transport
from brokerd.errors import QuotaExceeded
from tests.integration.one_daemon import ADDRESS, Daemon, play, rows
from tests.integration.peers import Net, Peer, peers
from tests.integration.shorthand import fails, take, talk, undone

USERS = {"alice": 7001, "bob": 7002}
"""Users without a name on this machine."""


def limited(most: int) -> dict[str, Any]:
    return {"clients": Clients(listen=ADDRESS, trust_network=True, max_dialogs_per_user=most)}


@pytest.mark.rule("REL-45")
def test_a_user_begins_as_many_dialogs_as_it_may_and_another_after_one_has_ended(
    tmp_path: Path,
) -> None:
    async def program(daemon: Daemon) -> None:
        daemon.network.users = USERS
        await daemon.restart(**limited(3))
        alice, bob = await daemon.session(node="alice"), await daemon.session(node="bob")
        async with alice as session, bob as other:
            handles = [await talk(session, b"x") for _ in range(3)]
            error = await fails(QuotaExceeded, session.begin_dialog("urn:desk", "urn:shop", "talk"))
            assert "'7001' has 3 open dialogs in broker 'main'" in error.message
            assert "clients.max_dialogs_per_user" in error.hint
            assert error.retryable
            await talk(other, b"x")  # it has a limit of its own
            await ended(session, handles[0])
            await daemon.pass_time(6)
            await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await daemon.pass_time(6)
            await fails(QuotaExceeded, session.begin_dialog("urn:desk", "urn:shop", "talk"))
            status: Any = await session.status()
            (line,) = status["dialog_limits"]
            assert "user 7001" in line
            assert "3 dialogs" in line

    play(program, tmp_path)


@pytest.mark.rule("REL-45", "REL-36")
def test_a_restart_knows_how_many_there_are(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        daemon.network.users = USERS
        await daemon.restart(**limited(2))
        async with await daemon.session(node="alice") as session:
            handles = [await talk(session, b"x") for _ in range(2)]
            await daemon.pass_time(6)
        assert await rows(daemon, "dialog_owners") == 2
        await daemon.restart(declare=False, **limited(2))
        async with await daemon.session(node="alice") as session:
            await fails(QuotaExceeded, session.begin_dialog("urn:desk", "urn:shop", "talk"))
            for handle in handles:
                await ended(session, handle)
            await daemon.pass_time(6)
            assert await rows(daemon, "dialog_owners") == 0
            await session.begin_dialog("urn:desk", "urn:shop", "talk")

    play(program, tmp_path)


@pytest.mark.rule("REL-45")
def test_dialogs_that_were_rolled_back_do_not_count_for_long(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        daemon.network.users = USERS
        await daemon.restart(**limited(2))
        async with await daemon.session(node="alice") as session:
            for _ in range(3):
                async with undone(session) as tx:
                    await tx.begin_dialog("urn:desk", "urn:shop", "talk")
                    assert await tx.receive("spare") == []  # the daemon has both
                await daemon.pass_time(6)
            await talk(session, b"x")

    play(program, tmp_path)


@pytest.mark.rule("REL-45", "NBT-4")
@peers("west", "east", transport=Transport(allow_plaintext=True, max_dialogs_per_peer=2))
async def test_a_peer_begins_as_many_dialogs_as_it_may(net: Net, west: Peer, east: Peer) -> None:
    first = await west.talk("urn:east", b"1")
    await net.wait(1)
    await west.talk("urn:east", b"2")
    await net.wait(1)
    third = await west.talk("urn:east", b"3")
    await net.wait(10)
    assert await east.bodies() == [b"1", b"2"]
    assert await west.key(third) == "peer_dialog_limit"
    await west.session.send(first, b"4", "Ask")  # the dialogs that it has go on
    await net.wait(1)
    got = await east.session.receive("box", autocommit=True)
    assert [one.body for one in got] == [b"4"]
    await west.session.end(first)
    await east.session.end(got[0].handle)
    await net.wait(200)
    assert b"3" in await east.bodies()


async def ended(session: Session, handle: bytes) -> None:
    """End a dialog at both sides."""
    await session.end(handle)
    while messages := await take(session, "shop"):
        for message in messages:
            if message.is_end:
                await session.end(message.handle)
