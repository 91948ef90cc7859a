"""Headers between instances: fragments, forwarding, sealing, and what a peer may not send."""

import msgspec
import pytest
from msgspec.structs import replace

from brokerd.client.messages import Message
from brokerd.client.outcomes import Park
from brokerd.protocol.frames import HEADERS, Fragment
from brokerd.protocol.headers import join
from tests.integration.delivery.secured import sealed, secure
from tests.integration.delivery.tap import Tap
from tests.integration.fastpath.arrivals import arriving
from tests.integration.one_daemon import Daemon
from tests.integration.peers import Net, Peer, peers
from tests.integration.scenarios import alone, given
from tests.integration.three_instances import Through, through

GIVEN: dict[str, str | bytes] = {"traceparent": "00-0af7-b7ad-01", "raw": b"\0\xff"}
LARGE = b"0123456789abcdef" * 655_360
"""A body of 10 MiB."""


@pytest.mark.rule("DLP-59", "SND-28", "REL-12")
@peers("west", "east")
async def test_they_arrive_and_cost_nothing_where_there_are_none(
    net: Net, west: Peer, east: Peer
) -> None:
    tap = Tap(east)
    handle = await west.talk("urn:east", b"none")
    await west.session.send(handle, b"some", "Ask", headers=GIVEN)
    await west.session.send(handle, LARGE, "Ask", headers=GIVEN)
    await west.session.send(handle, b"none", "Ask")
    await net.wait(60)
    found = await east.messages()
    assert [(one.body, one.headers) for one in found] == [
        (b"none", {}),
        (b"some", GIVEN),
        (LARGE, GIVEN),
        (b"none", {}),
    ]
    flags = {item.sequence: item.flags for item in tap.of(Fragment)}
    assert flags == {0: 0, 1: HEADERS, 2: HEADERS, 3: 0}
    bodies = {item.sequence: item.body for item in tap.of(Fragment) if item.fragments == 1}
    assert bodies == {0: b"none", 1: bytes(join(GIVEN, b"some")), 3: b"none"}


@pytest.mark.rule("DLP-61", "SEC-35", "SND-28")
@peers("west", "east")
async def test_a_secured_dialog_seals_them(net: Net, west: Peer, east: Peer) -> None:
    await secure(west, east)
    tap = Tap(east)
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk", encryption=True)
    await west.session.send(handle, b"question", "Ask", headers={"secret": "value"})
    await west.session.send(handle, b"x" * 200_000, "Ask", headers={"secret": "value"})
    await net.wait(5)
    found = await east.messages()
    assert [(one.body, one.headers) for one in found] == [
        (b"question", {"secret": "value"}),
        (b"x" * 200_000, {"secret": "value"}),
    ]
    assert not [one for one in sealed(tap.items) if b"secret" in one.body or b"value" in one.body]
    await west.session.send(handle, b"again", "Ask", headers={"secret": "value"})
    tap.loses = lambda _item: True
    await net.wait(1)
    changed = [replace(one, flags=0) for one in sealed(tap.items) if one.sequence == 2]
    tap.loses = lambda _item: False
    assert changed, "it was on its way"
    tap._take(changed, None)
    await net.wait(60)
    (last,) = await east.messages()
    assert (last.body, last.headers) == (b"again", {"secret": "value"}), "the flag is sealed"


@pytest.mark.rule("DLP-61", "FWD-4", "SND-28")
@through()
async def test_a_forwarder_passes_them_on(rig: Through) -> None:
    handle = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(handle, b"1", headers=GIVEN)
    await rig.east.session.send(handle, b"x" * 300_000, headers=GIVEN)
    found: list[Message] = []
    while len(found) < 2:
        found += await rig.west.session.receive("west_q", wait=300, autocommit=True)
    assert [(one.body, one.headers) for one in found] == [
        (b"1", GIVEN),
        (b"x" * 300_000, GIVEN),
    ]


def _packed(value: object) -> bytes:
    block = msgspec.msgpack.encode(value)
    return len(block).to_bytes(2, "big") + block


BAD = [
    b"",
    b"\0",
    b"\xff\xff short",
    b"\0\0body",
    _packed({"a": 1}) + b"body",
    _packed(["a"]),
    _packed({str(number): "" for number in range(65)}),
    _packed({"a": "x" * 9000}),
]


