"""The verbs of administration that a client may ask for (CLP-39, CLP-80 to CLP-95, CLP-115).

Reads: the state of the instance.      Calls: state, views, objects, dialogs, operations, upkeep.
Never: lets a half-applied declaration stand.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from brokerd.admin.broker_endpoint import EndpointAdministration
from brokerd.admin.broker_operations import Operations
from brokerd.admin.cleanup_and_backup import Upkeep
from brokerd.admin.dialogs import DialogAdministration
from brokerd.admin.draining import Draining
from brokerd.admin.objects.apply import apply
from brokerd.admin.objects.check import present, refuse_in_use
from brokerd.admin.objects.merge import add_missing, keep_undeclared
from brokerd.admin.objects.plan import (
    THE_DAEMON,
    Merge,
    Plan,
    catalog_changes,
    plan,
    plan_new,
    plan_switch,
)
from brokerd.admin.objects.terminate import Tell
from brokerd.admin.poison import Parked
from brokerd.admin.route_queries import explain_route, ping
from brokerd.admin.views.browse import browse
from brokerd.admin.views.state import StateReport
from brokerd.admin.views.views import Views
from brokerd.broker.broker import Broker
from brokerd.delivery.peers.ping import Pinging
from brokerd.delivery.peers.router import Router
from brokerd.errors import (
    BrokerError,
    BrokerUnavailable,
    InvalidArgument,
    ObjectExists,
    ObjectNotFound,
    ObjectsRefused,
)
from brokerd.ids import BrokerId, Handle
from brokerd.model import AUTO_CREATED_LOCAL, MSDB, QueueStatus
from brokerd.objects.declarations import parse_from, parse_object, parse_options
from brokerd.objects.declared import TABLES, Change, Declared, Kind, is_built_in
from brokerd.objects.forms import altered, describe
from brokerd.protocol import admin_verbs as admin
from brokerd.protocol import client_verbs as wire
from brokerd.storage.catalog import CatalogChanges
from brokerd.telemetry.log import Log


class BrokerStores(Protocol):
    """The stores of the instance, as administration needs them."""

    def path_of(self, name: str) -> Path:
        """Return the file of a broker, whether it exists or not."""
        ...

    async def make_declared(
        self, declared: Declared, objects: CatalogChanges, made: Callable[[Broker], None], /
    ) -> Broker:
        """Make a broker with objects, in one commit; call `made` before its notifications load."""
        ...


class ObjectEvents(Protocol):
    """The listener of changes of objects."""

    def objects_applied(self, broker: Broker, changes: Sequence[Change], actor: str) -> None:
        """Report changes, durably; called first: a new subscription may be notified at once."""
        ...

    def objects_changed(self, broker: Broker) -> None:
        """Let routing and activation take account of the broker's present objects."""
        ...


class ReaderControl(Protocol):
    """The readers of the instance, as administration needs them."""

    def altered_alike(self, broker: str, queue: str) -> None:
        """Re-arm a queue whose option was set to the value it had already (ACT-7)."""
        ...

    async def drain(self, broker: str, queue: str, grace: float, /) -> msgspec.Struct:
        """Let the readers of a queue end, at most `grace` seconds; return their fates (PBT-25)."""
        ...


