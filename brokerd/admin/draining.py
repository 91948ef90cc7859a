"""Draining a queue: no further reader, and those there are end (PBT-25, CLP-118).

Reads:  the queue.      Calls: an alteration of the queue, its waiting receives, the readers.
Never:  counts what a reader that was ended had received for poison, or switches the queue off: who
        reads it by other means goes on.
"""

from collections.abc import Awaitable, Callable

import msgspec

from brokerd.broker.broker import Broker
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import QueueNotFound
from brokerd.protocol.admin_verbs import DrainQueue
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION

Row = dict[str, object]
SwitchOff = Callable[[Broker, str, str], Awaitable[None]]
"""(broker, queue, actor): switch the activation of the queue off, if it is on."""
Drain = Callable[[str, str, float], Awaitable[msgspec.Struct]]
"""(broker, queue, seconds): let its readers end; what became of them."""


class Draining:
    """Drains queues of an instance."""

    def __init__(self, *, switch_off: SwitchOff, drain: Drain, log: Log) -> None:
        self._switch_off = switch_off
        self._drain = drain
        self._log = log

    async def run(self, broker: Broker, verb: DrainQueue, actor: str) -> Row:
        """Returns when its readers are gone, or are known not to end."""
        state = broker.queues.get(verb.queue)
        if state is None or state.is_system:
            near = did_you_mean(verb.queue, broker.queues)
            raise QueueNotFound(f"queue {verb.queue!r} is not in broker {broker.name!r}{near}")
        was_on = state.queue.is_activated
        was = "none" if state.queue.activation is None else "on" if was_on else "off"
        if was_on:
            await self._switch_off(broker, verb.queue, actor)
        state.line.end_all()
        done = msgspec.structs.asdict(await self._drain(broker.name, verb.queue, verb.grace))
        self._log.info(
            ADMINISTRATION,
            subclass="drain_queue",
            actor=actor,
            broker=broker.name,
            queue=verb.queue,
            before={"is_activation_enabled": was_on},
            after={"is_activation_enabled": False},
            **done,
        )
        return {**done, "activation": was}
