"""Desk: what one person may read and do, as the sections of the page ask for it (MON-44).

Reads:  the caller of a request.      Calls: sessions of the caller; the survey and the own doctor.
Never:  grants a right: views and verbs go through a session of the caller, and the survey is cut
        down to the brokers that the caller controls.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from brokerd.admin.doctor.own import Diagnosis
from brokerd.admin.views.survey import Survey
from brokerd.app.session import Session
from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.http.reads import Caller, Reads
from brokerd.model import MSDB
from brokerd.protocol import admin_verbs as admin
from brokerd.protocol import client_verbs as wire
from brokerd.telemetry.audit import Action

Row = dict[str, Any]
Query = Mapping[str, str]
"""The query of a request; a name that occurs twice has its first value."""
_OF_QUEUES: Final = admin.View("service_queues")


class Rows(msgspec.Struct, frozen=True):
    """A page of a view."""

    rows: list[Row]
    next: str | None = None


class Desk:
    """The view of one principal on the instance, for one request."""

    def __init__(self, reads: Reads, caller: Caller) -> None:
        self._reads = reads
        self.caller = caller

    @property
    def instance(self) -> str:
        """Name of the instance."""
        return self._reads.instance

    @property
    def now(self) -> Instant:
        """The time by the daemon's clock."""
        return self._reads.clock.utc()

    @property
    def brokers(self) -> list[str]:
        """Names of the open brokers that the caller controls, without `msdb`."""
        return [one for one in self._reads.brokers if self.caller.may(_OF_QUEUES, one)]

    @property
    def sees_all(self) -> bool:
        """Whether the caller controls the whole instance."""
        return self.caller.may(admin.View("grants"), MSDB) and self.brokers == self._reads.brokers

    def may(self, broker: str, verb: wire.Verb) -> bool:
        """Return whether the caller may use a verb in a broker."""
        return self.caller.may(verb, broker)

    async def session(self, broker: str) -> Session:
        """Return a session in a broker with the rights of the caller."""
        return await self.caller.session(broker)

    async def view(self, broker: str, name: str, **options: Any) -> Rows:  # noqa: ANN401
        """Return a page of a view; the options are those of `Session.view_page`.

        Raises `AccessDenied`, and `InvalidArgument` for a bad option."""
        page = await (await self.session(broker)).view_page(name, **options)
        return Rows(page.rows, page.next)

    async def survey(self) -> Survey:
        """Return the survey of the queues of the brokers that the caller controls.

        The totals are those of the whole instance; a caller with fewer brokers gets none."""
        survey = await self._reads.opened.surveys.survey()
        if self.sees_all:
            return survey
        brokers = set(self.brokers)
        worst = tuple(row for row in survey.worst if row.broker in brokers)
        return msgspec.structs.replace(
            survey,
            worst=worst,
            queues=len(worst),
            ready=sum(row.ready for row in worst),
            parked=sum(row.parked for row in worst),
            ill=sum(row.pain > 1 for row in worst),
            busy=sum(row.ready + row.parked > 0 for row in worst),
            oldest_ready_at=min(
                (row.oldest_ready_at for row in worst if row.oldest_ready_at), default=None
            ),
            samples=(),
        )

    async def diagnosis(self) -> Diagnosis | None:
        """Return what the doctor has found; None if the caller does not control everything."""
        return await self._reads.opened.doctor.diagnosis() if self.sees_all else None

    def look_again(self) -> None:
        """Have the survey and the diagnosis made anew: the caller has changed something."""
        self._reads.opened.surveys.expire()
        self._reads.opened.doctor.expire()

    def record(self, action: Action, subject: str, **detail: Any) -> None:  # noqa: ANN401
        """Record in the audit what the caller has seen or done here."""
        self._reads.opened.audit.record(action, actor=self.caller.name, subject=subject, **detail)


def broker_of(desk: Desk, query: Query) -> str:
    """Return the broker that a query names, or the first one.

    Raises `InvalidArgument` if the instance has no such broker, or the caller does not control it.
    """
    known, named = desk.brokers, query.get("broker", "")
    if named in known:
        return named
    if named or not known:
        raise InvalidArgument(
            f"you control no open broker {named[:64]!r}" if named else "you control no broker here",
            hint="an administrator can grant it: brokerd grant “control on BROKER to USER”",
        )
    return known[0]
