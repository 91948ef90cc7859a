"""The verbs of administration that a client may ask (CLP-39, CLP-90 to CLP-95, CLP-115).

Reads: the state of the instance.      Calls: state, views, objects, operations, upkeep.
Never: lets a half-applied declaration stand.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from brokerd.admin import objects
from brokerd.admin.browse import browse
from brokerd.admin.ensuring import ensured
from brokerd.admin.operations import Operations
from brokerd.admin.state import StateReport
from brokerd.admin.upkeep import Upkeep
from brokerd.admin.views import Views
from brokerd.broker.broker import Broker
from brokerd.declarations import parse
from brokerd.errors import BrokerError, BrokerUnavailable, InvalidArgument
from brokerd.ids import BrokerId
from brokerd.model import MSDB
from brokerd.objects import Change, Declared
from brokerd.protocol import admin_verbs as admin
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
        views: Views,
        operations: Operations,
        upkeep: Upkeep,
        open_broker: Callable[[Declared], Awaitable[Broker]],
        changed: Callable[[Broker], None],
        log: Log,
    ) -> None:
        self._brokers = brokers
        self._absent = absent
        self._state = state
        self._views = views
        self._operations = operations
        self._upkeep = upkeep
        self._open_broker = open_broker
        self._changed = changed
        self._log = log

    async def run(self, broker: Broker, verb: wire.Verb, actor: str) -> object:
        """Perform one verb for a client of that broker, who is named; its answer."""
        match verb:
            case wire.Status():
                return msgspec.to_builtins(await self._state.status(broker))
            case admin.View(name, options):
                return msgspec.structs.asdict(await self._views.page(broker, name, options))
            case wire.Browse():
                return await browse(broker, verb)
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
                return await self._operate(verb, actor)

    async def _operate(self, verb: wire.Verb, actor: str) -> object:
        """What an administrator does to a broker as a whole (MAN)."""
        operations = self._operations
        match verb:
            case admin.Enable(name, how):
                return await operations.enable(self._named(name), how, actor)
            case admin.Disable(name, how):
                return await operations.disable(self._named(name), how, actor)
            case admin.ErrorConversations(name, how):
                return await operations.error_conversations(self._named(name), how, actor)
            case admin.NewBroker(name, broker_id, how):
                named = self._named(name)
                return await operations.new_broker(named, BrokerId(broker_id), how, actor)
            case admin.CleanUp(name, reason, wanted):
                return await self._upkeep.clean_up(self._named(name), wanted, reason, actor)
            case admin.Backup(name, path):
                return await self._upkeep.backup(self._named(name), Path(path), actor)
            case _:
                raise InvalidArgument("no such verb of administration")

    def _named(self, name: str) -> Broker:
        if (reason := self._absent.get(name)) is not None:
            raise BrokerUnavailable.because(name, reason)
        broker = self._brokers.get(name)
        if broker is None:
            names = ", ".join(sorted(self._brokers))
            raise InvalidArgument(f"no broker {name!r} here; there is: {names}")
        return broker

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
