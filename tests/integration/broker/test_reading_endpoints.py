"""Reading many endpoints while some of them leave memory: how often they are read."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.broker import sweeps
from tests.integration.one_daemon import Daemon, live_of, play
from tests.integration.shorthand import talk


@pytest.mark.rule("DLG-T27", "REL-32")
def test_endpoints_that_leave_memory_together_are_read_once_more(tmp_path: Path) -> None:
    """Once for all of them: else a batch of a thousand might be read a thousand times."""

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        lives = [live_of(daemon, await talk(session)) for _ in range(20)]
        broker, reads = daemon.broker, 0
        read = broker.store.endpoints.page

        async def meanwhile(*given: Any) -> Any:
            nonlocal reads
            reads += 1
            found = await read(*given)
            for live in lives if reads == 1 else ():
                broker.endpoints._evict_one(live)
            return found

        with patch.object(broker.store.endpoints, "page", meanwhile):
            found, end = await sweeps.batch(broker, None, 100)
        assert (len(found), end, reads) == (20, None, 2)
        sweeps.release(found)
        await session.close()

    play(program, tmp_path)
