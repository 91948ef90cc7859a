"""Draining a queue: no further reader is started, and the running ones end (PBT-25, CLP-118).

Reads:  the queue.      Calls: an alteration of the queue, its waiting receives, the readers.
Never:  counts the rollback of an ended reader for poison, or switches the queue off: programs
        that read it without activation continue.
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
"""Function of broker, queue and actor that switches the queue's activation off, if it is on."""
Drain = Callable[[str, str, float], Awaitable[msgspec.Struct]]
"""Function of broker, queue and seconds that lets readers end; returns how each reader ended."""


class Draining:
    """Performer of the draining of queues of one instance."""

    def __init__(self, *, switch_off: SwitchOff, drain: Drain, log: Log) -> None:
        self._switch_off = switch_off
        self._drain = drain
        self._log = log

    async def run(self, broker: Broker, verb: DrainQueue, actor: str) -> Row:
        """Drain the queue; return when its readers have ended, or are known not to end."""
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
