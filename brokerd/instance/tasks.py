"""Tasks of an instance: its short tasks, its condition, and the error that ends it.

Reads:  the names of the brokers.      Calls: nothing.
Never:  stops a part (instance.py does); the daemon stops once `failed` is set.
Fails:  an error of a task is an error of the instance (PER-5).
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping

from brokerd.broker.broker import Broker
from brokerd.errors import BAD_FILE, IO_FAULT, StoreFault, StoreFull
from brokerd.model import MSDB


class InstanceTasks:
    """The condition of one instance, and the tasks that it has started."""

    def __init__(self, brokers: Mapping[str, Broker]) -> None:
        self._brokers = brokers
        self._tasks: set[asyncio.Task[None]] = set()
        self.condition = "starting"
        """The condition: waiting, starting, ready, draining, stopped or failed."""
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Future of the error with which the instance cannot continue; the daemon then stops."""

    @property
    def is_serving(self) -> bool:
        """Whether the instance is starting or running, and has not begun to stop."""
        return self.condition in {"starting", "ready"}

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a short piece of work as a task; an error in it fails the instance."""
        task = self.run(work)
        self._tasks.add(task)
        return task

    def spawn_counted(self, work: Awaitable[int]) -> None:
        """Start work as a task, and ignore the count that it returns."""
        self.spawn(_without_count(work))

    def run(self, loop: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a part's endless `run` as a task, which the caller stops.

        An error in it fails the instance."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(loop)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # a full disk is a state, which the store has already reported (REL-26)
        if not isinstance(error, StoreFull):
            self.fail(error)

    async def cancel_tasks(self) -> None:
        """Cancel the spawned tasks, and tasks that they spawn meanwhile; wait for all to end."""
        while tasks := [one for one in self._tasks if not one.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def fail_store(self, name: str, fault: StoreFault) -> None:
        """Fail the instance because of a store; allow a restart if other brokers can run.

        If they can, the exit status for a bad file is replaced by that of an I/O fault, because
        a supervisor restarts the daemon after an I/O fault.
        """
        others = self._brokers.keys() - {MSDB, name}
        if fault.exit_status == BAD_FILE and name != MSDB and others:
            fault.exit_status = IO_FAULT
        self.fail(fault)

    def fail(self, error: BaseException) -> None:
        """Fail the instance with its first error; later errors change nothing."""
        if not self.failed.done():
            self.condition = "failed"
            self.failed.set_result(error)


async def _without_count(work: Awaitable[int]) -> None:
    await work
