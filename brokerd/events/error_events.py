"""Error events: the latest errors of dialogs, for operators of an instance (MON-20, VIEW-16).

Reads:  lines of the log, except those of level debug.      Calls: the clock.
Never:  keeps more than `KEPT` lines that name a dialog, or `KEPT_REFUSALS` kinds of other refusals
        or of refused logins.
"""

from collections import deque
from typing import Final, NamedTuple

from brokerd.clock import SECOND, Clock, Instant
from brokerd.ids import parse, show
from brokerd.protocol.connection_effects import LoginOutcome
from brokerd.protocol.dialog import PEER_GONE
from brokerd.security.grants import PUBLIC
from brokerd.telemetry import logs
from brokerd.telemetry.status import FailedDialogs, RefusedLogins

KEPT: Final = 1_000
KEPT_REFUSALS: Final = 100
RECENT: Final = 3600 * SECOND
"""Microseconds after which another refused login is not counted with the ones before it."""
MOST_FAILURES: Final = 20
"""Largest number of kinds of failures that are reported (MON-72)."""
_CLASSES: Final = frozenset(
    {
        logs.CONVERSATION,
        logs.MESSAGE_CLASSIFY,
        logs.MESSAGE_UNDELIVERABLE,
        logs.TRANSMISSION,
        logs.LOST_MESSAGES,
        logs.HISTORY_LOST,
        logs.AUDIT_CONVERSATION,
    }
)
"""Log classes in which every line above level debug reports a problem."""


class _Event(NamedTuple):
    """One error event, with the fields of its line."""

    number: int
    at: Instant
    event: str
    fields: dict[str, object]

    @property
    def is_broker_error(self) -> bool:
        """Whether a broker ended the dialog with an error.

        A message to a side that has ended already is not counted: programs may cross."""
        code = self.fields.get("code")
        return type(code) is int and code < 0 and code != PEER_GONE

    @property
    def is_refusal(self) -> bool:
        """Whether a message for this instance was refused."""
        is_refused = self.fields.get("dropped_as") == "refused"
        return is_refused or self.event == logs.AUDIT_CONVERSATION

    @property
    def row(self) -> dict[str, object]:
        """The row of the view; a field that the line lacked is None."""
        fields = self.fields
        return {
            "number": self.number,
            "at": self.at,
            "event": self.event,
            "subclass": fields.get("subclass"),
            "broker_name": fields.get("broker"),
            "conversation_id": show(parse(str(fields["conversation_id"]))),
            "conversation_handle": fields.get("handle"),
            "conversation_group_id": fields.get("group"),
            "is_initiator": _IS_INITIATOR.get(fields.get("role")),
            "service_name": fields.get("service"),
            "far_service": fields.get("far_service"),
            "service_contract_name": fields.get("contract"),
            "code": fields.get("code"),
            "reason": fields.get("reason") or fields.get("description"),
        }


class ErrorEvents:
    """The latest error events of all brokers of an instance."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._number = 0
        self._kept: deque[_Event] = deque(maxlen=KEPT)
        self._refusals: dict[tuple[str, str], FailedDialogs] = {}
        # Refused messages whose lines name no dialog, by broker and reason; the oldest kind first.
        self._logins: dict[tuple[str, object], RefusedLogins] = {}
        # Logins that were refused, by principal or address and outcome; the oldest kind first.

    def record(self, event: str, fields: dict[str, object]) -> None:
        """Keep a line of the log, if it is an error event."""
        if event in _CLASSES and "conversation_id" in fields:
            self._number += 1
            self._kept.append(_Event(self._number, self._clock.utc(), event, fields))
        elif event == logs.AUDIT_CONVERSATION:
            self._count_refusal(fields)
        elif event == logs.AUDIT_LOGIN and fields.get("is_accept"):
            self._count_login(fields)

    def rows(self) -> list[dict[str, object]]:
        """Return the rows of the view, the oldest first; a field that the line lacked is None."""
        return [one.row for one in self._kept]

    def failed_since(self, since: Instant) -> list[FailedDialogs]:
        """Return the failures since an instant by kind, the most frequent first (MON-72).

        A failure is an error that a broker found, in a dialog of this instance or a message for it.
        What programs end with an error of their own is none, nor what an administrator ended."""
        found: dict[tuple[object, ...], FailedDialogs] = {}
        dialogs: dict[tuple[object, ...], set[object]] = {}
        recent = [one for one in self._kept if one.at >= since]
        explained = {one.row["conversation_id"] for one in recent if one.is_broker_error}
        for one in recent:
            row = one.row
            is_refusal = one.is_refusal and row["conversation_id"] not in explained
            if not (one.is_broker_error or is_refusal):
                continue
            code = row["code"] if type(row["code"]) is int and one.is_broker_error else 0
            broker, service, far_service, contract = (str(row[name] or "") for name in _NAMES)
            kind = (broker, service, far_service, contract, code or row["reason"])
            dialogs.setdefault(kind, set()).add(row["conversation_id"])
            found[kind] = FailedDialogs(
                broker=broker,
                service=service,
                far_service=far_service,
                contract=contract,
                code=code,
                reason=str(row["reason"] or row["subclass"] or ""),
                count=len(dialogs[kind]),
                last_at=one.at,
                example=str(row["conversation_id"]),
                is_initiator=row["is_initiator"] if type(row["is_initiator"]) is bool else None,
            )
        rows = [*found.values(), *(one for one in self._refusals.values() if one.last_at >= since)]
        return sorted(rows, key=lambda one: -one.count)[:MOST_FAILURES]

    def refused_logins_since(self, since: Instant) -> list[RefusedLogins]:
        """Return the logins of peers that were refused since an instant, the latest first."""
        recent = [one for one in self._logins.values() if one.last_at >= since]
        return sorted(recent, key=lambda one: -one.last_at)[:MOST_FAILURES]

    def _count_login(self, fields: dict[str, object]) -> None:
        """Count a login at this instance's endpoint that was refused."""
        outcome = fields.get("subclass")
        if outcome == LoginOutcome.SUCCESS:
            return
        now, who = self._clock.utc(), str(fields.get("principal") or PUBLIC)
        if who == PUBLIC:  # its port is another one each time
            who = str(fields.get("remote") or "").rpartition(":")[0]
        before = self._logins.pop((who, outcome), None)
        if before is not None and now - before.last_at > RECENT:
            before = None
        if before is None and len(self._logins) >= KEPT_REFUSALS:
            del self._logins[next(iter(self._logins))]
        self._logins[who, outcome] = RefusedLogins(
            who=who,
            reason=str(fields.get("error") or outcome),
            count=1 if before is None else before.count + 1,
            first_at=now if before is None else before.first_at,
            last_at=now,
        )

    def _count_refusal(self, fields: dict[str, object]) -> None:
        """Count a refused message that began no dialog here.

        The sender draws the name of its own service, so the kind does not depend on it."""
        broker, reason = str(fields.get("broker") or ""), str(fields.get("reason") or "")
        before = self._refusals.pop((broker, reason), None)
        if before is None and len(self._refusals) >= KEPT_REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[broker, reason] = FailedDialogs(
            broker=broker,
            service=str(fields.get("to_service") or ""),
            far_service=str(fields.get("from_service") or ""),
            reason=reason,
            count=1 if before is None else before.count + 1,
            is_of_dialogs=False,
            last_at=self._clock.utc(),
            is_initiator=False,
            principal=str(fields.get("principal") or ""),
        )


_NAMES: Final = ("broker_name", "service_name", "far_service", "service_contract_name")
_IS_INITIATOR: Final[dict[object, bool]] = {"initiator": True, "target": False}
