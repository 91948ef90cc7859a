"""`brokerd ping`: out as a first message, back as its reply, told whatever happens (NBT-7)."""

import asyncio
from unittest.mock import Mock, patch

import msgspec
import pytest

from brokerd.client.admin_answers import PingAnswer
from brokerd.config.settings import Dispatcher
from brokerd.errors import InvalidArgument, ObjectNotFound
from brokerd.protocol.trace import Leg, Trace
from tests.integration.peers import Net, Peer, peers, route
from tests.integration.shorthand import fails
from tests.integration.three_instances import ADDRESS, Through, through

Walk = list[tuple[str, str, str, str]]


def _silent(name: str) -> Dispatcher:
    return Dispatcher(notices=name != "east")


def walk(found: PingAnswer) -> Walk:
    """Leg, instance, outcome and where of each step."""
    return [(one.leg, one.instance, one.outcome, one.where) for one in found.steps]


@pytest.mark.rule("NBT-7", "CLP-131")
@through()
async def test_each_hop_of_both_ways_says_where_it_sends(rig: Through) -> None:
    found = await rig.east.session.admin.ping("west")
    assert found.is_complete
    assert (found.service, found.from_service) == ("west", "east")
    middle = ADDRESS.lower()
    assert walk(found) == [
        ("out", "east", "remote", middle),
        ("out", "middle", "remote", "tcp://west:4022"),
        ("out", "west", "local", "main"),
        ("back", "west", "remote", middle),
        ("back", "middle", "remote", "tcp://east:4022"),
        ("back", "east", "local", "main"),
    ]
    assert [one.route for one in found.steps[:2]] == ["to_west", "to_west"]
    assert {one.step for one in found.steps} <= {"1", "2", "3", "5", ""}
    assert [one.broker for one in found.steps] == ["main", "", "", "main", "", ""]
    assert await rig.west.session.view("conversation_endpoints") == []
    assert rig.west.instance.parts.dispatcher.received == 0


@pytest.mark.rule("NBT-7")
@through()
async def test_what_a_forwarder_cannot_do_is_told(rig: Through) -> None:
    await rig.middle.session.admin.alter_endpoint(forwarding=False)
    found = await rig.east.session.admin.ping("west")
    assert not found.is_complete
    last = found.steps[-1]
    assert (last.leg, last.instance, last.outcome) == ("out", "middle", "dropped")
    assert last.reason == "forwarding_disabled"


@pytest.mark.rule("NBT-7")
@through()
async def test_a_way_that_is_missing_only_back_is_told_all_the_same(rig: Through) -> None:
    await rig.middle.session.drop("instance_route", "to_east")
    found = await rig.east.session.admin.ping("west")
    assert not found.is_complete
    assert walk(found)[3:] == [
        ("back", "west", "remote", ADDRESS.lower()),
        ("back", "middle", "dropped", ""),
    ]
    assert found.steps[-1].reason == "broker_not_here"
    await rig.west.session.drop("route", "to_east")
    found = await rig.east.session.admin.ping("west")
    assert (found.steps[-1].leg, found.steps[-1].instance) == ("back", "west")
    assert found.steps[-1].outcome == "delayed"


@pytest.mark.rule("NBT-7")
@through()
async def test_who_cannot_be_reached_is_told_with_the_reason(rig: Through) -> None:
    rig.west.crash()
    found = await rig.east.session.admin.ping("west", wait=60)
    last = found.steps[-1]
    assert (last.instance, last.where) == ("middle", "tcp://west:4022")
    assert last.reason in ("connect_failed", "connection_lost", "dns_failed")
    rig.middle.crash()
    await rig.pass_time(1)
    found = await rig.east.session.admin.ping("west", wait=60)
    assert [one.instance for one in found.steps] == ["east"]
    assert found.steps[-1].reason


@pytest.mark.rule("NBT-7", "CLP-131")
@peers("west", "east")
async def test_what_stays_in_the_instance_or_has_no_route(net: Net, west: Peer, east: Peer) -> None:
    found = await west.session.admin.ping("urn:west")
    assert walk(found) == [("out", "west", "local", "main"), ("back", "west", "local", "main")]
    assert found.is_complete
    found = await west.session.admin.ping("urn:nobody")
    assert found.steps[-1].reason in ("no_route", "local_service_missing")
    await west.apply(route=[route("east", "urn:gone", "gone")])
    found = await west.session.admin.ping("urn:gone")
    assert (found.steps[-1].instance, found.steps[-1].reason) == ("east", "local_service_missing")
    await fails(ObjectNotFound, west.session.admin.ping("urn:east", from_service="urn:none"))
    for name in ("urn:west", "west"):
        await west.session.drop("service", name)
    await fails(InvalidArgument, west.session.admin.ping("urn:east"))


@pytest.mark.rule("NBT-7", "NBT-4")
@peers("west", "east", dispatcher=_silent)
async def test_an_instance_that_keeps_silent_is_what_was_heard_of_last(
    net: Net, west: Peer, east: Peer
) -> None:
    found = await west.session.admin.ping("urn:east", wait=3)
    assert not found.is_complete
    assert walk(found) == [("out", "west", "remote", "tcp://east:4022")]
    assert found.seconds == pytest.approx(3, abs=0.1)


@pytest.mark.rule("NBT-7")
@peers("west", "east")
async def test_a_flood_of_questions_is_answered_in_part(net: Net, west: Peer, east: Peer) -> None:
    await west.session.admin.ping("urn:east")
    asking = [west.session.admin.ping("urn:east", wait=2) for _ in range(80)]
    answers = await asyncio.gather(*asking)
    assert 20 <= sum(one.is_complete for one in answers) <= 50
    question = Trace(b"n" * 16, Leg.TOLD_OUT, "urn:x", b"", "urn:y", b"", 0)
    west.instance.parts.pinging.process(
        east.instance.parts.instance_id, question
    )  # nobody has asked
    west.instance.parts.pinging.process(
        east.instance.parts.instance_id, msgspec.structs.replace(question, leg=Leg.BACK)
    )


@pytest.mark.rule("NBT-7", "FWD-6")
@through()
async def test_routes_that_lead_in_a_circle_end_it(rig: Through) -> None:
    await rig.west.session.admin.alter_endpoint(forwarding=True)
    middle, west = ADDRESS, ADDRESS.replace("middle", "west")
    for one, kind, address in (
        (rig.east, "route", middle),
        (rig.middle, "instance_route", west),
        (rig.west, "instance_route", middle),
    ):
        circle = {"name": "circle", "service": "urn:circle", "address": address}
        await one.session.apply({"broker": {"name": "main"}, kind: [circle]}, ensure=True)
    pinging = rig.middle.instance.parts.pinging
    with patch.object(pinging, "process", Mock(wraps=pinging.process)) as taken:
        found = await rig.east.session.admin.ping("urn:circle")
        assert found.steps[-1].reason == "hops_exhausted"
        assert len(found.steps) == 12
        await rig.pass_time(5)
    assert taken.call_count <= 12
