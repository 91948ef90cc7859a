"""Where a dialog sends, and since when it waits."""

from typing import Any

import pytest

from brokerd.broker.outgoing_route import OutgoingRoute
from brokerd.clock import Instant
from brokerd.routing.classify import Delayed
from brokerd.routing.reasons import Reason

NO_ROUTE = Delayed(Reason.NO_ROUTE, "urn:far")


@pytest.mark.rule("XMT-9", "XMT-18")
def test_a_delay_counts_from_its_first_match() -> None:
    route = OutgoingRoute()
    assert [route.delay(NO_ROUTE, Instant(at)) for at in (5, 6, 7)] == [True, False, False]
    assert (route.matches, route.matched_at) == (3, 7)
    assert route.status_since(Reason.NO_ROUTE) == 5
    assert route.delay(Delayed(Reason.SENDER_DISABLED), Instant(8))
    assert route.status_since(Reason.SENDER_DISABLED) == 8
    assert route.status_since(Reason.NO_ROUTE) is None


@pytest.mark.rule("XMT-9")
def test_a_found_route_ends_the_delay() -> None:
    route, found = OutgoingRoute(), object()
    route.delay(NO_ROUTE, Instant(5))
    decision: Any = found
    route.classified(decision)
    assert (route.matches, route.matched_at, route.decision) == (0, None, found)
    assert route.address is None  # until the choice of the route is stored


def test_a_withdrawn_dialog_has_no_address() -> None:
    route = OutgoingRoute()
    route.send_to("tcp://far:4022")
    assert [route.withdraw(), route.withdraw()] == ["tcp://far:4022", None]


@pytest.mark.rule("PBT-2", "XMT-18")
def test_a_refusal_that_is_repeated_keeps_its_begin() -> None:
    route = OutgoingRoute()
    route.refused("target_notice", "no_route", Instant(5))
    route.refused("target_notice", "forward_full", Instant(9))
    assert route.notice is not None
    assert (route.notice.detail, route.notice.since) == ("forward_full", 5)
    route.refusal_over()
    route.refused("target_notice", "no_route", Instant(11))
    assert route.status_since("target_notice") == 11


def test_a_round_trip_ends_with_the_acknowledgement_of_its_message() -> None:
    route = OutgoingRoute()
    assert route.measured(9, 1.0) is None
    route.measure(4, 1.0)
    assert route.measured(3, 2.0) is None
    assert route.measured(4, 3.5) == 2.5
    assert route.measured(4, 4.0) is None
    route.measure(5, 4.0)
    route.stop_measuring()
    assert route.measured(5, 5.0) is None
