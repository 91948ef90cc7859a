"""A whole daemon in a thread of this process, on a real socket and real files.

Commands of the command line are run in this process too, so that a test of hundreds of them is
quick; what differs from `brokerd serve` is only the process.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from brokerd.clock import SystemClock
from brokerd.config.settings import Clients, ClockSettings, Dialog, Settings
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.ids import BootId, RandomIds
from brokerd.instance.instance import Instance
from brokerd.instance.surroundings import Surroundings
from brokerd.objects.declarations import parse
from brokerd.transport.network import SystemNetwork
from tests import stores


class Log:
    """Keeps the lines that were logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def _write(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    debug = info = warning = error = _write


class Served:
    """The daemon; `start` and `stop` may be called again and again."""

    def __init__(
        self, folder: Path, objects: dict[str, Any], *, listen: str | tuple[str, ...] = ""
    ) -> None:
        self.folder = folder
        self._listen = listen
        self.objects = objects
        self.log = Log()
        self.waits = threading.Event()
        """A receive has begun to wait, since it was cleared last."""
        self.instance: Instance
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._stop: asyncio.Event
        self._over: list[BaseException] = []

    @property
    def address(self) -> str:
        if isinstance(self._listen, str):
            return self._listen or f"unix:{self.folder}/s"
        return self._listen[0]

    @property
    def tcp_address(self) -> str:
        """Where a program reaches a daemon that listens on every interface."""
        listening: Any = self.instance._listening[-1]
        return f"tcp://127.0.0.1:{listening.address.rpartition(':')[2]}"

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the daemon's loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(ready,))
        self._thread.start()
        assert ready.wait(60)
        assert not self._over, self._over

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._over, self._over
        for broker in self.instance.brokers.values():  # what it served is whole (HK-10)
            place = stores.place_of(broker.store.path)
            assert place is not None
            assert stores.problems(place, may_be_over=True) == []

    def when_one_waits(self, act: Callable[[], object]) -> threading.Thread:
        """Do something, in another thread, as soon as a receive waits."""
        self.waits.clear()

        def run() -> None:
            assert self.waits.wait(30)
            act()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def _main(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._run(ready))
        except BaseException as error:  # noqa: BLE001  # told to the thread of the test
            self._over.append(error)
            ready.set()

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        ids = RandomIds()
        self.instance = Instance(
            Settings(
                instance=InstanceSettings(name="here", data_dir=self.folder),
                clients=Clients(
                    listen=self._listen or self.address, lock_timeout=timedelta(milliseconds=50)
                ),
                clock=ClockSettings(),
                dialog=Dialog(max_message=65_536),
            ),
            Surroundings(
                clock=SystemClock(),
                ids=ids,
                rng=Random(1),
                network=SystemNetwork(),
                executor=stores.threaded(self.folder),
                log=self.log,
                boot_id=BootId(ids.fresh()),
            ),
        )
        await self.instance.start(parse(self.objects))
        self._observe_waits()
        ready.set()
        await self._stop.wait()
        failed = self.instance.failed
        await self.instance.stop(timedelta(seconds=1))
        assert not failed.done(), failed.result()

    def _observe_waits(self) -> None:
        sessions: Any = self.instance.parts.sessions
        start_waiting = sessions.start_waiting

        def observed(own: int) -> None:
            start_waiting(own)
            self.waits.set()

        sessions.start_waiting = observed
