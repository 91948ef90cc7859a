"""Dynamic routing: a missing route is asked for, on a dialog with a service that may make one."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.config.settings import DynamicRoutingSettings, RequestFormat
from brokerd.errors import ObjectExists, ReservedMessageType
from brokerd.ids import parse
from brokerd.model import (
    CONFIGURATION_NOTICE,
    CONFIGURATION_SERVICE,
    END_DIALOG,
    FAILED_ROUTE,
    MISSING_BINDING,
    MISSING_ROUTE,
)
from brokerd.security.credentials import Kind
from tests.integration.one_daemon import Daemon, play, rows
from tests.integration.routing.asking import FIFTH, TICK, connected, status, waiting
from tests.integration.scenarios import scenario
from tests.integration.shorthand import bodies, fails, take, talk


async def provide(session: Session) -> None:
    """The dynamic routing service, in the same broker, and the route that makes it asked."""
    await session.create("queue", "routing")
    await session.create(
        "service", CONFIGURATION_SERVICE, queue="routing", contracts=[CONFIGURATION_NOTICE]
    )
    await session.create("route", "bcn", service=CONFIGURATION_SERVICE, address="LOCAL")


async def asked(daemon: Daemon, session: Session) -> list[Message]:
    await daemon.pass_time(0.1)
    return await take(session, "routing")


def named(request: Message) -> tuple[str | None, str | None]:
    tree = ElementTree.fromstring(request.body or b"")
    assert tree.tag == "MissingRoute"
    return tree.findtext("SERVICE_NAME"), tree.findtext("BROKER_INSTANCE")


@pytest.mark.rule(
    "BCN-1", "BCN-3", "BCN-6", "BCN-7", "BCN-8", "BCN-9", "BCN-15", "RTE-11", "NBT-11"
)
@scenario
async def test_a_route_is_asked_for_once_and_used_as_soon_as_it_is_made(
    daemon: Daemon, session: Session
) -> None:
    await provide(session)
    sent = [await waiting(session) for _ in range(3)]
    assert [await status(session, one) for one in sent] == ["bcn_pending"] * 3
    (request,) = await asked(daemon, session)
    assert request.message_type == MISSING_ROUTE
    assert named(request) == ("urn:far", None)

    await session.create("route", "far", service="urn:far", address="TCP://far:1")
    await session.end(request.handle)
    await daemon.pass_time(0.1)
    assert {(await session.transmission_status(one)).destination for one in sent} == {"tcp://far:1"}
    assert await asked(daemon, session) == []
    found = await session.view("conversation_endpoints")
    assert {row["far_service"] for row in found} == {"urn:far"}  # nothing is left of the request


@pytest.mark.rule("BCN-3", "BCN-8")
@scenario
async def test_the_far_broker_is_part_of_what_is_asked_for(
    daemon: Daemon, session: Session
) -> None:
    await provide(session)
    far = parse("01234567-89ab-cdef-0123-456789abcdef")
    await waiting(session)
    await waiting(session, broker_id=far)
    first = await asked(daemon, session)
    second = await asked(daemon, session)
    assert {named(one) for one in first + second} == {
        ("urn:far", None),
        ("urn:far", "01234567-89ab-cdef-0123-456789abcdef"),
    }


@pytest.mark.rule("BCN-2", "RTE-12", "RTE-V10", "NBT-17")
@scenario
async def test_only_a_route_to_the_service_makes_it_asked_and_it_hides_local_services(
    daemon: Daemon, session: Session
) -> None:
    await session.create("queue", "routing")
    await session.create(
        "service", CONFIGURATION_SERVICE, queue="routing", contracts=[CONFIGURATION_NOTICE]
    )
    await waiting(session)
    assert await asked(daemon, session) == []  # the service alone changes nothing
    await session.create("route", "bcn", service=CONFIGURATION_SERVICE, address="LOCAL")
    local = await talk(session, b"1")
    assert await status(session, local) == "bcn_pending"
    assert (await session.admin.explain_route("urn:shop")).reason == "bcn_pending"
    seen = set()
    for _ in range(2):
        (request,) = await asked(daemon, session)
        seen.add(named(request)[0])
        await session.end(request.handle)
    assert seen == {"urn:far", "urn:shop"}
    assert await status(session, local) == "bcn_pending"  # it ended, and there is no route


@pytest.mark.rule("BCN-4", "SEC-15", "DLG-12")
@scenario
async def test_a_missing_binding_is_asked_for_where_a_dialog_has_to_be_encrypted(
    daemon: Daemon, session: Session
) -> None:
    await provide(session)
    await session.create("route", "far", service="urn:far", address="TCP://far:1")
    clear = await waiting(session)
    assert (await session.transmission_status(clear)).destination == "tcp://far:1"
    assert await asked(daemon, session) == []  # nothing forces security on it
    secret = await session.begin_dialog("urn:desk", "urn:far", "talk", encryption=True)
    await session.send(secret, b"1", "Ask")
    (request,) = await asked(daemon, session)
    assert request.message_type == MISSING_BINDING
    assert request.body == (
        b"<MissingRemoteServiceBinding><SERVICE_NAME>urn:far</SERVICE_NAME>"
        b"</MissingRemoteServiceBinding>"
    )
    assert await status(session, secret) == "bcn_pending"
    await daemon.instance.parts.credential_store.add_principal(Kind.PEER, "far", actor="test")
    await session.create(
        "remote_service_binding", "to far", service="urn:far", principal="peer:far"
    )
    await session.end(request.handle)
    await daemon.pass_time(0.1)
    assert await status(session, secret) == "no_certificate"  # bound now, and waits for that
    usages = await session.view("service_contract_message_usages")
    assert {
        "service_contract_id": CONFIGURATION_NOTICE,
        "message_type_id": MISSING_BINDING,
        "is_sent_by_initiator": True,
        "is_sent_by_target": False,
    } in usages


@pytest.mark.rule("NBT-17", "BCN-12")
def test_services_that_are_here_can_be_left_out(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(bcn=DynamicRoutingSettings(exempt_local=True))
        session = await daemon.session()
        await provide(session)
        await talk(session, b"1")
        assert bodies(await take(session, "shop")) == [b"1"]
        far = await waiting(session)
        assert await status(session, far) == "bcn_pending"
        explained = await session.admin.explain_route("urn:shop")
        assert (explained.outcome, explained.steps[2].step) == ("local", "4")
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("BCN-7", "BCN-9", "PER-18")
@scenario
async def test_an_error_shows_and_what_is_still_missing_is_asked_for_again(
    daemon: Daemon, session: Session
) -> None:
    await provide(session)
    far = await waiting(session)
    (request,) = await asked(daemon, session)
    await session.end(request.handle, 1, "nobody knows it")
    await daemon.pass_time(0.1)
    assert await status(session, far) == "bcn_failed"
    await daemon.pass_time(FIFTH + 2 * TICK)
    (again,) = await asked(daemon, session)
    assert named(again) == ("urn:far", None)
    assert await status(session, far) == "bcn_pending"
    lines = [line for line in daemon.log.lines if line[0] == "broker.dynamic_routing"]
    assert [line[1]["subclass"] for line in lines] == ["asked", "failed", "asked"]


@pytest.mark.rule("BCN-10", "NBT-16", "BCN-9")
@scenario
async def test_a_service_that_never_ends_a_request_is_asked_again(
    daemon: Daemon, session: Session
) -> None:
    await provide(session)
    far = await waiting(session)
    began = daemon.clock.monotonic()
    (first,) = await asked(daemon, session)
    while not (found := await asked(daemon, session)):
        await daemon.pass_time(TICK)
        assert daemon.clock.monotonic() < began + 400
    kinds = [one.message_type for one in found]
    assert kinds != [MISSING_ROUTE]  # the first dialog's end, of its lifetime
    while not (found := await asked(daemon, session)):
        await daemon.pass_time(TICK)
    (second,) = found
    assert second.message_type == MISSING_ROUTE
    assert second.conversation_id != first.conversation_id
    assert 300 <= daemon.clock.monotonic() - began <= 300 + FIFTH + 3 * TICK
    await daemon.pass_time(2 * TICK)
    assert await status(session, far) == "bcn_pending"


@pytest.mark.rule("BCN-11", "RTE-65")
@scenario
async def test_when_the_route_expires_the_next_need_makes_a_request(
    daemon: Daemon, session: Session
) -> None:
    await provide(session)
    await waiting(session)
    (request,) = await asked(daemon, session)
    await session.create("route", "far", service="urn:far", address="TCP://far:1", lifetime=60)
    await session.end(request.handle)
    await daemon.pass_time(61)
    late = await waiting(session)
    assert await status(session, late) == "bcn_pending"
    await daemon.pass_time(FIFTH + TICK)
    (again,) = await asked(daemon, session)
    assert named(again) == ("urn:far", None)


@pytest.mark.rule("BCN-14", "BCN-1")
@scenario
async def test_the_service_itself_is_never_asked_for_and_programs_cannot_ask_as_the_broker(
    daemon: Daemon, session: Session
) -> None:
    await session.create("route", "bcn", service=CONFIGURATION_SERVICE, address="LOCAL")
    far = await waiting(session)  # nobody has the service: the request itself waits
    await daemon.pass_time(1)
    assert await status(session, far) == "bcn_pending"
    rows = await session.view("transmission_queue")
    assert {row["to_service_name"] for row in rows} == {"urn:far", CONFIGURATION_SERVICE}
    system = await session.admin.explain_route("urn:brokerd:DynamicRoutingClient")
    assert system.outcome == "local"
    await fails(
        ReservedMessageType,
        session.begin_dialog("urn:desk", CONFIGURATION_SERVICE, CONFIGURATION_NOTICE),
    )


@pytest.mark.rule("BCN-10")
def test_requests_of_the_life_before_are_ended(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await provide(session)
        await waiting(session)
        (first,) = await asked(daemon, session)
        await session.close()
        await daemon.stop()
        await daemon.start(declare=False)
        session = await daemon.session()
        found = await asked(daemon, session)
        found += await asked(daemon, session)
        assert {one.message_type for one in found} == {MISSING_ROUTE, END_DIALOG}
        over = next(one for one in found if one.is_end)
        assert over.conversation_id == first.conversation_id
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("BCN-15")
def test_a_request_may_be_json(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(bcn=DynamicRoutingSettings(format=RequestFormat.JSON))
        session = await daemon.session()
        await provide(session)
        await waiting(session, 'urn:"<far>&')
        (request,) = await asked(daemon, session)
        assert json.loads(request.body or b"") == {"service_name": 'urn:"<far>&'}
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("BCN-15")
@scenario
async def test_names_are_written_so_that_xml_can_be_read(daemon: Daemon, session: Session) -> None:
    await provide(session)
    await waiting(session, 'urn:"<far>&')
    (request,) = await asked(daemon, session)
    assert named(request)[0] == 'urn:"<far>&'


@pytest.mark.rule("BCN-8")
def test_many_names_make_no_storm_and_those_that_wait_say_so(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(bcn=DynamicRoutingSettings(most_open=2))
        session = await daemon.session()
        await provide(session)
        sent = [await waiting(session, f"urn:{number}") for number in range(5)]
        assert [await status(session, one) for one in sent] == ["bcn_pending"] * 5
        late = await session.transmission_status(sent[4])
        assert "waits for its turn" in late.transmission_status
        seen = []
        while found := await asked(daemon, session):
            (request,) = found
            seen.append(named(request)[0])
            rows = await session.view("conversation_endpoints")
            assert sum(row["far_service"] == CONFIGURATION_SERVICE for row in rows) <= 2
            await session.end(request.handle)
        assert seen == [f"urn:{number}" for number in range(5)]  # and no tick has passed
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("BCN-7", "BCN-10")
@scenario
async def test_an_answer_that_is_wrong_late_or_repeated_makes_no_storm_and_loses_nothing(
    daemon: Daemon, session: Session
) -> None:
    await provide(session)
    far = await waiting(session)
    (request,) = await asked(daemon, session)
    await session.create("route", "wrong", service="urn:other", address="TCP://other:1")
    await session.end(request.handle)  # it says that it is done, and is not
    await daemon.pass_time(0.1)
    assert await status(session, far) == "bcn_pending"
    assert await asked(daemon, session) == []  # not before the next pass
    await daemon.pass_time(FIFTH + TICK)
    (again,) = await asked(daemon, session)
    await daemon.pass_time(301)  # the request is over: it counts as failed
    await session.create("route", "far", service="urn:far", address="TCP://far:1")
    assert (await session.transmission_status(far)).destination == "tcp://far:1"
    await session.end(again.handle)
    await fails(ObjectExists, session.create("route", "far", service="urn:far", address="LOCAL"))
    before = len([line for line in daemon.log.lines if line[0] == "broker.dynamic_routing"])
    await daemon.pass_time(10 * FIFTH)
    after = [line for line in daemon.log.lines if line[0] == "broker.dynamic_routing"]
    assert len(after) <= before + 1  # what had been asked meanwhile is ended; nothing new is asked
    assert (await session.transmission_status(far)).pending == 1


async def told(daemon: Daemon, session: Session) -> list[Message]:
    """What the service is told within three failed attempts at one address."""
    for _ in range(60):
        if found := await asked(daemon, session):
            return found
        await daemon.pass_time(TICK)
    return []


@pytest.mark.rule("BCN-5", "BCN-15", "MON-3", "MON-9")
@connected
async def test_the_service_is_told_when_its_route_fails_and_may_mend_it(
    daemon: Daemon, session: Session
) -> None:
    await provide(session)
    far = await waiting(session)
    (request,) = await asked(daemon, session)
    await session.create("route", "far", service="urn:far", address="TCP://far:1")
    await session.end(request.handle)
    began = daemon.clock.monotonic()
    (report,) = await told(daemon, session)
    assert report.message_type == FAILED_ROUTE
    tree = ElementTree.fromstring(report.body or b"")
    assert (tree.tag, {one.tag: one.text for one in tree}) == (
        "FailedRoute",
        {"SERVICE_NAME": "urn:far", "ROUTE_NAME": "far", "ADDRESS": "tcp://far:1"},
    )
    (there,) = await session.view("destinations")
    assert there["consecutive_failures"] == 3
    assert 2 * 60 <= daemon.clock.monotonic() - began <= 2 * 70 + 2 * FIFTH
    dynamic = {row["name"]: row["is_dynamic"] for row in await session.view("routes")}
    assert dynamic == {"AutoCreatedLocal": False, "bcn": False, "far": True}
    await daemon.pass_time(100)
    assert await asked(daemon, session) == []  # it is told once, as long as it has not answered

    await session.alter("route", "far", address="TCP://near:1")
    await session.end(report.handle)
    await daemon.pass_time(1)
    assert (await session.transmission_status(far)).destination == "tcp://near:1"
    found = await session.view("conversation_endpoints")
    assert {row["far_service"] for row in found} == {"urn:far"}
    (row,) = await session.view("broker_statistics")
    assert row["route_requests_by_outcome"] == {"asked": 1, "answered": 1, "route_failed": 1}
    (line,) = [
        fields
        for event, fields in daemon.log.lines
        if event == "broker.dynamic_routing" and fields["subclass"] == "route_failed"
    ]
    assert (line["route"], line["address"], line["failures"]) == ("far", "tcp://far:1", 3)


@pytest.mark.rule("BCN-5")
@connected
async def test_of_a_route_that_nobody_asked_for_nobody_is_told(
    daemon: Daemon, session: Session
) -> None:
    await provide(session)
    await session.create("route", "far", service="urn:far", address="TCP://far:1")
    await waiting(session)
    assert await told(daemon, session) == []
    (there,) = await session.view("destinations")
    assert there["consecutive_failures"] > 3


@pytest.mark.rule("REL-14", "REL-9", "DLG-33", "RTE-12")
@pytest.mark.parametrize("restart", [False, True])
def test_a_dialog_that_is_closed_while_its_way_back_is_asked_for_does_not_begin_again(
    tmp_path: Path, restart: bool
) -> None:
    """The sender hears of no acknowledgement meanwhile, and sends all of it again."""

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await provide(session)
        handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await session.send(handle, b"once", "Ask")
        await session.create("route", "there", service="urn:shop", address="LOCAL")
        await daemon.pass_time(10)
        await session.end(handle)
        await daemon.pass_time(10)
        once, end = await take(session, "shop")
        assert (once.body, end.is_end) == (b"once", True)
        await session.end(end.handle)
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        await daemon.pass_time(60)
        assert await take(session, "shop") == []
        await session.create("route", "back", service="urn:desk", address="LOCAL")
        await daemon.pass_time(60)
        assert await take(session, "shop") == []
        assert not await rows(daemon, "transmission_queue")
        await session.close()

    play(program, tmp_path)
