"""Boxcars have room for every fragment, however large it or its header is (TRN-32, TRN-33)."""

import pytest

from brokerd.config.settings import Dialog, Transport
from tests.integration.delivery.tap import Tap
from tests.integration.peers import Net, Peer, peers


@pytest.mark.rule("TRN-32")
@peers("west", "east", dialog=Dialog(fragment_size=128 * 1024))
async def test_a_fragment_as_large_as_a_boxcar_leaves_alone(
    net: Net, west: Peer, east: Peer
) -> None:
    tap = Tap(east)
    body = b"x" * (256 * 1024)
    await west.talk("urn:east", body, b"small")
    await net.wait(5)
    assert await east.bodies() == [body, b"small"]
    assert tap.boxcars[:3] == [1, 1, 1]


@pytest.mark.rule("TRN-32", "TRN-33")
@peers("west", "east", transport=Transport(max_frame=128 * 1024, allow_plaintext=True))
async def test_a_boxcar_of_items_with_long_names_is_no_larger_than_a_frame(
    net: Net, west: Peer, east: Peer
) -> None:
    long = "\u20ac" * 128  # 384 bytes
    for one in (west, east):
        await one.apply(
            message_type=[{"name": long}],
            contract=[{"name": long, "types": {long: "any"}}],
            queue=[{"name": "box"}],
            service=[{"name": f"urn:{one.one.name}", "queue": "box", "contracts": [long]}],
        )
    tap = Tap(east)
    handle = await west.session.begin_dialog("urn:west", "urn:east", long)
    async with west.session.transaction() as tx:
        for _ in range(250):
            await tx.send(handle, b"x", long)
    await net.wait(5)
    # A frame that is too large would end the connection, and be sent again on the next one.
    assert len(await east.bodies()) == 250
    assert max(tap.boxcars) < 250
