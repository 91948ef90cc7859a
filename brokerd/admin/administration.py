"""The verbs of administration that a client may request (CLP-39, CLP-80 to CLP-95, CLP-115).

Reads: the verb.
Calls: the module of the verb's subject: objects, dialogs, poison, broker_operations, views, ...
Never: does the work itself.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from brokerd.admin.broker_endpoint import EndpointAdministration
from brokerd.admin.broker_operations import Operations
from brokerd.admin.cleanup_and_backup import Upkeep
from brokerd.admin.dialog_reports import DialogReports
from brokerd.admin.dialogs import DialogAdministration
from brokerd.admin.grants import GrantAdministration
from brokerd.admin.hand_over import HandOver
from brokerd.admin.objects.administration import ObjectAdministration
from brokerd.admin.objects.terminate import Tell
from brokerd.admin.pairing.pairing import Pairing
from brokerd.admin.poison import Parked
from brokerd.admin.principals import PrincipalAdministration
from brokerd.admin.queue_drain import Draining
from brokerd.admin.queue_purge import Purging
from brokerd.admin.route_queries import explain_route, ping
from brokerd.admin.views.browse import browse
from brokerd.admin.views.state import StateReport
from brokerd.admin.views.views import Views
from brokerd.broker.broker import Broker
from brokerd.delivery.peers.ping import Pinging
from brokerd.delivery.peers.router import Router
from brokerd.errors import BrokerError, BrokerUnavailable, InvalidArgument, ObjectNotFound
from brokerd.ids import BrokerId, Handle
from brokerd.objects.declarations import parse_from
from brokerd.objects.declared import Change, Declared
from brokerd.protocol import admin_verbs as admin
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.credential_verbs import CredentialVerb
from brokerd.protocol.pairing_verbs import PairingVerb
from brokerd.storage.rows.catalog import CatalogChanges
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
        """Report the applied changes to subscribers, durably.

        It is called before `objects_changed`, as a new subscription may be notified immediately.
        """
        ...

    def objects_changed(self, broker: Broker) -> None:
        """Make routing and activation use the broker's present objects."""
        ...


class ReaderControl(Protocol):
    """The readers of the instance, as administration needs them."""

    def altered_alike(self, broker: str, queue: str) -> None:
        """Re-arm a queue after an option was set to the value that it already had (ACT-7)."""
        ...

    async def drain(self, broker: str, queue: str, grace: float, /) -> msgspec.Struct:
        """Let a queue's readers end within `grace` seconds; return how each ended (PBT-25)."""
        ...


class Administration:
    """Performer of the verbs of administration of one instance."""

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
        grants: GrantAdministration,
        principals: PrincipalAdministration,
        confirm_clock: Callable[[str], object],
        hand_over: HandOver,
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
        self._forget = forget
        self._dialogs = dialogs
        self._endpoint = endpoint
        self._grants = grants
        self._principals = principals
        self._confirm_clock = confirm_clock
        self._hand_over = hand_over
        self._router = router
        self._pinging = pinging
        self.objects = ObjectAdministration(
            brokers=brokers,
            absent=absent,
            store_path=stores.path_of,
            make_broker=stores.make_declared,
            on_changed=changes.objects_changed,
            on_altered_alike=readers.altered_alike,
            notify_subscribers=changes.objects_applied,
            notify_far_side=tell,
            changing=changing,
            log=log,
        )
        """The verbs that change objects."""
        self.pairing: Pairing
        """The verbs of pairing; set by `instance.security_parts`, as they call `objects`."""
        self.dialog_reports: DialogReports
        """The reports of both sides of a dialog; set by `instance.report_parts`."""
        self.parked = Parked(log=events, switch=self.objects.switch)
        """The verbs for groups that are held because of poison."""
        switch_off = self.objects.switch_activation_off
        self._purging = Purging(log=log)
        self._draining = Draining(switch_off=switch_off, drain=readers.drain, log=log)

    async def run(self, broker: Broker, verb: wire.Verb, actor: str) -> object:
        """Perform one verb for a client of `broker`, whose name is `actor`; return the answer."""
        match verb:
            case wire.Apply(declaration, dry_run, terminate_existing, ensure):
                done = await self.objects.apply(
                    parse_from(broker.name, declaration),
                    dry_run=dry_run,
                    terminate_existing=terminate_existing,
                    ensure=ensure,
                    actor=actor,
                )
                return [_change(name, one) for name, changes in done for one in changes]
            case wire.Create() | wire.Alter() | wire.Drop():
                changes = await self.objects.change(broker, verb, actor)
                return [_change(broker.name, one) for one in changes]
            case (
                wire.Status()
                | wire.Browse()
                | wire.Objects()
                | wire.TransmissionStatus()
                | admin.ExplainRoute()
                | admin.Ping()
                | admin.DialogTimeline()
                | admin.View()
            ):
                return await self._read(broker, verb)
            case wire.CleanUp(handle, reason, tell):
                one = Handle(handle)
                await self._dialogs.clean_up(broker, one, reason, tell_peer=tell, who=actor)
                return None
            case _:
                if isinstance(verb, CredentialVerb):
                    return await self._principals.run(verb, actor)
                doing: Awaitable[object]
                if isinstance(verb, admin.PoisonVerb):
                    doing = self.parked.run(self._named(verb.broker), verb, actor)
                elif isinstance(verb, PairingVerb):
                    doing = self.pairing.run(broker, verb, actor)
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
                return self.objects.describe(broker, kind)
            case admin.ExplainRoute():
                return await explain_route(self._router, self._state.attempts, broker, verb)
            case admin.Ping():
                return await ping(self._pinging, broker, verb)
            case admin.DialogTimeline():
                return await self.dialog_reports.timeline(broker, verb)
            case wire.TransmissionStatus(handle):
                return await self._dialogs.transmission_status(broker, Handle(handle))
            case _:
                raise AssertionError(f"{verb} changes something")

    async def _operate(  # noqa: C901, PLR0911, PLR0912  # one return a verb
        self, verb: wire.Verb, actor: str
    ) -> object:
        """Perform an operation on a broker as a whole (MAN), or on the broker endpoint."""
        operations = self._operations
        match verb:
            case admin.AlterEndpoint() | admin.RetryDestination():
                return await self._endpoint.run(verb, actor)
            case admin.GrantPermission() | admin.RevokePermission() | admin.WhoCan():
                return await self._grants.run(verb, actor)
            case admin.ConfirmClock():
                return self._confirm_clock(actor)
            case admin.HandOver():
                return await self._hand_over.run(actor)
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
            case admin.PurgeQueue(name):
                return await self._purging.run(self._named(name), verb, actor)
            case admin.ForgetBroker(name):
                async with self.objects.lock:  # an apply may be making a broker of that name
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


def _change(broker: str, change: Change) -> dict[str, object]:
    return {
        "broker": broker,
        "action": str(change.action),
        "kind": str(change.kind),
        "name": change.name,
        "sentence": change.sentence,
    }
