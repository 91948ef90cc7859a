"""Spares: for each queue, one process that waits to become its next reader (ACT-51, design D15).

Python and the handler's module take half a second to load; a spare has loaded both, and has opened
its session, before a message arrives in an idle queue.
Reads:  the activation of a queue.      Calls: processes.start.
Never:  receives from a queue before it is in use, or counts as a reader. A spare that ends by
        itself is not replaced until its queue is altered or a reader of the queue has succeeded:
        the next reader is started without a spare, and reports the problem.
"""

import asyncio
import os
from collections.abc import Callable

import msgspec

from brokerd.activation.child import GO
from brokerd.activation.monitored_queue import MonitoredQueue, Reader
from brokerd.activation.processes import Child, Running, start, words_of
from brokerd.clock import SECOND
from brokerd.model import Activation, Host


class Spare(msgspec.Struct, eq=False):
    """A process that was started ahead of need and waits to become a reader."""

    activation: Activation
    token: bytes
    running: Running
    ending: asyncio.Future[str]
    """Future with the reason why the process failed, or ""."""
    go: int
    reader: Reader | None = None
    """Reader that uses the process; None = the process is still a spare."""

    def begin(self, reader: Reader) -> None:
        """Give the process to the reader, and let it begin."""
        self.reader = reader
        os.write(self.go, b"1")
        os.close(self.go)

    def end(self) -> None:
        """Kill the process, because it is no longer wanted."""
        os.close(self.go)
        self.running.kill()


class Spares:
    """The spares of an instance."""

    def __init__(
        self,
        *,
        address: str,
        tokens: Callable[[], bytes],
        output: Callable[[Reader, str], None],
    ) -> None:
        self._address = address
        self._tokens = tokens
        self._output = output
        self._spares: dict[tuple[str, str], Spare] = {}
        self._making: set[tuple[str, str]] = set()
        self._failed: dict[tuple[str, str], Activation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def child_of(self, queue: MonitoredQueue, token: bytes, **more: str) -> Child:
        """Return the command and environment of a reader of this queue."""
        activation = queue.activation
        return Child(
            words=words_of(activation, queue.name),
            environment={
                "BROKERD_ADDRESS": self._address,
                "BROKERD_BROKER": queue.broker,
                "BROKERD_QUEUE": queue.name,
                "BROKERD_READER": token.hex(),
                "BROKERD_DRAIN_WAIT": f"{activation.drain_wait / SECOND:g}",
                **more,
            },
            run_as=activation.run_as,
            memory=activation.memory,
            says_why=not activation.command,
        )

    def wanted(self, queue: MonitoredQueue) -> bool:
        """Return whether the queue should have a spare."""
        activation = queue.activation
        return (
            not (queue.absent_reason or queue.limits.external or activation.command)
            and activation.host is Host.PROCESS
            and activation.spare
            and activation.max_readers > 0
        )

    def adjust(self, queue: MonitoredQueue) -> None:
        """Start or end the spare of a queue according to its current definition."""
        key = (queue.broker, queue.name)
        spare = self._spares.get(key)
        if spare is not None and not (self.wanted(queue) and spare.activation == queue.activation):
            self._drop(key)
        if (
            self.wanted(queue)
            and key not in self._spares
            and key not in self._making
            and self._failed.get(key) != queue.activation
            and not self._stopped
        ):
            self._failed.pop(key, None)
            self._making.add(key)
            task = asyncio.get_running_loop().create_task(self._make(key, queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def worked(self, queue: MonitoredQueue) -> None:
        """Allow a new spare after a failed one, because a reader of the queue has succeeded."""
        self._failed.pop((queue.broker, queue.name), None)

    def claim(self, queue: MonitoredQueue) -> Spare | None:
        """Remove and return the spare of a queue; None = the queue has no running spare."""
        spare = self._spares.get((queue.broker, queue.name))
        if spare is None or spare.activation != queue.activation or spare.ending.done():
            return None
        return self._spares.pop((queue.broker, queue.name))

    async def stop(self) -> None:
        """End all spares."""
        self._stopped = True
        for key in list(self._spares):
            self._drop(key)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _make(self, key: tuple[str, str], queue: MonitoredQueue) -> None:
        activation, token = queue.activation, self._tokens()
        begins, go = os.pipe()
        try:
            child = self.child_of(queue, token, **{GO: str(begins)})
            child = msgspec.structs.replace(child, descriptors=(begins,))
            holder: list[Spare] = []
            running = await start(child, lambda line: self._log_line(holder, line))
        except (OSError, LookupError):
            os.close(go)
            self._failed[key] = activation
            return
        finally:
            os.close(begins)
            self._making.discard(key)
        ending = asyncio.ensure_future(running.ended())
        spare = Spare(activation, token, running, ending, go)
        holder.append(spare)
        # The queue may have been altered, or all spares stopped, while the process was being
        # started.
        if self._stopped or not (self.wanted(queue) and activation == queue.activation):
            spare.end()
            await asyncio.wait({ending})
            return
        self._spares[key] = spare
        await asyncio.wait({ending})
        if self._spares.get(key) is spare:  # neither claimed nor dropped: it ended by itself
            del self._spares[key]
            os.close(spare.go)
            self._failed[key] = activation

    def _log_line(self, holder: list[Spare], line: str) -> None:
        spare = holder[0] if holder else None
        if spare is not None and spare.reader is not None:
            self._output(spare.reader, line)

    def _drop(self, key: tuple[str, str]) -> None:
        self._spares.pop(key).end()
