"""Where something would go, asked of a daemon: by service, by dialog, as an arrival."""

import pytest

from brokerd.client.session import Session
from brokerd.errors import BadRequest, ConversationNotFound, InvalidArgument
from tests.integration.one_daemon import Daemon
from tests.integration.scenarios import scenario
from tests.integration.shorthand import fails, talk


@pytest.mark.rule("CLP-98", "RTE-4", "RTE-25")
@scenario
async def test_the_way_of_a_service_is_explained_and_nobody_loses_a_turn(
    daemon: Daemon, session: Session
) -> None:
    for name in ("a", "b"):
        await session.create("route", name, service="urn:far", address=f"TCP://{name}:1")
    found = [await session.admin.explain_route("urn:far") for _ in range(3)]

    assert found == [found[0]] * 3
    assert (found[0].outcome, found[0].where) == ("remote", f"tcp://{found[0].route}:1")
    assert [(step.step, step.routes) for step in found[0].steps] == [
        ("2", ("a", "b")),
        ("C", ("a", "b")),
    ]
    sent = await session.begin_dialog("urn:desk", "urn:far", "talk")
    await session.send(sent, b"1", "Ask")
    assert (await session.transmission_status(sent)).destination == found[0].where
    assert (await session.admin.explain_route("urn:far")).where != found[0].where


@pytest.mark.rule("CLP-98", "RTE-29")
@scenario
async def test_a_dialog_is_explained_with_the_route_it_keeps(
    daemon: Daemon, session: Session
) -> None:
    for name in ("a", "b"):
        await session.create("route", name, service="urn:far", address=f"TCP://{name}:1")
    sent = await session.begin_dialog("urn:desk", "urn:far", "talk")
    await session.send(sent, b"1", "Ask")
    kept = (await session.transmission_status(sent)).destination
    found = await session.admin.explain_route(handle=sent)

    assert found.where == kept
    assert found.steps[-1].step == "kept"
    here = await session.admin.explain_route(handle=await talk(session, b"1"))
    assert (here.outcome, here.where) == ("local", daemon.broker.name)
    await fails(ConversationNotFound, session.admin.explain_route(handle=b"?" * 16))


@pytest.mark.rule("CLP-98", "RTE-1", "RTE-16")
@scenario
async def test_arrivals_are_explained_by_the_routes_of_the_instance(
    daemon: Daemon, session: Session
) -> None:
    await session.create("route", "a", service="urn:far", address="TCP://a:1")
    found = await session.admin.explain_route("urn:far", arriving=True)
    assert (found.outcome, found.reason) == ("dropped", "local_service_missing")
    assert {step.table for step in found.steps} == {"instance"}
    own = await session.admin.explain_route("urn:nobody")
    assert (own.outcome, own.reason) == ("delayed", "local_service_missing")


@scenario
async def test_a_question_without_a_subject_or_with_two_is_refused(
    daemon: Daemon, session: Session
) -> None:
    admin = session.admin
    await fails(InvalidArgument, admin.explain_route())
    await fails(InvalidArgument, admin.explain_route("urn:far", handle=b"h" * 16))
    await fails(InvalidArgument, admin.explain_route(handle=b"h" * 16, arriving=True))
    await fails(InvalidArgument, admin.explain_route("urn:far", broker_id=b"short"))
    await fails(BadRequest, session._link.ask("explain_route", ("urn:far", {"hops": 256})))


@pytest.mark.rule("NBT-19", "XMT-19")
@scenario
async def test_a_dialog_whose_name_is_nearly_that_of_a_route_says_so(
    daemon: Daemon, session: Session
) -> None:
    await session.create("route", "near", service="svc/a", address="TCP://far:1")
    sent = await session.begin_dialog("urn:desk", "Svc/a", "talk")
    await session.send(sent, b"1", "Ask")
    status = await session.transmission_status(sent)
    assert status.status_key == "local_service_missing"
    assert "'svc/a', which differs by case or blanks only" in status.transmission_status
    found = await session.admin.explain_route("Svc/a")
    said = [(step.step, step.routes) for step in found.steps]
    assert said[-2:] == [("locate", ()), ("near", ("near",))]
