"""A changeset becomes visible in one order: nobody sees a message before what protects it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.broker.publication import Publication
from brokerd.storage.changes import Changes


@pytest.mark.rule("REL-4", "REL-6")
def test_effects_are_published_in_order_and_the_caller_is_notified_last() -> None:
    seen: list[str] = []

    def note(what: str) -> Any:
        return lambda *_given: seen.append(what)

    broker = SimpleNamespace(
        held=SimpleNamespace(damaged=note("parked")),
        timers=SimpleNamespace(published=note("timers")),
        on_lost=note("lost"),
        on_dialog_events=note("events"),
    )
    changes = Changes()
    changes.rarely()
    one = Publication(cast("Any", broker), changes)
    one.done = note("done")
    one.call(note("called"))
    one.report(cast("Any", ["event"]))
    one.report_lost(cast("Any", "lost"))
    one.bodies = cast("Any", SimpleNamespace(publish=note("bodies")))
    one.publish_arrivals = note("arrivals")
    live = SimpleNamespace(gone=False, dropped_before=0)
    row = SimpleNamespace(queuing_order=1, message_id=b"")
    one.arrivals.append(cast("Any", (live, row)))
    one.park_damaged()
    one.outgoing.append(cast("Any", (SimpleNamespace(published=note("outgoing")), None)))
    one.states.append(cast("Any", (SimpleNamespace(keep_state=note("state")), b"")))
    assert seen == []
    one.publish()
    assert seen == [
        *("state", "outgoing", "parked", "arrivals", "bodies", "timers"),
        *("lost", "events", "called", "done"),
    ]


@pytest.mark.rule("REL-6")
@pytest.mark.parametrize("change", [{"gone": True}, {"dropped_before": 2}])
def test_a_damaged_message_that_was_dropped_meanwhile_parks_nothing(change: dict[str, Any]) -> None:
    parked: list[object] = []
    broker = SimpleNamespace(held=SimpleNamespace(damaged=lambda *given: parked.append(given)))
    one = Publication(cast("Any", broker), Changes())
    one.publish_arrivals = lambda _arrivals: None
    live = SimpleNamespace(gone=False, dropped_before=0)
    one.arrivals.append(cast("Any", (live, SimpleNamespace(queuing_order=1, message_id=b""))))
    one.park_damaged()
    for field, value in change.items():
        setattr(live, field, value)
    one.publish()
    assert parked == []
