"""Retention as declared: the option, its limits, and what is wrong with them."""

from typing import Any

import pytest

from brokerd.errors import ObjectsRefused
from brokerd.model import RetentionLimit, RetentionPolicy
from brokerd.objects.declarations import parse
from brokerd.objects.declared import diff


def declared(**queue: Any) -> Any:
    return parse({"queue": [{"name": "desk", **queue}, {"name": "old"}]})


@pytest.mark.rule("OBJ-39", "PBT-24")
def test_retention_and_its_limits_are_read() -> None:
    assert declared().queues["desk"].retention is False
    limit = {"max_rows": 10, "max_bytes": 100, "policy": "archive", "archive": "old"}
    queue = declared(retention="on", retention_limit=limit).queues["desk"]
    assert queue.retention is True
    assert queue.retention_limit == RetentionLimit(10, 100, RetentionPolicy.ARCHIVE, "old")
    assert (
        declared(retention_limit={"max_rows": 1}).queues["desk"].retention_limit.policy == "error"
    )


@pytest.mark.rule("PBT-24")
@pytest.mark.parametrize(
    "limit",
    [
        7,
        {},
        {"max_rows": -1},
        {"max_rows": True},
        {"max_rows": 1, "rows": 2},
        {"max_rows": 1, "policy": "forget"},
        {"max_rows": 1, "policy": "archive"},
        {"max_rows": 1, "archive": "old"},
        {"max_rows": 1, "policy": "archive", "archive": "desk"},
        {"max_rows": 1, "policy": "archive", "archive": "none"},
    ],
)
def test_limits_that_are_wrong_are_refused(limit: object) -> None:
    with pytest.raises(ObjectsRefused) as caught:
        declared(retention="on", retention_limit=limit)
    assert "retention_limit" in str(caught.value)


def test_a_change_is_told() -> None:
    changed = declared(retention="on", retention_limit={"max_rows": 5, "policy": "drop_oldest"})
    (change,) = diff(declared(), changed)
    assert change.sentence == (
        "queue desk: retention changes from off to on, 5 messages a conversation, then drop_oldest"
    )
