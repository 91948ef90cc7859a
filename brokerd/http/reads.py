"""Reads: what the routes of the HTTP listener read and do, as the principal that asks (MON-27).

Reads:  the parts of the instance, once its stores are open.      Calls: sessions in the process.
Never:  gives a route more rights than its caller has: views and verbs go through a session of the
        caller, so that the checks, the audit and the limits of clients apply to them.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from aiohttp import web

from brokerd.admin.doctor.own import OwnDoctor
from brokerd.admin.metrics_totals import Scrape
from brokerd.admin.views.state import StateReport
from brokerd.admin.views.survey import Surveys
from brokerd.app.session import Session
from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.errors import BrokerError
from brokerd.model import MSDB
from brokerd.protocol import client_verbs as wire
from brokerd.sessions.permissions import check
from brokerd.sessions.principals import Principals, Who
from brokerd.telemetry.audit import Audit


class Sources(msgspec.Struct, frozen=True):
    """The parts of an instance whose stores are open."""

    brokers: Mapping[str, Broker]
    principals: Principals
    state: StateReport
    surveys: Surveys
    doctor: OwnDoctor
    scrape: Scrape
    audit: Audit
    open_session: Callable[[str, Who], Awaitable[Session]]
    """Function that opens a session on a broker with the rights of a principal."""


class Reads:
    """The instance, as the routes see it."""

    def __init__(
        self, *, instance: str, version: str, condition: Callable[[], str], clock: Clock
    ) -> None:
        self.instance = instance
        """Name of the instance."""
        self.version = version
        self.clock = clock
        self._condition = condition
        self.sources: Sources | None = None
        """Set once the stores are open; until then only `/livez` and `/readyz` are answered."""

    @property
    def condition(self) -> str:
        """Return starting, ready, draining, stopped or failed."""
        return self._condition()

    @property
    def opened(self) -> Sources:
        """The parts of the instance; only for routes that wait until the stores are open."""
        assert self.sources is not None, "guard answers 503 before"
        return self.sources

    @property
    def brokers(self) -> list[str]:
        """Names of the open brokers, sorted, without `msdb`."""
        return sorted(name for name in self.opened.brokers if name != MSDB)


class Caller:
    """The principal that sent a request."""

    def __init__(self, who: Who, *, csrf: str, reads: Reads) -> None:
        self.who = who
        self.csrf = csrf
        """Value that a POST of this caller carries as header `X-Brokerd-CSRF`, or as the form
        field `csrf`."""
        self._reads = reads
        self._sessions: dict[str, Session] = {}

    @property
    def name(self) -> str:
        """Name of the principal, for display: a user, `client:NAME`."""
        return self.who.user

    async def session(self, broker: str = MSDB) -> Session:
        """Return a session on a broker, with the rights of the caller; it ends with the request.

        Raises:
            ObjectNotFound, BrokerUnavailable, Busy: as when a client connects.
        """
        there = self._sessions.get(broker)
        if there is None:
            there = self._sessions[broker] = await self._reads.opened.open_session(broker, self.who)
        return there

    def may(self, verb: wire.Verb, broker: str = MSDB) -> bool:
        """Return whether the caller may use a verb, such as `View("queues")`, in a session on a
        broker: what decides whether a page offers it. The session checks it again."""
        sources = self._reads.opened
        there, rights = sources.brokers.get(broker), sources.principals.rights(self.who.names)
        if there is None:
            return False
        if rights is None:
            return True
        try:
            check(rights, there, verb, self.name, sources.brokers)
        except BrokerError:
            return False
        return True

    async def close(self) -> None:
        """End the sessions of the request."""
        sessions, self._sessions = self._sessions, {}
        for one in sessions.values():
            await one.close()


CALLER: Final = web.RequestKey("caller", Caller)
"""Key of a request under which `guard` puts its caller; not there for a stranger."""


def caller_of(request: web.Request) -> Caller:
    """Return the principal that sent the request; raise `HTTPForbidden` for a stranger."""
    caller: Caller | None = request.get(CALLER)
    if caller is None:
        raise web.HTTPForbidden(text="nobody is known here: run `brokerd page` for an address\n")
    return caller
