"""Requests for routes: how many there are at a time, and which come next (BCN-8, BCN-9)."""

import json
from xml.etree import ElementTree

import pytest

from brokerd.dynamic_routing.requests import UNUSED, Form, Key, Requests, body_of, failed_body_of
from brokerd.ids import BrokerId
from brokerd.routing.reasons import Reason


def key(name: str) -> Key:
    return Key("main", name, None)


@pytest.mark.rule("BCN-8")
def test_no_more_than_so_many_are_open_and_the_others_come_in_their_turn() -> None:
    requests = Requests(most_open=2)
    assert [requests.missing(key(name), 0.0) for name in "abcda"] == [True, True] + [False] * 3
    assert [requests.waits_for_others(key(name)) for name in "abcd"] == [False, False, True, True]
    assert requests.next() == []
    assert requests.due(1.0) == []

    requests.ended(key("a"), failed=False)
    assert requests.next() == [key("c")]
    assert requests.next() == []
    requests.ended(key("b"), failed=True)
    requests.ended(key("c"), failed=True)
    requests.missing(key("b"), 2.0)
    assert requests.next() == [key("d")]  # before those that are asked for again
    assert requests.due(3.0) == [key("b")]
    assert not requests.waits_for_others(key("d"))


def test_a_name_too_many_is_not_remembered_and_says_that_it_waits() -> None:
    requests = Requests(most_known=1)
    assert requests.missing(key("a"), 0.0)
    assert not requests.missing(key("b"), 0.0)
    assert len(requests) == 1
    assert requests.waits_for_others(key("b"))
    assert requests.reason(key("b")) is Reason.BCN_PENDING

    requests.ended(key("a"), failed=False)
    requests.due(UNUSED)
    assert requests.missing(key("b"), UNUSED)


@pytest.mark.rule("BCN-15", "BCN-5")
@pytest.mark.parametrize("broker_id", [None, BrokerId(bytes(range(16)))])
def test_a_body_has_the_same_fields_in_both_forms(broker_id: BrokerId | None) -> None:
    missing = {"service_name": "<far>"}
    if broker_id is not None:
        missing["broker_instance"] = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    failed = missing | {"route_name": "r&d", "address": "tcp://far:1"}
    bodies = {
        "MissingRoute": [body_of(Key("main", "<far>", broker_id), form) for form in Form],
        "FailedRoute": [
            failed_body_of("<far>", broker_id, "r&d", "tcp://far:1", form) for form in Form
        ],
    }
    for (tag, (xml, as_json)), fields in zip(bodies.items(), (missing, failed), strict=True):
        tree = ElementTree.fromstring(xml)
        assert tree.tag == tag
        assert {one.tag: one.text for one in tree} == {k.upper(): v for k, v in fields.items()}
        assert json.loads(as_json) == fields


@pytest.mark.rule("BCN-8")
def test_each_broker_and_each_far_broker_has_a_request_of_its_own() -> None:
    requests = Requests(most_open=9)
    keys = [
        Key("main", "s", None),
        Key("east", "s", None),
        Key("main", "s", BrokerId(b"f" * 16)),
        Key("main", "t", None),
    ]
    assert [requests.missing(one, 0.0) for one in keys] == [True] * 4
    assert [requests.missing(one, 0.0) for one in keys] == [False] * 4