class Administration:
    """Performs the verbs of administration of one instance."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        absent: Mapping[str, BrokerError],
        state: StateReport,
        views: Views,
        operations: Operations,
        upkeep: Upkeep,
        stores: BrokerStores,
        forget: Callable[[str, str], Awaitable[object]],
        changes: ObjectEvents,
        readers: ReaderControl,
        tell: Tell,
        dialogs: DialogAdministration,
        changing: Callable[[Broker], AbstractContextManager[None]],
        endpoint: EndpointAdministration,
        confirm_clock: Callable[[str], object],
        router: Router,
        pinging: Pinging,
        log: Log,
        events: Log,
    ) -> None:
        self._brokers = brokers
        self._absent = absent
        self._state = state
        self._views = views
        self._operations = operations
        self._upkeep = upkeep
        self._store_path = stores.path_of
        self._make_broker = stores.make_declared
        self._forget = forget
        self._changed = changes.objects_changed
        self._altered_alike = readers.altered_alike
        self._told = changes.objects_applied
        self._tell = tell
        self._dialogs = dialogs
        self._changing = changing
        self._endpoint = endpoint
        self._confirm_clock = confirm_clock
        self._router = router
        self._pinging = pinging
        self._log = log
        self.parked = Parked(log=events, switch=self.switch)
        """The verbs against poison."""
        self._draining = Draining(
            switch_off=self._switch_activation_off, drain=readers.drain, log=log
        )
        self._applying = asyncio.Lock()  # two at a time would each judge by what the other changes

    async def run(self, broker: Broker, verb: wire.Verb, actor: str) -> object:
        """Perform one verb for a client of that broker, named `actor`; return the answer."""
        match verb:
            case wire.Apply(declaration, dry_run, terminate_existing, ensure):
                done = await self.apply(
                    parse_from(broker.name, declaration),
                    dry_run=dry_run,
                    terminate_existing=terminate_existing,
                    ensure=ensure,
                    actor=actor,
                )
                return [_change(name, one) for name, changes in done for one in changes]
            case wire.Create() | wire.Alter() | wire.Drop():
                return await self._change_one(broker, verb, actor)
            case (
                wire.Status()
                | wire.Browse()
                | wire.Objects()
                | wire.TransmissionStatus()
                | admin.ExplainRoute()
                | admin.Ping()
                | admin.View()
            ):
                return await self._read(broker, verb)
            case wire.CleanUp(handle, reason, tell):
                one = Handle(handle)
                await self._dialogs.clean_up(broker, one, reason, tell_peer=tell, who=actor)
                return None
            case _:
                if isinstance(verb, admin.PoisonVerb):
                    doing: Awaitable[object] = self.parked.run(
                        self._named(verb.broker), verb, actor
                    )
                else:
                    doing = self._operate(verb, actor)
                return await doing

    async def _read(  # noqa: PLR0911  # one return a verb
        self, broker: Broker, verb: wire.Verb
    ) -> object:
        """Perform a verb that changes nothing."""
        match verb:
            case wire.Status():
                return msgspec.to_builtins(await self._state.status(broker))
            case wire.Browse():
                return await browse(broker, verb)
            case admin.View(name, options):
                return msgspec.structs.asdict(await self._views.page(broker, name, options))
            case wire.Objects(kind):
                return self._objects(broker, kind)
            case admin.ExplainRoute():
                return await explain_route(self._router, self._state.attempts, broker, verb)
            case admin.Ping():
                return await ping(self._pinging, broker, verb)
            case wire.TransmissionStatus(handle):
                return await self._dialogs.transmission_status(broker, Handle(handle))
            case _:
                raise AssertionError(f"{verb} changes something")

    async def _operate(  # noqa: C901, PLR0911  # one return a verb
        self, verb: wire.Verb, actor: str
    ) -> object:
        """Perform an operation on a broker as a whole (MAN), or on the broker endpoint."""
        operations = self._operations
        match verb:
            case admin.AlterEndpoint() | admin.RetryDestination():
                return await self._endpoint.run(verb, actor)
            case admin.ConfirmClock():
                return self._confirm_clock(actor)
            case admin.Enable(name, how):
                return await operations.enable(self._named(name), how, actor)
            case admin.Disable(name, how):
                return await operations.disable(self._named(name), how, actor)
            case admin.ErrorConversations(name, how):
                return await operations.error_conversations(self._named(name), how, actor)
            case admin.NewBroker(name, broker_id, how):
                named = self._named(name)
                return await operations.new_broker(named, BrokerId(broker_id), how, actor)
            case admin.CleanUpEndpoints(name, reason, wanted):
                return await self._upkeep.clean_up(self._named(name), wanted, reason, actor)
            case admin.DrainQueue(name):
                return await self._draining.run(self._named(name), verb, actor)
            case admin.ForgetBroker(name):
                async with self._applying:  # an apply may be making a broker of that name
                    return await self._forget(name, actor)
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
            raise ObjectNotFound(f"there is no broker {name!r} here", hint=f"there is: {names}")
        return broker

    async def apply(
        self,
        declared: Declared,
        *,
        dry_run: bool,
        terminate_existing: bool = False,
        ensure: bool = False,
        keep: bool = False,
        actor: str = THE_DAEMON,
    ) -> list[tuple[str, list[Change]]]:
        """Make the brokers match a declaration, each all or nothing; return the changes by broker.

        A broker that does not exist is made. Nothing is changed if any of them has to refuse.
        Raises `Busy` if one of them is being administered (MAN-1).
        With `ensure` missing objects are added, and nothing else changes; with `keep` declared
        objects are made and altered, and no others are dropped.
        """
        merge = add_missing if ensure else keep_undeclared if keep else None
        async with self._applying:
            # Everything that can refuse is checked for all brokers before the first is changed:
            # each broker commits on its own, so a later refusal could not undo an earlier one.
            for one in declared.brokers:
                self._refuse_unplannable(one.broker)
            plans = [self._plan(one, merge, actor) for one in declared.brokers]
            await self._check(plans, dry_run=dry_run, terminate_existing=terminate_existing)
            if not dry_run:
                for checked in plans:
                    with _named_in(plans, checked):
                        await self._apply_plan(checked, terminate_existing, actor)
        return [(made.broker, made.reported) for made in plans]

    def _refuse_unplannable(self, name: str) -> None:
        """Refuse a broker whose objects are not known here, or are not its own.

        A file that was put into the directory is opened at a start, which checks its content. To
        apply a declaration here would treat it as new and empty.
        """
        if name == MSDB:
            raise InvalidArgument("the routes of msdb are declared as [[instance_route]]")
        if (reason := self._absent.get(name)) is not None:
            raise BrokerUnavailable.because(name, reason)
        path = self._store_path(name)
        if name not in self._brokers and path.exists():
            raise BrokerUnavailable(
                f"broker {name!r} is not open here, and its store is there: {path}; "
                "nothing was changed",
                hint="a daemon opens what is in its directory when it starts; a program has one "
                "file open at a time",
            )

    def _plan(self, wanted: Declared, merge: Merge | None, actor: str) -> Plan:
        instance = self._brokers[MSDB]
        broker = self._brokers.get(wanted.broker)
        now = instance.clock.utc()
        if broker is not None:
            return plan(wanted, present(broker, instance), actor=actor, now=now, merge=merge)
        return plan_new(
            wanted,
            instance_routes=instance.store.catalog.routes,
            others=self._brokers,
            actor=actor,
            now=now,
        )

    async def _check(
        self, plans: Sequence[Plan], *, dry_run: bool, terminate_existing: bool
    ) -> None:
        """Raise what forbids one of the plans now: `Busy` or `InUse`.

        A dry run refuses what the run would refuse, except that it does not need a broker that is
        being administered (MAN-1).
        """
        if not dry_run:
            for one in plans:
                if (broker := self._brokers.get(one.broker)) is not None:
                    with self._changing(broker):
                        pass
        if not terminate_existing:
            for one in plans:
                if (broker := self._brokers.get(one.broker)) is not None:
                    with _named_in(plans, one):
                        await refuse_in_use(one, broker)

    async def _apply_plan(self, plan: Plan, terminate_existing: bool, actor: str) -> None:
        """Apply a checked plan, and notify the rest of the instance."""
        if plan.creation is not None:
            await self._create(plan, actor)
            plan = plan.after_creation()
        if not plan.changes:
            return
        broker = self._brokers[plan.broker]
        with self._changing(broker):
            await apply(
                plan,
                broker,
                self._brokers[MSDB],
                tell=self._tell,
                terminate_existing=terminate_existing,
            )
        self._told(broker, plan.changes, actor)  # first: a new subscription may be notified at once
        self._in_effect(broker, plan.changes)

    async def _create(self, plan: Plan, actor: str) -> None:
        """Make a broker and its own objects, both or neither.

        Raises `StoreFull` if there is no room, and leaves nothing behind (REL-26).
        """
        broker = await self._make_broker(
            plan.declared,
            catalog_changes(plan.own, self._brokers[MSDB].clock.utc()),
            lambda broker: self._told(broker, plan.own, actor),
        )
        self._in_effect(broker, plan.own)

    def _in_effect(self, broker: Broker, changes: Sequence[Change]) -> None:
        self._changed(broker)
        self._log.info(
            "broker.daemon", subclass="objects_applied", broker=broker.name, changes=len(changes)
        )

    async def switch(
        self, broker: Broker, queue: str, status: QueueStatus | None, actor: str
    ) -> bool:
        """Switch a queue off for this reason, or on; return whether it changed (PSN-7)."""
        async with self._applying:
            found = broker.store.catalog.queues.get(queue)
            if found is None or found.is_on == (status is None):
                return False
            have = present(broker, self._brokers[MSDB])
            switched = plan_switch(have, found, status, actor=actor, now=broker.clock.utc())
            await self._apply_plan(switched, False, actor)
        return True

    async def _switch_activation_off(self, broker: Broker, queue: str, actor: str) -> None:
        off = wire.Alter("queue", {"name": queue, "activation": {"status": "off"}})
        await self._change_one(broker, off, actor)

    # Changes of one object, by the path of a whole declaration (CLP-81).

    def _objects(self, broker: Broker, kind: str | None) -> list[dict[str, object]]:
        """Return the objects in the form in which a file declares them (CLP-80)."""
        kinds = list(TABLES) if kind is None else [_kind(kind)]
        have = present(broker, self._brokers[MSDB])
        return [
            {"kind": one.value, **describe(value)}
            for one in kinds
            for value in have.objects(one).values()
        ]

    async def _change_one(
        self, broker: Broker, verb: wire.Create | wire.Alter | wire.Drop, actor: str
    ) -> list[dict[str, object]]:
        alters_broker = verb.kind == Kind.BROKER and isinstance(verb, wire.Alter)
        kind = Kind.BROKER if alters_broker else _kind(verb.kind)
        async with self._applying:
            have = present(broker, self._brokers[MSDB])
            wanted = _wanted(broker.name, kind, verb, have)
            made = plan(wanted, have, actor=actor, now=broker.clock.utc())
            if made.changes:
                terminate = getattr(verb, "terminate_existing", False)
                await self._check([made], dry_run=False, terminate_existing=terminate)
                await self._apply_plan(made, terminate, actor)
            elif kind is Kind.QUEUE and isinstance(verb, wire.Alter):
                self._altered_alike(broker.name, str(verb.object["name"]))
        return [_change(broker.name, one) for one in made.changes]


@contextmanager
def _named_in(plans: Sequence[Plan], one: Plan) -> Iterator[None]:
    """Name the refusing one of several brokers in its error: their objects may have equal names."""
    try:
        yield
    except BrokerError as error:
        if len(plans) > 1:
            error.args = (f"broker {one.broker}: {error.message}",)
        raise


def _wanted(
    broker: str, kind: Kind, verb: wire.Create | wire.Alter | wire.Drop, have: Declared
) -> Declared:
    """Return the declaration that the broker is to match once the verb is done."""
    name = verb.name if isinstance(verb, wire.Drop) else str(verb.object.get("name", ""))
    if kind is Kind.BROKER:
        assert isinstance(verb, wire.Alter), "checked before"
        if name != broker:
            raise InvalidArgument(f"this session is with broker {broker!r}, not {name!r}")
        return parse_options(verb.object, have)
    found = have.objects(kind).get(name)
    if isinstance(verb, wire.Create):
        if found is not None:
            raise ObjectExists(f"{kind} {name!r} is in broker {broker!r} already")
        return parse_object(kind, verb.object, have)
    if found is None and is_built_in(kind, name):
        raise ObjectsRefused(
            f"{kind} {name!r} is built in: it can be neither altered nor dropped",
            hint="declare one of another name, or change a service that names it",
        )
    if found is None:
        raise ObjectNotFound(f"{kind} {name!r} is not in broker {broker!r}")
    if isinstance(verb, wire.Drop):
        kept = {key: one for key, one in have.objects(kind).items() if key != name}
        wanted = msgspec.structs.replace(have, **{TABLES[kind]: kept})
        if name == AUTO_CREATED_LOCAL.name:
            wanted = msgspec.structs.replace(wanted, without_local=frozenset({kind}))
        return wanted
    if kind is Kind.CONTRACT:
        raise InvalidArgument(
            "a contract cannot be altered (OBJ-25)",
            hint="make one with another name, or apply a file: it is replaced there",
        )
    return parse_object(kind, altered(found, verb.object), have)


def _kind(word: str) -> Kind:
    known = [kind.value for kind in TABLES]
    if word not in known:
        raise InvalidArgument(f"there is no kind of object {word!r}: {', '.join(known)}")
    return Kind(word)


def _change(broker: str, change: Change) -> dict[str, object]:
    return {
        "broker": broker,
        "action": str(change.action),
        "kind": str(change.kind),
        "name": change.name,
        "sentence": change.sentence,
    }
