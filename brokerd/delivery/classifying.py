"""Classifying dialogs: where each of them sends, or why it waits (XMT-5, XMT-6).

Reads: routing tables, by way of `routes.py`.      Calls: routes, broker.rounds.
Never: sends; the transmitter does, to the address that is found here.
"""

from __future__ import annotations

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.rounds import Round
from brokerd.broker.transmission import Outgoing
from brokerd.clock import Clock
from brokerd.delivery.routes import Router
from brokerd.protocol import dialog
from brokerd.routing.classify import Delayed, Local, Remote
from brokerd.routing.reasons import Reason

HERE = "LOCAL"
"""In place of an address: a broker of this instance."""
NO_BINDING = -9727
"""Encryption was asked for and nothing to encrypt with is set up (DLG-12, SEC-14)."""


class Classifying:
    """Gives dialogs their address, and keeps those that have none."""

    __slots__ = ("_clock", "_router", "delayed")

    def __init__(self, *, router: Router, clock: Clock) -> None:
        self._router = router
        self._clock = clock
        self.delayed: dict[Outgoing, Broker] = {}
        """Dialogs that wait for a route (XMT-6)."""

    def classified(self, broker: Broker, out: Outgoing) -> bool:
        """Whether it is known where this dialog sends; else it is delayed with a reason (XMT-6)."""
        endpoint = out.live.endpoint
        if out.address is not None:
            return True
        decision = self._router.outgoing(broker, endpoint, out)
        out.decision = decision
        if isinstance(decision, Delayed):
            self._explain(out, decision.reason, decision.detail)
            self.delayed[out] = broker
            return False
        self.delayed.pop(out, None)
        if isinstance(decision, Local):
            out.address = HERE
        elif isinstance(decision, Remote):
            if endpoint.encryption:
                self._fail(broker, out)
                return False
            out.address = decision.address
            if decision.ambiguous and not endpoint.bound and endpoint.route != decision.route:
                self._keep_choice(broker, out, decision.route)
        return True

    def counts(self) -> dict[str, int]:
        """Delayed dialogs by status key (MON-9)."""
        counts: dict[str, int] = {}
        for out in self.delayed:
            counts[out.status] = counts.get(out.status, 0) + 1
        return counts

    def _fail(self, broker: Broker, out: Outgoing) -> None:
        """It must be encrypted and cannot be: error it, never send in clear (DLG-12)."""
        text = "the dialog must be encrypted, and no dialog security is set up for this service"
        self._explain(out, Reason.NO_BINDING, out.live.endpoint.far_service)
        round_ = Round(broker, self._clock.utc())
        round_.step(out.live, dialog.FaultStruck(NO_BINDING, text))
        round_.join(lambda: None)

    def _keep_choice(self, broker: Broker, out: Outgoing, route: str) -> None:
        """Where there was a choice, it survives a restart (RTE-29)."""
        round_ = Round(broker, self._clock.utc())
        live = out.live
        chosen = msgspec.structs.replace(live.endpoint, route=route)
        round_.apply(live, dialog.Step(chosen))
        round_.join(lambda: None)

    def _explain(self, out: Outgoing, status: str, detail: str) -> None:
        if (out.status, out.detail) != (status, detail):
            out.status, out.detail, out.since = status, detail, self._clock.utc()
