"""Daemons in one thread, whose time can be hurried: real sockets and files, and no test waits.

The loop's clock, and the UTC of the instances, go as usual; `hurry` lets seconds go by at once, in
steps between which everything that is due is done. An instance may have a clock that is wrong.
"""

import asyncio
import threading
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from brokerd.clock import SECOND, Instant, SystemClock
from brokerd.config.settings import Authentication, Clients, Encryption, Endpoint, Settings
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.ids import BootId, RandomIds
from brokerd.instance.instance import Instance
from brokerd.instance.surroundings import Surroundings
from brokerd.objects.declarations import parse
from brokerd.testing.clock import SimClock
from brokerd.transport.network import SystemNetwork
from tests import stores
from tests.acceptance.one_process import Log
from tests.acceptance.serving import free_port
from tests.relay import Relay

TURNS = 20
"""Turns of the loop after each second that has gone by."""
_T = TypeVar("_T")


class _Loop(asyncio.SelectorEventLoop):
    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class Thread:
    """The thread of the daemons, and its loop."""

    def __init__(self) -> None:
        self.loop = _Loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine beside the daemons, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def hurry(self, seconds: int) -> None:
        """Let these seconds go by."""
        self.run(self._hurry(seconds))

    async def _hurry(self, seconds: int) -> None:
        for _ in range(seconds):
            self.loop.ahead += 1.0
            for _ in range(TURNS):
                await asyncio.sleep(0)
            # Work of other threads, such as commits, is not hurried: let it come to its end.
            await asyncio.to_thread(lambda: None)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


class Hurried:
    """One daemon of such a thread."""

    def __init__(
        self, thread: Thread, folder: Path, name: str, *, skew: timedelta = timedelta()
    ) -> None:
        self.thread = thread
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.address = f"unix:{self.folder}/s"
        self._skew = skew
        self.instance: Instance
        self.relay: Relay

    @property
    def at(self) -> tuple[str, str]:
        """The options of a command that names this daemon."""
        return "--address", self.address

    @property
    def place(self) -> str:
        """The address of its broker endpoint, behind a relay that can be cut."""
        return f"TCP://127.0.0.1:{self.relay.port}"

    def start(self, objects: dict[str, Any]) -> None:
        self.thread.run(self._start(objects))

    def stop(self) -> None:
        self.thread.run(self._stop())

    async def _start(self, objects: dict[str, Any]) -> None:
        loop, ids = asyncio.get_running_loop(), RandomIds()
        began = Instant(SystemClock().utc() - round(loop.time() * SECOND))
        self.instance = Instance(
            Settings(
                instance=InstanceSettings(name=self.name, data_dir=self.folder),
                clients=Clients(listen=self.address),
                endpoint=Endpoint(
                    listen=("127.0.0.1",),
                    port=free_port(),  # the same one after a stop and a start
                    encryption=Encryption.DISABLED,
                    authentication=Authentication.NONE,
                ),
            ),
            Surroundings(
                clock=SimClock(loop, utc_start=began, skew=self._skew),
                ids=ids,
                rng=Random(1),
                network=SystemNetwork(),
                executor=stores.threaded(self.folder),
                log=Log(),
                boot_id=BootId(ids.fresh()),
            ),
        )
        await self.instance.start(parse(objects))
        (listener,) = self.instance.parts.destinations.listeners
        self.relay = Relay(listener.port)
        await self.relay.start()

    async def _stop(self) -> None:
        await self.relay.stop()
        await self.instance.stop(timedelta())
