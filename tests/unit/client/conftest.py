"""A scripted daemon, a clock, and a session on both."""

from collections.abc import AsyncIterator

import pytest

from brokerd.client.session import Session
from tests.unit.client.scripted import Daemon, MovedClock, open_session


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def session(daemon: Daemon, clock: MovedClock) -> AsyncIterator[Session]:
    session = await open_session(daemon, clock)
    yield session
    await session.close()
