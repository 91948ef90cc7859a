"""One service to another: what keeps, or would keep, a dialog between them from working (PBT-21).

PURE.   What was declared at both sides, and how a ping went, in; findings out.
Reads:  what `cli.doctor` has fetched.      Calls: nothing.
Never:  finds the same twice: where the way ends, what lies behind it is not judged.
"""

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Final

import msgspec

from brokerd.admin.examining import BrokerSeen
from brokerd.admin.findings import Finding, Row, error, problem
from brokerd.client.admin import PingAnswer, PingStep
from brokerd.routing.reasons import DropReason, Reason, status_text

_LACKING: Final = {Reason.NO_ROUTE, Reason.LOCAL_SERVICE_MISSING, Reason.BCN_PENDING,
                   Reason.BCN_FAILED, Reason.BROKER_NOT_HERE, Reason.INVALID_ADDRESS}  # fmt: skip
_MIRROR_MEND: Final = "brokerd destination ls; start one of the two instances"
_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    Reason.MIRROR_ERROR: ("D20", _MIRROR_MEND),
    Reason.MIRROR_INITIALISING: ("D20", _MIRROR_MEND),
    Reason.FORWARDING_DISABLED: ("D16", "brokerd endpoint alter forwarding=true, there"),
    DropReason.FORWARD_STORE_FULL: ("D17", "brokerd endpoint alter forward_size_mb=..., there"),
}
_OFF: Final = {Reason.SENDER_DISABLED, DropReason.BROKER_DISABLED}
_CONNECTING: Final = {Reason.DNS_FAILED: "D36", Reason.CONNECT_FAILED: "D37"}


class PairSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides of dialogs that are, or would be, between two services."""

    from_service: str
    to_service: str
    contract: str
    source: BrokerSeen
    target: BrokerSeen | None = None
    """The broker that has the other service, if it could be asked."""
    ping: PingAnswer | None = None
    not_pinged: str = ""
    """Why there was no ping, if there was none."""
    instance: str = ""
    """Name of the instance that was asked."""
    destinations: list[Row] = []


def examine_pair(pair: PairSeen) -> Iterator[Finding]:
    """What is declared, at both sides; then the way there and back."""
    declared = [*_source(pair), *(_target(pair, pair.target) if pair.target is not None else ())]
    yield from declared
    if any(one.code in ("D05", "D01") for one in declared):
        return  # nowhere to begin, or to arrive
    if pair.ping is None:
        yield problem("D38", f"the way to {pair.to_service}", pair.not_pinged, "brokerd ping")
        return
    yield from _way(pair, pair.ping)


def _source(pair: PairSeen) -> Iterator[Finding]:
    broker, of = pair.source, quote(pair.source.name)
    if _row(broker.services, pair.from_service) is None:
        text = f"broker {broker.name} has no such service, so nothing can begin, or be answered"
        mend = f"brokerd service create {quote(pair.from_service)} queue=QUEUE --broker {of}"
        yield error("D05", f"service {pair.from_service}", text, mend)
        return
    if _row(broker.contracts, pair.contract) is None:
        text = f"broker {broker.name}, where dialogs begin, has no such contract"
        mend = f"brokerd contract create {quote(pair.contract)} --broker {of}"
        yield error("D07", f"contract {pair.contract}", text, mend)
    yield from _queue(broker, pair.from_service)


def _target(pair: PairSeen, target: BrokerSeen) -> Iterator[Finding]:
    service, of = pair.to_service, quote(target.name)
    if _row(target.services, service) is None:
        near = _near(service, (str(row["name"]) for row in target.services))
        text = f"broker {target.name} has no such service{near}"
        mend = f"brokerd service create {quote(service)} queue=QUEUE --broker {of}"
        yield error("D05", f"service {service}", text, mend)
        return
    yield from _queue(target, service)
    accepted = {row["service_contract_id"] for row in target.usages if row["service_id"] == service}
    if pair.contract not in accepted:
        text = f"it is no target for contract {pair.contract}, only for "
        text += ", ".join(sorted(map(str, accepted))) or "none"
        named = ",".join(sorted({*map(str, accepted), pair.contract}))
        mend = f"brokerd service alter {quote(service)} contracts={quote(named)} --broker {of}"
        yield error("D07", f"service {service} of broker {target.name}", text, mend)
        return
    if target.name != pair.source.name or target != pair.source:
        yield from _contract(pair, target)


def _queue(broker: BrokerSeen, service: str) -> Iterator[Finding]:
    row = _row(broker.services, service)
    queue = None if row is None else _row(broker.queues, str(row["service_queue_id"]))
    if queue is None or (queue["is_enqueue_enabled"] and queue["is_receive_enabled"]):
        return
    why = queue["status_reason"] or "no reason is known"
    of = quote(broker.name)
    mend = f"brokerd queue alter {quote(str(queue['name']))} status=on --broker {of}"
    about = f"queue {queue['name']} of broker {broker.name}"
    yield error("D06", about, f"it is off, for service {service} as well: {why}", mend)


def _contract(pair: PairSeen, target: BrokerSeen) -> Iterator[Finding]:
    """The same contract must mean the same at both sides."""
    about = f"contract {pair.contract}"
    here, there = _types(pair.source, pair.contract), _types(target, pair.contract)
    if not here:
        return  # it is missing, which is said already
    if here != there:
        unlike = sorted({name for name, _ in {*here.items()} ^ {*there.items()}})
        text = f"{pair.source.name} and {target.name} do not mean the same by {', '.join(unlike)}"
        mend = "brokerd contract show at both sides; give the new one a name of its own"
        yield error("D08", about, text, mend)
        return
    for name in sorted(here):
        mine, theirs = _row(pair.source.message_types, name), _row(target.message_types, name)
        ours, others = (one and one["validation_desc"] for one in (mine, theirs))
        if ours != others:
            text = f"it is checked as {ours} at {pair.source.name}, as {others} at {target.name}"
            mend = f"brokerd message-type alter {quote(name)} validation=... at one side"
            yield error("D09", f"message type {name}", text, mend)


def _types(broker: BrokerSeen, contract: str) -> Mapping[str, tuple[bool, bool]]:
    return {
        str(row["message_type_id"]): (row["is_sent_by_initiator"], row["is_sent_by_target"])
        for row in broker.message_usages
        if row["service_contract_id"] == contract
    }


# The way.


def _way(pair: PairSeen, ping: PingAnswer) -> Iterator[Finding]:
    if ping.is_complete:
        return
    stopped = [one for one in ping.steps if one.outcome not in ("local", "remote")]
    if stopped:
        yield _stopped(pair, stopped[-1])
        return
    last = ping.steps[-1]
    row = next((one for one in pair.destinations if one["address"] == last.where), None)
    about = f"destination {last.where}"
    if last.instance != pair.instance or row is None:
        text = f"nothing was heard of a ping within {ping.seconds:.1f} s, after {last.instance}"
        yield error("D38", about, text, f"brokerd ping {quote(pair.to_service)}")
        return
    reason = str(row["status_key"] or "")
    code = _CONNECTING.get(Reason(reason), "D38") if reason in set(Reason) else "D38"
    text = row["last_error"] or f"it does not answer within {ping.seconds:.1f} s"
    yield error(code, about, str(text), f"brokerd destination retry {quote(last.where)}")


def _stopped(pair: PairSeen, step: PingStep) -> Finding:
    """The step at which the way ends."""
    back = step.leg == "back"
    service = pair.from_service if back else pair.to_service
    where = f"broker {step.broker}" if step.broker else f"instance {step.instance}"
    text = status_text(step.reason) + (f": {step.detail}" if step.detail else "")
    about = f"the way {'back to' if back else 'to'} {service}, at {where}"
    of = f" --broker {quote(step.broker)}" if step.broker else ""
    noun = "route" if step.broker else "instance-route"
    create = f"brokerd {noun} create NAME service={quote(service)} address=TCP://HOST:PORT{of}"
    if step.reason in _OFF:
        code, mend = "D02", f"brokerd broker enable {quote(step.broker or 'NAME')}"
    elif step.reason in _ELSEWHERE:
        code, mend = _ELSEWHERE[step.reason]
    elif step.reason not in _LACKING or not step.broker:
        code, mend = "D15", create
    elif back:
        code, mend = "D13", create
    else:
        return _no_way(pair, about, text, create, of)
    return error(code, about, text, mend)


def _no_way(pair: PairSeen, about: str, text: str, create: str, of: str) -> Finding:
    """No route to the service: because one has expired, or is for a name that looks the same."""
    service = pair.to_service
    for route in pair.source.routes:
        if route["remote_service_name"] == service and route["is_expired"]:
            name = str(route["name"])
            mend = f"brokerd route alter {quote(name)} lifetime=7d{of}"
            return error("D11", about, f"route {name} to it has expired", mend)
    near = _near(service, (str(one["remote_service_name"]) for one in pair.source.routes))
    return error("D12" if near else "D10", about, text + near, create)


def _near(name: str, others: Iterator[str]) -> str:
    """One that differs in case or in blanks only (NBT-19)."""
    alike = [one for one in others if one != name and _plain(one) == _plain(name)]
    return f"; perhaps {alike[0]!r} is meant" if alike else ""


def _plain(name: str) -> str:
    return name.strip().casefold()


def _row(rows: list[Row], name: str) -> Row | None:
    return next((row for row in rows if row["name"] == name), None)