@pytest.mark.rule("DLP-60", "BI-11", "DLG-43")
@given(alone)
async def test_a_bad_block_of_a_peer_fails_its_dialog_alone(daemon: Daemon) -> None:
    """As the first message, later, in fragments, and on both paths: never on a queue."""
    dispatcher = daemon.instance.parts.dispatcher
    dialog = 0
    for bad in BAD:
        for first in (0, 1, 2):
            dialog += 1
            for sequence in range(first):
                dispatcher.arrived([arriving(daemon, dialog, sequence)])
            parts = [bad[:1], bad[1:]] if len(bad) > 1 else [bad]
            for pieces in ([bad], parts) if first else ([bad],):
                count = len(pieces)
                items = [
                    arriving(
                        daemon,
                        dialog,
                        first,
                        flags=HEADERS,
                        fragment=at,
                        fragments=count,
                        body=piece,
                    )
                    for at, piece in enumerate(pieces)
                ]
                dispatcher.arrived(items)
                await daemon.pass_time(0.1)
                dialog += 1
                for sequence in range(first):
                    dispatcher.arrived([arriving(daemon, dialog, sequence)])
    good = arriving(daemon, 200, 0, flags=HEADERS, body=bytes(join(GIVEN, b"good")))
    dispatcher.arrived([good])
    await daemon.pass_time(1)
    session = await daemon.session()
    async with session.transaction() as tx:
        found = []
        while batch := await tx.receive("shop"):
            found += batch
    await session.close()
    plain = [one for one in found if not one.is_error]
    assert [one.headers for one in plain if one.body == b"good"] == [GIVEN]
    assert not [one for one in plain if one.headers and one.body != b"good"]
    assert [one for one in found if one.is_error], "an open dialog hears of it"
    assert all((one.body or b"").count(b"/") or one.body == b"good" for one in plain)


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.rule("MON-68", "MON-10")
@given(alone)
async def test_the_lines_about_a_message_lead_to_its_trace(daemon: Daemon) -> None:
    dispatcher = daemon.instance.parts.dispatcher
    for number, trace in enumerate((TRACE, "a\nb", "x" * 2000)):
        headers = {"traceparent": trace, "other": "secret"}
        body = bytes(join(headers, b"wrong way"))
        refused = arriving(daemon, number, 0, flags=HEADERS, message_type="Answer", body=body)
        dispatcher.arrived([refused])
        good = arriving(daemon, 100 + number, 0, flags=HEADERS, body=bytes(join(headers, b"x")))
        dispatcher.arrived([good])
    await daemon.pass_time(1)
    async with await daemon.session() as session:
        for _ in range(3):
            async with session.transaction() as tx:
                await tx.receive("shop")
                tx.rollback(Park("by hand"))
            await session.status()
    lines = [fields for _, fields in daemon.log.lines if "traceparent" in fields]
    assert [(one["subclass"], one["traceparent"]) for one in lines] == [
        ("sequenced", TRACE),
        ("parked", TRACE),
    ]
    assert "secret" not in repr(daemon.log.lines)


@pytest.mark.rule("DLP-60", "DLG-T10")
@given(alone)
async def test_a_side_that_has_ended_discards_a_message_of_which_it_keeps_no_part(
    daemon: Daemon,
) -> None:
    """It has deleted the first fragment at its end, so the block cannot be checked any more."""
    dispatcher = daemon.instance.parts.dispatcher
    content = bytes(join(GIVEN, b"body"))
    dispatcher.arrived([arriving(daemon, 1, 0)])
    pieces = {"flags": HEADERS, "fragments": 2}
    dispatcher.arrived([arriving(daemon, 1, 1, fragment=0, body=content[:20], **pieces)])
    await daemon.pass_time(1)
    session = await daemon.session()
    async with session.transaction() as tx:
        (first,) = await tx.receive("shop")
        await tx.end(first.handle)
    dispatcher.arrived([arriving(daemon, 1, 1, fragment=1, body=content[20:], **pieces)])
    await daemon.pass_time(1)
    (endpoint,) = await session.view("conversation_endpoints")
    await session.close()
    assert endpoint["state"] == "DO"
    assert "broker.message_undeliverable" not in [event for event, _ in daemon.log.lines]
