"""The verbs of administration that a client may ask: status, view, browse, apply (CLP-39).

Reads: the state of the instance.      Calls: state, objects.
Never: lets a half-applied declaration stand.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from brokerd.admin import objects
from brokerd.admin.browse import browse
from brokerd.admin.ensuring import ensured
from brokerd.admin.state import StateReport
from brokerd.broker.broker import Broker
from brokerd.declarations import parse
from brokerd.errors import BrokerError, BrokerUnavailable, InvalidArgument
from brokerd.model import MSDB
from brokerd.objects import Change, Declared
from brokerd.protocol import client_verbs as wire


class Log(Protocol):
    """Where events go."""

    def info(self, event: str, **fields: object) -> object:
        """Something an operator may want to know."""
        ...


class Administration:
    """Answers the verbs of administration of one instance."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        absent: Mapping[str, BrokerError],
        state: StateReport,
        open_broker: Callable[[Declared], Awaitable[Broker]],
        changed: Callable[[Broker], None],
        log: Log,
    ) -> None:
        self._brokers = brokers
        self._absent = absent
        self._state = state
        self._open_broker = open_broker
        self._changed = changed
        self._log = log

    async def run(self, broker: Broker, verb: wire.Verb) -> object:
        """Perform one verb for a client of that broker; its answer."""
        match verb:
            case wire.Status():
                return msgspec.to_builtins(await self._state.status(broker))
            case wire.Browse():
                return await browse(broker, verb)
            case wire.View(name):
                return await self._state.view(broker, name)
            case wire.Apply(declaration, dry_run, ensure):
                changes = await self.apply(parse(declaration), dry_run=dry_run, ensure=ensure)
                return [
                    {
                        "action": str(one.action),
                        "kind": str(one.kind),
                        "name": one.name,
                        "sentence": one.sentence,
                    }
                    for one in changes
                ]
            case _:
                raise InvalidArgument("no such verb of administration")

    async def apply(
        self, declared: Declared, *, dry_run: bool, ensure: bool = False
    ) -> list[Change]:
        """Make a broker match a declaration; make the broker if there is none of that name.

        With `ensure` what is declared is added where it is missing, and nothing else changes.
        """
        instance = self._brokers[MSDB]
        if declared.broker == MSDB:
            raise InvalidArgument("the routes of msdb are declared as [[instance_route]]")
        if (reason := self._absent.get(declared.broker)) is not None:
            raise BrokerUnavailable.because(declared.broker, reason)
        broker = self._brokers.get(declared.broker)
        if broker is None:
            if dry_run:
                return objects.against_nothing(declared, instance)
            broker = await self._open_broker(declared)
        if ensure:
            declared = ensured(objects.present(broker, instance), declared)
        changes = objects.difference(broker, instance, declared)
        if changes and not dry_run:
            await objects.apply(broker, instance, changes)
            self._changed(broker)
            self._log.info(
                "broker.daemon",
                subclass="objects_applied",
                broker=broker.name,
                changes=len(changes),
            )
        return changes
