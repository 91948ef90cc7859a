"""A plan holds all changes for one broker, and what they need."""

import pytest

from brokerd.admin.objects.merge import keep_undeclared
from brokerd.admin.objects.plan import (
    CONTRACT_DROPPED,
    SERVICE_ALTERED,
    SERVICE_DROPPED,
    THE_DAEMON,
    plan,
    plan_new,
    plan_switch,
)
from brokerd.clock import Instant
from brokerd.model import AUTO_CREATED_LOCAL, Queue, QueueStatus
from brokerd.objects.declarations import parse_from
from brokerd.objects.declared import Action, Change, Declared, Kind
from brokerd.storage.rows.references import Use

NOW = Instant(1_000_000)
OBJECTS: dict[str, list[dict[str, object]]] = {
    "message_type": [{"name": "Ask", "validation": "none"}],
    "contract": [{"name": "talk", "types": {"Ask": "any"}}],
    "queue": [{"name": "desk"}, {"name": "hall"}],
    "service": [{"name": "urn:desk", "queue": "desk", "contracts": ["talk"]}],
}


def declared(**changed: object) -> Declared:
    return parse_from("main", {**OBJECTS, **changed})


def service(**changed: object) -> list[dict[str, object]]:
    return [{**OBJECTS["service"][0], **changed}]


def queue_in(change: Change) -> Queue:
    assert isinstance(change.value, Queue)
    return change.value


@pytest.mark.rule("OBJ-37", "OBJ-38")
def test_a_drop_says_which_dialogs_need_the_object() -> None:
    made = plan(declared(service=[], contract=[]), declared(), actor="operator", now=NOW)
    assert [(one.action, one.name) for one in made.changes] == [
        (Action.DROP, "urn:desk"),
        (Action.DROP, "talk"),
    ]
    assert [(one.use, one.code) for one in made.endings] == [
        (Use(service="urn:desk"), SERVICE_DROPPED),
        (Use(contract="talk"), CONTRACT_DROPPED),
    ]
    assert made.unused == (Use(service="urn:desk"), Use(contract="talk"))


@pytest.mark.rule("OBJ-36")
def test_a_service_that_loses_a_contract_ends_its_dialogs_only_when_ordered_to() -> None:
    made = plan(declared(service=service(contracts=[])), declared(), actor="operator", now=NOW)
    assert [(one.code, one.target_of) for one in made.endings] == [(SERVICE_ALTERED, "urn:desk")]
    assert made.unused == ()


@pytest.mark.rule("OBJ-35")
def test_a_service_on_another_queue_is_moved() -> None:
    made = plan(declared(service=service(queue="hall")), declared(), actor="operator", now=NOW)
    assert made.moved == {"urn:desk": "hall"}
    assert plan(declared(), declared(), actor="operator", now=NOW).moved == {}


@pytest.mark.rule("PSN-9")
@pytest.mark.parametrize(("actor", "is_on"), [(THE_DAEMON, False), ("operator", True)])
def test_a_start_of_the_daemon_leaves_a_queue_off_that_is_off_for_poison(
    actor: str, is_on: bool
) -> None:
    have = declared()
    off = plan_switch(
        have, have.queues["desk"], QueueStatus("poison", NOW, "x"), actor="x", now=NOW
    ).changes[0]
    assert off.sentence == "queue desk: status changes to off"
    have.queues["desk"] = queue_in(off)
    made = plan(declared(), have, actor=actor, now=NOW)
    assert made.declared.queues["desk"].is_on is is_on
    assert bool(made.changes) is is_on


@pytest.mark.rule("PBT-1", "PSN-9")
def test_the_plan_says_why_a_queue_is_off() -> None:
    off = [{"name": "desk", "status": "off"}, {"name": "hall"}]
    (change,) = plan(declared(queue=off), declared(), actor="operator", now=NOW).changes
    assert queue_in(change).status == QueueStatus("manual", NOW, "operator")
    have = declared(queue=off)
    have.queues["desk"] = queue_in(change)
    retained = [{**off[0], "retention": "on"}, off[1]]
    (again,) = plan(declared(queue=retained), have, actor="another", now=NOW).changes
    assert queue_in(again).status == queue_in(change).status


@pytest.mark.rule("SDK-4")
def test_a_plan_may_keep_what_the_declaration_does_not_name() -> None:
    wanted = declared(service=[])
    assert plan(wanted, declared(), actor="operator", now=NOW, merge=keep_undeclared).changes == ()


@pytest.mark.rule("RTE-68", "RTE-1")
def test_a_new_broker_is_made_with_its_own_objects_before_the_routes_of_the_instance() -> None:
    far = [{"name": "far", "service": "urn:far", "address": "tcp://far:1"}]
    made = plan_new(
        declared(instance_route=far), instance_routes={}, others=["mian"], actor="x", now=NOW
    )
    assert made.reported[0].kind is Kind.BROKER
    assert "mian" in made.reported[0].sentence
    assert "far" not in [one.name for one in made.own]
    assert AUTO_CREATED_LOCAL.name not in [one.name for one in made.own]
    assert [one.name for one in made.after_creation().reported] == ["far"]
