"""Dialogs secured from end to end, between instances (SEC-13 to SEC-40)."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.protocol.frames import Fragment
from tests.integration.delivery.secured import bind, sealed, secure, trust
from tests.integration.delivery.tap import Tap
from tests.integration.peers import Net, Peer, peers


async def converse(net: Net, west: Peer, east: Peer, *, encryption: bool = True) -> bytes:
    """Let both sides send, and both end; return the initiator's handle."""
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk", encryption=encryption)
    await west.session.send(handle, b"question", "Ask")
    await west.session.send(handle, b"x" * 200_000, "Ask")
    await net.wait(2)
    first, second = await east.messages()
    assert (first.body, second.body) == (b"question", b"x" * 200_000)
    await east.session.send(first.handle, b"answer", "Answer")
    await east.session.end(first.handle)
    await net.wait(2)
    assert await west.bodies() == [b"answer", None]
    await west.session.end(handle)
    await net.wait(5)
    return handle


@pytest.mark.rule("SEC-13", "SEC-19", "SEC-26", "SEC-29", "DLP-24")
@pytest.mark.parametrize("anonymous", [False, True])
def test_a_secured_dialog_is_sealed_for_all_its_life(tmp_path: Path, anonymous: bool) -> None:
    @peers("west", "east")
    async def play(net: Net, west: Peer, east: Peer) -> None:
        await secure(west, east, anonymous=anonymous)
        here, there = Tap(west), Tap(east)
        await converse(net, west, east)
        out, back = sealed(there.items), sealed(here.items)
        assert not any(b"question" in one.body or b"answer" in one.body for one in out + back)
        # The header is on the fragments of message 0 of the initiator, and on no other.
        assert all(bool(one.security) == (one.sequence == 0) for one in out)
        assert not any(one.security for one in back)
        assert not west.one.left()
        assert not east.one.left()

    play(tmp_path)


@pytest.mark.rule("SEC-13", "SEC-14", "SEC-16")
@peers("west", "east")
async def test_without_a_binding_a_dialog_leaves_in_clear_only_if_it_may(
    net: Net, west: Peer, east: Peer
) -> None:
    await trust(west, east)
    tap = Tap(east)
    await converse(net, west, east, encryption=False)
    assert all(type(one) is Fragment for one in tap.items if isinstance(one, Fragment))
    await bind(west, "east")
    tap.items.clear()
    await converse(net, west, east, encryption=False)
    assert sealed(tap.items)
