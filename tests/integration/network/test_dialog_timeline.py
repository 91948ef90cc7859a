"""Both sides of a dialog, of which the far one is asked over the network."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from brokerd.admin.timeline import join
from brokerd.client.timelines import DialogSides
from brokerd.config.settings import Dispatcher
from brokerd.delivery.peers.ping import MOST_IN_A_SECOND
from brokerd.errors import ConversationNotFound, StoreFault
from brokerd.ids import InstanceId
from brokerd.protocol.inquiry import Inquiry, SideReport
from brokerd.protocol.trace import Leg, Trace
from tests.integration.peers import Net, Peer, peers, route
from tests.integration.shorthand import fails

Process = Callable[[InstanceId, Trace], None]


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


@pytest.mark.rule("NBT-7", "MON-55")
@peers("east", "west")
async def test_a_report_that_comes_too_late_ends(net: Net, east: Peer, west: Peer) -> None:
    """Neither side of a dialog waits for it any more, whichever asked."""
    handle = await east.talk("urn:west", b"one")
    await net.wait(2)
    (first,) = await west.session.receive("box", 1, autocommit=True)
    for asking, named in ((east, handle), (west, first.handle)):
        with watched(east, west) as taken:
            await late(asking, named)
            await net.wait(30)
            # the question, its answer, and at most one report on each of the two legs
            assert 2 <= len(taken) <= 4, [one.leg for one in taken]


@pytest.mark.rule("NBT-7")
@peers("east", "west")
async def test_a_report_that_is_passed_on_loses_hops(net: Net, east: Peer, west: Peer) -> None:
    pinging, neighbour = east.instance.parts.pinging, west.instance.parts.instance_id
    await east.session.admin.ping("urn:west")
    lost = Trace(b"n" * 16, Leg.OUT, "urn:none", b"", "urn:none", b"", 5)
    pinging.process(neighbour, lost)
    pinging.process(neighbour, msgspec.structs.replace(lost, leg=Leg.BACK))
    await net.wait(1)
    for left in (7, 0):
        with watched(west) as taken:
            pinging.process(neighbour, msgspec.structs.replace(lost, leg=Leg.TOLD_BACK, hops=left))
            await net.wait(1)
        assert [one.hops for one in taken] == ([6] if left else [])
    with watched(west) as taken:
        for _ in range(MOST_IN_A_SECOND + 10):
            pinging.process(neighbour, msgspec.structs.replace(lost, leg=Leg.TOLD_BACK, hops=7))
        await net.wait(1)
    assert len(taken) == MOST_IN_A_SECOND


async def late(asking: Peer, handle: bytes) -> None:
    """Ask the other side of a dialog, and wait for no report."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asking.instance.parts.pinging.inquire(
                asking.broker, asking.live(handle).endpoint, wait=60
            )


@contextmanager
def watched(*those: Peer) -> Iterator[list[Trace]]:
    """Collect the TRACEs that reach instances."""
    taken: list[Trace] = []
    with ExitStack() as stack:
        for one in those:
            pinging = one.instance.parts.pinging
            process = pinging.process

            def keep(neighbour: InstanceId, trace: Trace, process: Process = process) -> None:
                taken.append(trace)
                process(neighbour, trace)

            stack.enter_context(patch.object(pinging, "process", keep))
        yield taken


@pytest.mark.rule("MON-55")
@peers("east", "west")
async def test_an_answer_that_cannot_go_its_way_is_not_given_to_who_asks(
    net: Net, east: Peer, west: Peer
) -> None:
    """A peer that names a broker which this side has no way to learns no more than that."""
    await east.talk("urn:west")
    handle = await east.talk("urn:west", b"one")
    await net.wait(2)
    endpoint = east.live(handle).endpoint
    await east.session.drop("route", "way_to_west")
    question = Trace(
        b"n" * 16,
        Leg.BACK,
        "urn:west",
        endpoint.far_broker or b"",
        "urn:east",
        east.broker.broker_id,
        5,
        (),
        Inquiry(endpoint.conversation_id, True),
    )
    with watched(west) as taken:
        east.instance.parts.pinging.process(west.instance.parts.instance_id, question)
        await net.wait(10)
    (told,) = taken
    assert told.leg is Leg.TOLD_BACK
    assert [one.leg for one in told.steps] == ["back", "out"]
    assert told.inquiry is not None
    assert told.inquiry.report is None


@pytest.mark.rule("MON-55")
@peers("east", "west")
async def test_a_report_over_the_network_has_no_addresses(net: Net, east: Peer, west: Peer) -> None:
    handle = await east.talk("urn:west", b"one")
    await net.wait(2)
    (first,) = await west.session.receive("box", 1, autocommit=True)
    await west.session.send(first.handle, b"reply", "Answer")
    await net.wait(2)
    found = await west.session.admin.timeline(first.handle)
    assert found.near.destination == "tcp://east:4022"
    asked = await east.session.admin.timeline(handle)
    assert asked.far is not None
    assert asked.far.destination == ""


@pytest.mark.rule("MON-55")
@pytest.mark.parametrize("fault", [StoreFault("the store is closed"), ZeroDivisionError()])
def test_a_question_that_cannot_be_answered_does_not_end_the_instance(
    tmp_path: Path, fault: Exception
) -> None:
    @peers("east", "west")
    async def program(net: Net, east: Peer, west: Peer) -> None:
        handle = await east.talk("urn:west", b"one")
        await net.wait(2)
        unknown = msgspec.structs.replace(east.live(handle).endpoint, conversation_id=bytes(16))
        with patch.object(type(west.broker.store.endpoints), "by_conversation", side_effect=fault):
            asked = await east.instance.parts.pinging.inquire(east.broker, unknown, wait=3.0)
        assert not west.instance.failed.done()
        failed = [one["subclass"] for one in west.log.of("broker.daemon")]
        if isinstance(fault, StoreFault):
            assert asked.report is not None
            assert not asked.report.is_known
            assert failed == []
        else:
            assert failed == ["inquiry_failed"]

    program(tmp_path)


@pytest.mark.rule("MON-55")
@peers("east", "west")
async def test_a_broker_that_has_gone_answers_nothing(net: Net, east: Peer, west: Peer) -> None:
    handle = await east.talk("urn:west", b"one")
    await net.wait(2)
    with patch.dict(west.instance.brokers):
        gone = west.instance.brokers["main"]
        del west.instance.brokers["main"]
        trace = Trace(
            b"n" * 16, Leg.OUT, "urn:west", b"", "urn:east", east.broker.broker_id, 5, (),
            Inquiry(east.live(handle).endpoint.conversation_id, False),
        )  # fmt: skip
        reports: list[SideReport] = []
        west.instance.parts.pinging.reporter(gone, trace, reports.append)
        await net.wait(1)
    assert reports == []
    assert not west.instance.failed.done()
