"""TRACE frames: a question that follows the routing of a service name, and its steps (NBT-7).

Reads:  nothing; values in, fields out, and back.    Calls: `protocol.wire`, `inquiry`.
Never:  routes; `delivery.peers.ping` does.
"""

from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from brokerd.ids import ID_SIZE
from brokerd.protocol.inquiry import Inquiry, fields_of_inquiry, inquiry_of
from brokerd.protocol.wire import MAX_NAME, MAX_TEXT

MOST_HOPS: Final = 10
"""Highest number of neighbours that pass a TRACE on in one direction (FWD-6)."""
MOST_STEPS: Final = 4 * MOST_HOPS
_FIELDS: Final = 9


class Leg(StrEnum):
    """Direction of a TRACE."""

    OUT = "out"
    """To the service, on the way of a first message."""
    BACK = "back"
    """From the service's broker to the requester, on the way of a reply."""
    TOLD_BACK = "told_back"
    """Report to the requester, back along the path of the BACK leg first."""
    TOLD_OUT = "told_out"
    """Report to the requester, back along the path of the OUT leg."""


class Step(Struct, frozen=True, gc=False):
    """Decision of one instance about a TRACE."""

    leg: str
    instance: str
    """Name of the instance that decided."""
    broker: str
    """Broker whose routing table was used; empty for the table of the instance."""
    outcome: str
    """The decision: local, remote, delayed, dropped or refused."""
    step: str
    """Matching step that found routes, 1 to 7; empty if none did."""
    route: str
    where: str
    """Address or broker that the TRACE goes to; empty if it goes no further."""
    reason: str
    """Key of the obstacle (XMT-19); empty if there is none."""
    detail: str


class Trace(Struct, frozen=True):
    """A question on its way, with the steps so far."""

    number: bytes
    """Sixteen bytes that the requester has drawn."""
    leg: Leg
    service: str
    broker_id: bytes
    """Broker of the service; empty if none was named, or none is known yet."""
    from_service: str
    from_broker: bytes
    hops: int
    """Number of neighbours that may still pass the TRACE on."""
    steps: tuple[Step, ...] = ()
    inquiry: Inquiry | None = None
    """The question about a dialog that this TRACE carries to the other side (MON-55)."""


def fields_of(trace: Trace) -> tuple[object, ...]:
    """Return the fields of a TRACE frame."""
    steps = tuple(
        (
            one.leg,
            one.instance,
            one.broker,
            one.outcome,
            one.step,
            one.route,
            one.where,
            one.reason,
            one.detail,
        )
        for one in trace.steps
    )
    names = (trace.service, trace.broker_id, trace.from_service, trace.from_broker)
    fields = (trace.number, trace.leg.value, *names, trace.hops, steps)
    if trace.inquiry is None:
        return fields
    return (*fields, fields_of_inquiry(trace.inquiry))  # an older daemon ignores it (BI-F5)


def trace_of(fields: tuple[Any, ...]) -> Trace:
    """Return the TRACE with these fields.

    Raises:
        ValueError, IndexError: malformed.
    """
    number, leg, service, broker_id, from_service, from_broker, hops, steps = fields[:8]
    if type(number) is not bytes or len(number) != ID_SIZE:
        raise ValueError("its number has sixteen bytes")
    if type(hops) is not int or not 0 <= hops <= MOST_HOPS:
        raise ValueError(f"hops are not within 0 to {MOST_HOPS}")
    if type(steps) is not tuple or len(steps) > MOST_STEPS:
        raise ValueError("steps are none, or too many")
    return Trace(
        number,
        Leg(_text(leg, MAX_NAME)),
        _text(service, MAX_NAME),
        _id(broker_id),
        _text(from_service, MAX_NAME),
        _id(from_broker),
        hops,
        tuple(_step(one) for one in steps),
        inquiry_of(fields[8]) if len(fields) > 8 and fields[8] is not None else None,  # noqa: PLR2004
    )


def _step(value: object) -> Step:
    if type(value) is not tuple or len(value) < _FIELDS:
        raise ValueError("a step has nine fields")
    texts = [_text(one, MAX_TEXT) for one in value[:_FIELDS]]
    leg, instance, broker, outcome, step, route, where, reason, detail = texts
    return Step(leg, instance, broker, outcome, step, route, where, reason, detail)


def _id(value: object) -> bytes:
    if type(value) is not bytes or len(value) not in (0, ID_SIZE):
        raise ValueError("an id has sixteen bytes, or none")
    return value


def _text(value: object, most: int) -> str:
    if type(value) is not str or len(value) > most:
        raise ValueError(f"a text is none, or longer than {most}")
    return value
