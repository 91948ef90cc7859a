"""What the latest lines of the log say went wrong, and that strangers cannot make it grow."""

import asyncio
from collections.abc import Iterator

import pytest

from brokerd.clock import SECOND, Instant
from brokerd.events.error_events import KEPT_REFUSALS, MOST_FAILURES, RECENT, ErrorEvents
from brokerd.telemetry import logs
from brokerd.testing.clock import SimClock


@pytest.fixture
def clock() -> Iterator[SimClock]:
    loop = asyncio.new_event_loop()
    yield SimClock(loop, utc_start=Instant(9_000 * SECOND))
    loop.close()


def login(events: ErrorEvents, remote: str, **more: object) -> None:
    usual = {"subclass": "authentication_failure", "principal": "public", "is_accept": True}
    events.record(logs.AUDIT_LOGIN, {**usual, "remote": remote, "error": "not installed"} | more)


@pytest.mark.rule("MON-22")
def test_refused_logins_are_counted_by_principal_or_machine(clock: SimClock) -> None:
    events = ErrorEvents(clock)
    login(events, "TCP://10.0.0.7:1")
    login(events, "TCP://10.0.0.7:2", error="not valid any more")
    login(events, "TCP://10.0.0.8:1", principal="peer:east")
    login(events, "TCP://10.0.0.9:1", subclass="success")
    login(events, "TCP://10.0.0.9:1", is_accept=False)
    found = {one.who: one for one in events.refused_logins_since(Instant(0))}
    assert {who: one.count for who, one in found.items()} == {"TCP://10.0.0.7": 2, "peer:east": 1}
    assert found["TCP://10.0.0.7"].reason == "not valid any more"
    assert events.refused_logins_since(Instant(clock.utc() + 1)) == []


@pytest.mark.rule("MON-22")
def test_strangers_are_counted_up_to_a_limit(clock: SimClock) -> None:
    events = ErrorEvents(clock)
    for number in range(KEPT_REFUSALS + 50):
        login(events, f"TCP://10.0.0.{number}:1")
    assert len(events._logins) == KEPT_REFUSALS
    assert len(events.refused_logins_since(Instant(0))) == MOST_FAILURES
    assert RECENT == 3600 * SECOND


@pytest.mark.rule("MON-84")
def test_the_service_that_a_stranger_names_as_its_own_makes_no_kind_of_its_own(
    clock: SimClock,
) -> None:
    events = ErrorEvents(clock)
    for number in range(3):
        events.record(
            logs.AUDIT_CONVERSATION,
            {
                "broker": "main",
                "reason": "peer:east may not send to main/stock",
                "principal": "peer:east",
                "to_service": "stock",
                "from_service": f"drawn {number}",
            },
        )
    (found,) = events.failed_since(Instant(0))
    assert (found.service, found.far_service, found.count) == ("stock", "drawn 2", 3)
    assert (found.principal, found.is_of_dialogs) == ("peer:east", False)
