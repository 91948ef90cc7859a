"""A client is read while no reason to pause holds; a pause for the writer is no silence."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.sessions.flow_control import ANSWERS, WRITER, Congestion, Reading
from brokerd.sessions.options import SessionOptions
from tests.unit.client.scripted import MovedClock


class Transport:
    """Notes whether it is read."""

    def __init__(self) -> None:
        self.is_read = True
        self.closing = False

    def pause_reading(self) -> None:
        assert self.is_read, "paused twice"
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.closing


def reading(clock: MovedClock) -> tuple[Reading, Transport]:
    made, transport = Reading(clock), Transport()
    made.transport = transport  # type: ignore[assignment]
    return made, transport


@pytest.mark.rule("CLP-62")
def test_reading_resumes_when_the_last_reason_is_gone() -> None:
    client, transport = reading(MovedClock())
    client.pause(ANSWERS)
    client.pause(WRITER)
    client.resume(ANSWERS)
    assert not transport.is_read
    client.resume(WRITER)
    assert transport.is_read


def test_a_connection_that_closes_is_not_read_again() -> None:
    client, transport = reading(MovedClock())
    client.pause(ANSWERS)
    transport.closing = True
    client.resume(ANSWERS)
    assert not transport.is_read


@pytest.mark.rule("CLP-61")
async def test_a_pause_for_the_writer_is_no_silence() -> None:
    clock = MovedClock()
    client, _ = reading(clock)
    await clock.advance(36)
    assert client.is_silent(35)
    client.pause(WRITER)
    assert not client.is_silent(35)
    client.resume(WRITER)
    assert not client.is_silent(35), "it could not be heard during the pause"
    client.pause(ANSWERS)
    await clock.advance(36)
    assert client.is_silent(35), "a client that does not read its answers is not heard either"


@pytest.mark.rule("REL-34")
async def test_clients_are_paused_until_the_writer_has_caught_up() -> None:
    congestion = Congestion(SessionOptions(backlog_bytes=1000))
    store = SimpleNamespace(backlog_bytes=1001, oldest_unflushed_age=0.0)
    client_reading, transport = reading(MovedClock())
    client: Any = SimpleNamespace(
        broker=SimpleNamespace(store=store, is_full=False),
        reading=client_reading,
        line=SimpleNamespace(waiting_bytes=0),
        closed=False,
        is_worked_on=False,
    )
    assert congestion.check(client)
    assert not transport.is_read
    store.backlog_bytes = 1000
    resumed = asyncio.Event()
    transport.resume_reading = resumed.set  # type: ignore[method-assign]
    await asyncio.wait_for(resumed.wait(), 10)
    assert not congestion.check(client)


def test_clients_of_a_full_broker_are_read_so_that_their_requests_fail() -> None:
    congestion = Congestion(SessionOptions(backlog_bytes=1000))
    store = SimpleNamespace(backlog_bytes=1001, oldest_unflushed_age=9.0)
    client: Any = SimpleNamespace(broker=SimpleNamespace(store=store, is_full=True))
    assert not congestion.check(client)
