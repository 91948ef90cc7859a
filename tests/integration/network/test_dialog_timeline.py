"""Both sides of a dialog, of which the far one is asked over the network."""

import msgspec
import pytest

from brokerd.admin.timeline import join
from brokerd.client.timelines import DialogSides
from brokerd.config.settings import Dispatcher
from brokerd.errors import ConversationNotFound
from brokerd.protocol.inquiry import Inquiry, SideReport
from brokerd.protocol.trace import Leg, Trace
from tests.integration.peers import Net, Peer, peers, route
from tests.integration.shorthand import fails


def flows(found: DialogSides) -> list[tuple[int | None, ...]]:
    return [
        (one.sent, one.acknowledged, one.arrived, one.received)
        for one in join(found.near, found.far, found.seconds).flows
    ]


@pytest.mark.rule("MON-52", "MON-55")
@peers("east", "west")
async def test_either_side_reports_both(net: Net, east: Peer, west: Peer) -> None:
    handle = await east.talk("urn:west", b"one", b"two", b"three")
    await net.wait(2)
    (first,) = await west.session.receive("box", 1, autocommit=True)
    await west.session.send(first.handle, b"reply", "Answer")
    await net.wait(2)
    found = await east.session.admin.timeline(handle)
    assert found.far is not None
    assert (found.near.instance, found.far.instance) == ("east", "west")
    assert (found.near.is_initiator, found.far.is_initiator) == (True, False)
    assert flows(found) == [(3, 3, 3, 1), (1, 1, 1, 0)]
    assert [step.instance for step in found.steps] == ["east", "west", "west", "east"]
    assert [one.sequence for one in found.far.queued] == [1, 2]
    back = await west.session.admin.timeline(first.handle)
    assert back.far is not None
    assert flows(back) == flows(found)
    assert back.conversation_id == found.conversation_id
    assert [step.instance for step in back.steps] == ["west", "east", "east", "west"]


@pytest.mark.rule("MON-55")
@peers("east", "middle", "west", routes=False)
async def test_the_question_passes_a_forwarder(
    net: Net, east: Peer, middle: Peer, west: Peer
) -> None:
    await middle.session.admin.alter_endpoint(forwarding=True)
    await east.apply(route=[route("middle", service="urn:west")])
    await west.apply(route=[route("middle", service="urn:east")])
    await middle.session.apply(
        {"broker": {"name": "main"}, "instance_route": [route("east"), route("west")]}, ensure=True
    )
    handle = await east.talk("urn:west", b"one")
    await net.wait(5)
    found = await east.session.admin.timeline(handle)
    assert found.far is not None
    assert found.far.received == 1
    assert [step.instance for step in found.steps] == [
        "east", "middle", "west", "west", "middle", "east",
    ]  # fmt: skip


@pytest.mark.rule("MON-55")
@peers("east")
async def test_without_the_far_side_the_near_one_says_why(net: Net, east: Peer) -> None:
    handle = await east.talk("urn:nowhere", b"one")
    await net.wait(2)
    found = await east.session.admin.timeline(handle, wait=0.5)
    assert found.far is None
    assert found.near.pending == 1
    assert [one.sequence for one in found.near.waiting] == [0]
    assert found.near.status_key
    assert found.steps[-1].reason
    await fails(ConversationNotFound, east.session.admin.timeline(b"?" * 16))


@pytest.mark.rule("MON-55")
@peers("east", "west")
async def test_a_dialog_that_never_arrived_is_not_known_there(
    net: Net, east: Peer, west: Peer
) -> None:
    handle = await east.talk("urn:west", b"one")
    await net.wait(2)
    live = east.live(handle)
    unknown = msgspec.structs.replace(live.endpoint, conversation_id=bytes(16))
    asked = await east.instance.parts.pinging.inquire(east.broker, unknown, wait=3.0)
    assert asked.report is not None
    assert not asked.report.is_known
    assert asked.report.state == ""
    assert asked.report.instance == west.one.name


@pytest.mark.rule("MON-55")
@peers("east", "west")
async def test_who_is_no_side_of_a_dialog_learns_nothing(net: Net, east: Peer, west: Peer) -> None:
    handle = await east.talk("urn:west", b"one")
    await net.wait(2)
    assert await asked_by(net, east, west, handle, "") == [True]
    for wrong in ("service", "from_service", "from_broker", "side"):
        assert await asked_by(net, east, west, handle, wrong) == [False], wrong


async def asked_by(net: Net, east: Peer, west: Peer, handle: bytes, wrong: str) -> list[bool]:
    """Ask one instance for a dialog as another one would, but for what is wrong."""
    endpoint = east.live(handle).endpoint
    about_initiator = wrong == "side"
    trace = Trace(
        b"n" * 16,
        Leg.OUT,
        "urn:east" if wrong == "service" else "urn:west",
        b"",
        "urn:other" if wrong == "from_service" else "urn:east",
        b"b" * 16 if wrong == "from_broker" else east.broker.broker_id,
        5,
        (),
        Inquiry(endpoint.conversation_id, about_initiator),
    )
    reports: list[SideReport] = []
    west.instance.parts.pinging.reporter(west.broker, trace, reports.append)
    await net.wait(1)
    return [one.is_known for one in reports]


@pytest.mark.rule("MON-55")
@peers("east", "west", dispatcher=Dispatcher(notices=False))
async def test_an_instance_without_notices_answers_nothing(
    net: Net, east: Peer, west: Peer
) -> None:
    handle = await east.talk("urn:west", b"one")
    await net.wait(2)
    found = await east.session.admin.timeline(handle, wait=2.0)
    assert found.far is None
    assert found.steps[-1].outcome == "remote"
