"""Requests for routes: which of them are open, have failed, or are due again. PURE.

Reads:  nothing.      Calls: nothing.
Never:  sends a request; `requester.py` does, as decided here.
"""

from enum import StrEnum
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

import msgspec

from brokerd.ids import BrokerId, show
from brokerd.routing.reasons import Reason

MOST_OPEN: Final = 100
"""Number of requests open at a time in one instance; others wait for their turn (BCN-8)."""
MOST_KNOWN: Final = 10_000
"""Number of known requests at which no new one is added (XMT-10)."""
UNUSED: Final = 300.0
"""Seconds after which a request that was not needed again is discarded (XMT-10)."""


class Form(StrEnum):
    """Format of the body of a request (BCN-15)."""

    XML = "xml"
    JSON = "json"


class Key(NamedTuple):
    """Identity of a request; at most one request per key is open at a time (BCN-8)."""

    broker: str
    """Name of the broker whose routes lack the service."""
    service: str
    broker_id: BrokerId | None
    """Id of the far broker; None = the dialog names none."""
    is_binding: bool = False
    """Whether a remote service binding is requested, not a route (BCN-4)."""


class _Request(msgspec.Struct):
    is_open: bool
    failed: bool = False
    """Whether the last request ended with an error, or without an answer (BCN-7, BCN-10)."""
    wanted: bool = False
    """Whether a dialog needed the route after the request ended, or before it could be opened."""
    asked: bool = True
    """Whether the request was ever open; if not, it is opened as soon as there is room."""
    needed_at: float = 0.0


class Requests:
    """The requests of one instance. Times are monotonic seconds."""

    def __init__(self, *, most_open: int = MOST_OPEN, most_known: int = MOST_KNOWN) -> None:
        self._most_open = most_open
        self._most_known = most_known
        self._known: dict[Key, _Request] = {}
        self._open = 0

    def __len__(self) -> int:
        return len(self._known)

    def missing(self, key: Key, now: float) -> bool:
        """Record that a route is missing; return whether to open its first request now (BCN-9)."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._most_known:
                return False
            now_open = self._open < self._most_open
            self._open += now_open
            self._known[key] = _Request(
                now_open, wanted=not now_open, asked=now_open, needed_at=now
            )
            return now_open
        known.needed_at = now
        known.wanted = known.wanted or not known.is_open
        return False

    def reason(self, key: Key) -> Reason:
        """Return the reason why dialogs that need the route wait (RTE-12, BCN-7)."""
        known = self._known.get(key)
        failed = known is not None and known.failed and not known.is_open
        return Reason.BCN_FAILED if failed else Reason.BCN_PENDING

    def waits_for_others(self, key: Key) -> bool:
        """Return whether the request was never open, because too many others are open."""
        known = self._known.get(key)
        return known is None or not known.asked

    def ended(self, key: Key, *, failed: bool) -> None:
        """Record the end of a request dialog; only an end without an error is a success."""
        known = self._known.get(key)
        if known is not None:
            self._open -= known.is_open
            known.is_open, known.failed, known.wanted = False, failed, False

    def next(self) -> list[Key]:
        """Open the requests that have waited for others, up to the limit; return these requests."""
        return self._open_first([key for key, one in self._known.items() if not one.asked])

    def due(self, now: float) -> list[Key]:
        """Reopen and return the requests for routes that are still missing (BCN-7, BCN-9, BCN-11).

        Discard requests that were not needed for `UNUSED` seconds."""
        missed = [key for key, one in self._known.items() if one.wanted and not one.is_open]
        again = self._open_first(missed)
        old = [
            key
            for key, one in self._known.items()
            if not one.is_open and one.needed_at <= now - UNUSED
        ]
        for key in old:
            del self._known[key]
        return again

    def _open_first(self, wanted: list[Key]) -> list[Key]:
        opened = wanted[: self._most_open - self._open]
        for key in opened:
            one = self._known[key]
            one.is_open, one.wanted, one.asked = True, False, True
        self._open += len(opened)
        return opened


def body_of(key: Key, form: Form) -> bytes:
    """Return the body of a MissingRoute or MissingRemoteServiceBinding (BCN-3, BCN-4, BCN-15)."""
    tag = "MissingRemoteServiceBinding" if key.is_binding else "MissingRoute"
    return _body(tag, form, key.service, key.broker_id, {})


def failed_body_of(
    service: str, broker_id: BrokerId | None, route: str, address: str, form: Form
) -> bytes:
    """Return the body of a FailedRoute, with the route that has failed (BCN-5, BCN-15)."""
    return _body("FailedRoute", form, service, broker_id, {"route_name": route, "address": address})


def _body(
    tag: str, form: Form, service: str, broker_id: BrokerId | None, more: dict[str, str]
) -> bytes:
    named = "" if broker_id is None else show(broker_id)
    fields = {"service_name": service, "broker_instance": named, **more}
    given = {name: value for name, value in fields.items() if value}
    if form is Form.JSON:
        return msgspec.json.encode(given)
    elements = (
        f"<{name.upper()}>{escape(value)}</{name.upper()}>" for name, value in given.items()
    )
    return f"<{tag}>{''.join(elements)}</{tag}>".encode()
