"""Classification of dialogs: where each one sends, or why it waits (XMT-5, XMT-6).

Reads: routing tables, by way of the router.      Calls: peers.router, broker.changeset.
Never: sends; the transmitter does, to the address that the classification decides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.changeset import Changeset
from brokerd.broker.outgoing import Outgoing
from brokerd.clock import Clock
from brokerd.delivery.peers.dialog_security import (
    NO_BINDING,
    DialogSecurity,
    SecurityOutcome,
)
from brokerd.delivery.peers.router import Router
from brokerd.delivery.peers.routing_changes import Affected, affected, expired
from brokerd.ids import show
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.routing.classify import Delayed, Local, Remote
from brokerd.routing.mirror import Pair
from brokerd.routing.reasons import Reason
from brokerd.routing.table import pair_of
from brokerd.security.kept_keys import DialogKeys
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import MESSAGE_CLASSIFY

HERE = "LOCAL"
"""The value in place of an address for any broker of this instance."""


class Unsecured(Delayed, frozen=True):
    """A delay for want of keys or a binding, which other dialogs of the same route do not share."""


class Classifier:
    """Classifier of dialogs: assigns addresses to them, and keeps the delayed ones."""

    __slots__ = (
        "_clock",
        "_log",
        "_looked_at",
        "_router",
        "_security",
        "_settled",
        "_snapshot",
        "delayed",
    )

    def __init__(
        self,
        *,
        router: Router,
        security: DialogSecurity,
        clock: Clock,
        log: Log,
        settled: Callable[[Broker, Outgoing], None],
    ) -> None:
        """Create the classifier.

        `settled`: called once a dialog's choice of a route, or its keys, are stored (RTE-29)."""
        self._router = router
        self._security = security
        self._clock = clock
        self._log = log
        self._settled = settled
        self._snapshot = router.snapshot()
        self._looked_at = clock.utc()
        self.delayed: dict[Outgoing, Broker] = {}
        """Dialogs that wait for a route (XMT-6)."""

    def classified(self, broker: Broker, out: Outgoing) -> bool:
        """Return whether the dialog has an address; classify it if it has not been yet.

        False: the dialog is delayed with a reason (XMT-6), waits until its choice of a route or
        its keys are stored (RTE-29, SEC-38), or was ended with an error because it must be
        encrypted (DLG-12).
        """
        if out.route.address is not None:
            return True
        if out.route.is_choosing:
            return False
        endpoint = out.live.endpoint
        decision = self._router.outgoing(broker, endpoint, out)
        if isinstance(decision, Delayed):
            self.delay(broker, out, decision)
            return False
        keys = self._secure(broker, out, decision)
        if isinstance(keys, SecurityOutcome):  # it waits, or has ended with an error
            return False
        self.delayed.pop(out, None)
        out.route.classified(decision)
        address = decision.address if isinstance(decision, Remote) else HERE
        self._log_destination(broker, out, address, decision)
        # The choice has to be durable before the first fragment leaves: after a crash another
        # choice could bring message 0 to a second target (RTE-29).
        # Keys, too: another key for what the peer has already would be refused (SEC-38).
        chosen = decision.ambiguous and not endpoint.bound and endpoint.route != decision.route
        if chosen or keys is not None:
            self._keep(broker, out, decision, address, keys)
            return False
        out.route.send_to(address)
        return True

    def is_named(self, broker: Broker, out: Outgoing) -> bool:
        """Return whether a route names both far service and far broker of a dialog (RTE-8)."""
        endpoint = out.live.endpoint
        far = endpoint.far_broker
        return far is not None and self._router.names(broker, endpoint.far_service, far)

    def delay(self, broker: Broker, out: Outgoing, decision: Delayed) -> None:
        """Record why a dialog has no address; it keeps its place and is retried (XMT-9)."""
        if out.route.delay(decision, self._clock.utc()):
            self._log.info(
                MESSAGE_CLASSIFY,
                subclass="delayed",
                broker=broker.name,
                conversation_id=show(out.live.endpoint.conversation_id),
                to_service=out.live.endpoint.far_service,
                reason=decision.reason,
            )
        self.delayed[out] = broker

    def changed(self) -> Affected:
        """Return the dialogs affected by routing changes since the last call (XMT-11)."""
        before, self._snapshot = self._snapshot, self._router.snapshot()
        return affected(before, self._snapshot)

    def expired(self) -> Affected:
        """Return the dialogs affected by routes that expired since the last call (XMT-9)."""
        since, self._looked_at = self._looked_at, self._clock.utc()
        return expired(self._snapshot, since, self._looked_at)

    def mirrored(self, pair: Pair) -> Affected:
        """Return the dialogs affected by mirrored routes to this pair of addresses (RTE-53)."""
        found = Affected()
        for broker_id, routes in self._snapshot.routes.items():
            for route in routes:
                if pair_of(route) == pair:
                    found.route(broker_id, route, self._snapshot.instance)
        return found

    def counts(self) -> dict[str, int]:
        """Return the number of delayed dialogs by status key (MON-9)."""
        counts: dict[str, int] = {}
        for out in self.delayed:
            status = out.route.status
            counts[status] = counts.get(status, 0) + 1
        return counts

    def _log_destination(
        self, broker: Broker, out: Outgoing, address: str, decision: Local | Remote
    ) -> None:
        endpoint = out.live.endpoint
        self._log.debug(
            MESSAGE_CLASSIFY,
            subclass="local" if address == HERE else "remote",
            broker=broker.name,
            conversation_id=show(endpoint.conversation_id),
            to_service=endpoint.far_service,
            next_address=address,
            origin="here",
            route=decision.route,
            step=decision.step,
        )

    def _secure(
        self, broker: Broker, out: Outgoing, decision: Local | Remote
    ) -> DialogKeys | SecurityOutcome | None:
        """Return the new keys of a dialog that leaves the instance for the first time (SEC-17).

        None: it needs none. An outcome: it was delayed, or ended with an error."""
        endpoint = out.live.endpoint
        if endpoint.security is not None:
            if self._security.load(out.live) is not None:
                return None
            self.delay(broker, out, Unsecured(Reason.NO_MASTER_KEY))
            return SecurityOutcome(Reason.NO_MASTER_KEY, "")
        if not isinstance(decision, Remote) or not endpoint.is_initiator:
            return None
        if (endpoint.bound or out.window.outstanding) and not endpoint.encryption:
            return None  # it has left in clear, and its kind never changes (SEC-20)
        if endpoint.bound:  # the target was in this instance, and is not any more
            text = "the dialog must be encrypted, and was begun inside the instance without keys"
            found: DialogKeys | SecurityOutcome | None = SecurityOutcome(
                Reason.NO_BINDING, text, NO_BINDING
            )
        else:
            found = self._security.begin(broker, endpoint)
        if not isinstance(found, SecurityOutcome):
            return found
        waits = None if found.code is None else self._asked_for(broker, endpoint, found)
        if found.code is None or waits is not None:
            why = (found.reason, found.text) if waits is None else (waits.reason, waits.detail)
            self.delay(broker, out, Unsecured(*why))
        else:
            self.delayed.pop(out, None)
            out.route.classified(decision)
            self._fail(broker, out, found, found.code)
        return found

    def _asked_for(
        self, broker: Broker, endpoint: DialogEndpoint, found: SecurityOutcome
    ) -> Delayed | None:
        """Return why a dialog waits for a binding that was asked for; None = it fails (SEC-15)."""
        if found.code != NO_BINDING or endpoint.bound:
            return None
        return self._router.request_binding(broker, endpoint.far_service)

    def _fail(self, broker: Broker, out: Outgoing, why: SecurityOutcome, code: int) -> None:
        """End, with an error, a dialog that must be encrypted and cannot be (SEC-14, SEC-15)."""
        now = self._clock.utc()
        out.route.explain(why.reason, out.live.endpoint.far_service, now)
        live = broker.endpoints.get(out.live.endpoint.key)
        if live is None:
            return  # the dialog has ended meanwhile
        changeset = Changeset(broker, now)
        changeset.step(live, dialog.FaultStruck(code, why.text))
        changeset.join(lambda: None)

    def _keep(
        self,
        broker: Broker,
        out: Outgoing,
        decision: Local | Remote,
        address: str,
        keys: DialogKeys | None,
    ) -> None:
        """Store the chosen route and the keys of a dialog before its first fragment leaves."""
        live = broker.endpoints.get(out.live.endpoint.key)
        if live is None:
            return  # the dialog has ended meanwhile
        changeset = Changeset(broker, self._clock.utc())
        chosen = live.endpoint
        if decision.ambiguous and not chosen.bound:
            chosen = msgspec.structs.replace(chosen, route=decision.route)
        if keys is not None:
            chosen = msgspec.structs.replace(chosen, security=self._security.secure(live, keys))
        changeset.apply(live, dialog.Step(chosen))
        out.route.storing_choice()
        changeset.join(partial(self._chosen, broker, out, decision, address))

    def _chosen(
        self, broker: Broker, out: Outgoing, decision: Local | Remote, address: str
    ) -> None:
        out.route.choice_stored()
        if out.live.gone:
            return
        if out.route.decision is decision:  # otherwise routing has changed meanwhile
            out.route.send_to(address)
        self._settled(broker, out)
