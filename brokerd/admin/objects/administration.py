"""Administration of objects: the verbs that list, create, alter and drop them (CLP-80, CLP-81).

Reads:  the declaration or the verb, the objects of brokers.
Calls:  plan, check, apply, in this order, for one object as for a whole file.
Never:  changes objects of two brokers at a time, or the first of several brokers before the plans
        of all are checked.
Fails:  a later broker of a file may still fail alone (`StoreFull`): each has its own commit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec

from brokerd.admin.objects.apply import apply
from brokerd.admin.objects.check import present, refuse_in_use, refuse_unknown_principals
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
from brokerd.admin.pairing.objects import keep_paired
from brokerd.broker.broker import Broker
from brokerd.errors import (
    BrokerError,
    BrokerUnavailable,
    InvalidArgument,
    ObjectExists,
    ObjectNotFound,
    ObjectsRefused,
)
from brokerd.model import AUTO_CREATED_LOCAL, MSDB, QueueStatus
from brokerd.objects.declarations import parse_object, parse_options
from brokerd.objects.declared import TABLES, Change, Declared, Kind, is_built_in
from brokerd.objects.forms import altered, describe
from brokerd.protocol import client_verbs as wire
from brokerd.storage.rows.catalog import CatalogChanges
from brokerd.telemetry.log import Log

MakeBroker = Callable[[Declared, CatalogChanges, Callable[[Broker], None]], Awaitable[Broker]]
"""Function that makes a broker with objects, in one commit, and calls another function before
the notifications of the broker load."""


class ObjectAdministration:
    """Performer of changes to the objects of one instance's brokers, one request at a time."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        absent: Mapping[str, BrokerError],
        store_path: Callable[[str], Path],
        make_broker: MakeBroker,
        on_changed: Callable[[Broker], None],
        on_altered_alike: Callable[[str, str], None],
        notify_subscribers: Callable[[Broker, Sequence[Change], str], None],
        notify_far_side: Tell,
        changing: Callable[[Broker], AbstractContextManager[None]],
        log: Log,
    ) -> None:
        """Create the verbs of one instance.

        `on_changed`: called once changes are in effect. `on_altered_alike`: called with broker and
        queue, after an ALTER that changes nothing. `changing`: keeps other administrators of the
        broker out, or raises `Busy`."""
        self._brokers = brokers
        self._absent = absent
        self._store_path = store_path
        self._make_broker = make_broker
        self._on_changed = on_changed
        self._on_altered_alike = on_altered_alike
        self._notify_subscribers = notify_subscribers
        self._notify_far_side = notify_far_side
        self._changing = changing
        self.has_principal: Callable[[str], bool] = lambda _name: True
        """Whether the instance has a principal; set by `instance.security_parts`."""
        self._log = log
        self.lock = asyncio.Lock()
        """Lock held while a plan is made and applied; another change would invalidate the plan."""

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

        A broker that does not exist is made. Nothing is changed if the change of any broker has to
        be refused. Raises `Busy` if one of the brokers is being administered (MAN-1).
        With `ensure` missing objects are added, and nothing else changes; with `keep` declared
        objects are made and altered, and no others are dropped. Otherwise the broker has only the
        declared objects afterwards, and what pairing made (SEC-80).
        """
        merge = add_missing if ensure else keep_undeclared if keep else self._keep_paired
        async with self.lock:
            # Everything that can refuse is checked for all brokers before the first is changed:
            # each broker commits on its own, so a later refusal could not undo an earlier one.
            for one in declared.brokers:
                self._refuse_unplannable(one.broker)
            plans = [self._plan(one, merge, actor) for one in declared.brokers]
            self._check_principals(plans, actor)
            await self._check(plans, dry_run=dry_run, terminate_existing=terminate_existing)
            if not dry_run:
                for checked in plans:
                    with _named_in(plans, checked):
                        await self._apply_plan(checked, terminate_existing, actor)
        return [(made.broker, made.reported) for made in plans]

    def _refuse_unplannable(self, name: str) -> None:
        """Refuse a broker whose store is not open, and `msdb`, which has instance routes only.

        A store file that was copied into the directory is opened at the next start, which checks
        its content. Applying a declaration now would treat it as new and empty.
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

    def _keep_paired(self, have: Declared, wanted: Declared) -> Declared:
        return keep_paired(have, wanted, has_principal=self.has_principal)

    def _plan(self, wanted: Declared, merge: Merge, actor: str) -> Plan:
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

    def _check_principals(self, plans: Sequence[Plan], actor: str) -> None:
        """Raise `ObjectNotFound` if a binding names an unknown principal.

        The file of a start is only warned about: the instance has to run before it can be paired
        with the machine of that principal, and until then the binding secures no dialog.
        """
        for one in plans:
            try:
                with _named_in(plans, one):
                    refuse_unknown_principals(one, self.has_principal)
            except ObjectNotFound as error:
                if actor != THE_DAEMON:
                    raise
                self._log.warning(
                    "broker.daemon",
                    subclass="unknown_principal",
                    broker=one.broker,
                    reason=error.message.removesuffix("; nothing was changed"),
                    hint=error.hint,
                )

    async def _check(
        self, plans: Sequence[Plan], *, dry_run: bool, terminate_existing: bool
    ) -> None:
        """Raise the error that forbids one of the plans now: `Busy` or `InUse`.

        A dry run raises what the run would raise, except `Busy` for a broker that is being
        administered (MAN-1).
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
        """Apply a checked plan, and notify the other parts of the instance."""
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
                tell=self._notify_far_side,
                terminate_existing=terminate_existing,
            )
        # Before they are in effect: a new subscription may be notified at once.
        self._notify_subscribers(broker, plan.changes, actor)
        self._in_effect(broker, plan.changes)

    async def _create(self, plan: Plan, actor: str) -> None:
        """Make a broker and its own objects, both or neither.

        Raises `StoreFull`, and leaves nothing behind, if the disk lacks room (REL-26).
        """
        broker = await self._make_broker(
            plan.declared,
            catalog_changes(plan.own, self._brokers[MSDB].clock.utc()),
            lambda broker: self._notify_subscribers(broker, plan.own, actor),
        )
        self._in_effect(broker, plan.own)

    def _in_effect(self, broker: Broker, changes: Sequence[Change]) -> None:
        self._on_changed(broker)
        self._log.info(
            "broker.daemon", subclass="objects_applied", broker=broker.name, changes=len(changes)
        )

    async def switch(
        self, broker: Broker, queue: str, status: QueueStatus | None, actor: str
    ) -> bool:
        """Switch a queue off for this reason, or on; return whether it changed (PSN-7)."""
        async with self.lock:
            found = broker.store.catalog.queues.get(queue)
            if found is None or found.is_on == (status is None):
                return False
            have = present(broker, self._brokers[MSDB])
            switched = plan_switch(have, found, status, actor=actor, now=broker.clock.utc())
            await self._apply_plan(switched, False, actor)
        return True

    async def switch_activation_off(self, broker: Broker, queue: str, actor: str) -> None:
        """Switch the activation of a queue off."""
        off = wire.Alter("queue", {"name": queue, "activation": {"status": "off"}})
        await self.change(broker, off, actor)

    async def amend(
        self, broker: Broker, change: Callable[[Declared], Declared], actor: str
    ) -> tuple[Declared, list[Change]]:
        """Change several objects of a broker in one commit; return the objects before, and the
        changes made.

        `change`: returns the wanted objects for the present ones."""
        async with self.lock:
            have = present(broker, self._brokers[MSDB])
            made = plan(change(have), have, actor=actor, now=broker.clock.utc())
            if made.changes:
                self._check_principals([made], actor)
                await self._check([made], dry_run=False, terminate_existing=False)
                await self._apply_plan(made, False, actor)
        return have, made.reported

    def describe(self, broker: Broker, kind: str | None) -> list[dict[str, object]]:
        """Return the objects in the form in which a file declares them (CLP-80)."""
        kinds = list(TABLES) if kind is None else [_kind(kind)]
        have = present(broker, self._brokers[MSDB])
        return [
            {"kind": one.value, **describe(value)}
            for one in kinds
            for value in have.objects(one).values()
        ]

    async def change(
        self, broker: Broker, verb: wire.Create | wire.Alter | wire.Drop, actor: str
    ) -> list[Change]:
        """Create, alter or drop one object, by the steps of a whole declaration (CLP-81)."""
        alters_broker = verb.kind == Kind.BROKER and isinstance(verb, wire.Alter)
        kind = Kind.BROKER if alters_broker else _kind(verb.kind)
        async with self.lock:
            have = present(broker, self._brokers[MSDB])
            wanted = _wanted(broker.name, kind, verb, have)
            made = plan(wanted, have, actor=actor, now=broker.clock.utc())
            if made.changes:
                self._check_principals([made], actor)
                terminate = getattr(verb, "terminate_existing", False)
                await self._check([made], dry_run=False, terminate_existing=terminate)
                await self._apply_plan(made, terminate, actor)
            elif kind is Kind.QUEUE and isinstance(verb, wire.Alter):
                self._on_altered_alike(broker.name, str(verb.object["name"]))
        return made.reported


@contextmanager
def _named_in(plans: Sequence[Plan], one: Plan) -> Iterator[None]:
    """Add the broker's name to an error: several brokers may have objects of equal names."""
    try:
        yield
    except BrokerError as error:
        if len(plans) > 1:
            error.args = (f"broker {one.broker}: {error.message}",)
        raise


def _wanted(
    broker: str, kind: Kind, verb: wire.Create | wire.Alter | wire.Drop, have: Declared
) -> Declared:
    """Return the declaration that the broker is to match after the verb."""
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
