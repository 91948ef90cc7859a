"""The checks of one service to another: faults that break, or would break, their dialogs (PBT-21).

PURE.   The declarations of both sides, and the result of a ping, in; findings out.
Reads:  the rows that `cli.doctor` has fetched.      Calls: nothing.
Never:  reports a fault twice: where the path ends, nothing beyond it is judged.
"""

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Final

import msgspec

from brokerd.admin.doctor.checks import (
    BrokerSeen,
    broker_endpoint,
    delivery,
    must_be_encrypted,
    not_read,
    parked_groups,
    stuck_dialogs,
    without_binding,
)
from brokerd.admin.doctor.findings import Finding, Row, error, info, problem, warning
from brokerd.client.admin import PingAnswer, PingStep
from brokerd.clock import Instant
from brokerd.routing.reasons import LACKING, DropReason, Reason, status_text

_MIRROR_MEND: Final = "brokerd destination ls; start one of the two instances"
_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    Reason.MIRROR_ERROR: ("D20", _MIRROR_MEND),
    Reason.MIRROR_INITIALISING: ("D20", _MIRROR_MEND),
    Reason.DUPLICATE_BROKER: ("D55", "brokerd doctor, there: it names the two, and the cure"),
    Reason.FORWARDING_DISABLED: ("D16", "brokerd endpoint alter forwarding=true, there"),
    DropReason.FORWARD_STORE_FULL: ("D17", "brokerd endpoint alter forward_size_mb=..., there"),
}
_OFF: Final = {Reason.SENDER_DISABLED, DropReason.BROKER_DISABLED}
_CONNECTING: Final = {Reason.DNS_FAILED: "D36", Reason.CONNECT_FAILED: "D37"}


class FarSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The instance that has the far service."""

    instance: str
    endpoint: Row | None = None


class PairSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides of present or future dialogs between two services."""

    from_service: str
    to_service: str
    contract: str
    mirror: str | None = None
    """The address where the far side's mirror is expected; None = none is expected."""
    source: BrokerSeen
    target: BrokerSeen | None = None
    """The broker that has the far service, if its daemon could be queried."""
    ping: PingAnswer | None = None
    not_pinged: str = ""
    """The reason why no ping was sent; "" if one was sent."""
    instance: str = ""
    """Name of the near instance, whose daemon was queried."""
    endpoint: Row | None = None
    """The broker endpoint of the near instance."""
    far: FarSeen | None = None
    """The far instance, if it has the far service and could be queried."""
    destinations: list[Row] = []


class ServiceSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One service, and its broker."""

    service: str
    contract: str | None = None
    """The contract that the service should accept; None = any."""
    broker: BrokerSeen
    """The service's broker, with only the service's own parked groups and stuck messages."""
    known: list[Row] = []
    """The broker's row of the view `brokers`."""
    parked: int = 0
    """Number of parked groups in the queue of the service."""
    now: Instant = Instant(0)


def examine_service(seen: ServiceSeen) -> Iterator[Finding]:
    """Yield faults that keep a service from being reached or read, or its messages from leaving."""
    broker, service, contract = seen.broker, seen.service, seen.contract
    of = quote(broker.name)
    yield from delivery(seen.known)
    if _row(broker.services, service) is None:
        yield _absent(broker, service)
        return
    yield from _queue(broker, service)
    accepted = _accepted(broker, service)
    if contract is not None and _row(broker.contracts, contract) is None:
        text, mend = "there is no such contract", f"brokerd contract create {quote(contract)}"
        about = f"contract {contract} of broker {broker.name}"
        yield error("D07", about, text, f"{mend} --broker {of}")
    elif contract is not None and contract not in accepted:
        yield _unaccepted(broker, service, contract, accepted)
    elif not accepted:
        text = "it accepts no contract, so dialogs can begin there and none can be begun to it"
        mend = f"brokerd service alter {quote(service)} contracts=DEFAULT --broker {of}"
        yield info("D07", f"service {service} of broker {broker.name}", text, mend)
    yield from parked_groups(broker, seen.parked)
    yield from stuck_dialogs(broker, seen.now)


def examine_pair(pair: PairSeen) -> Iterator[Finding]:
    """Yield the faults in the declarations of both sides, then those on the path out and back."""
    declared = [*_source(pair), *(_target(pair, pair.target) if pair.target is not None else ())]
    declared += _mirrored(pair)
    yield from declared
    if any(one.code in ("D05", "D01") for one in declared):
        return  # no dialog can begin, or arrive
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
    service = pair.to_service
    if _row(target.services, service) is None:
        yield _absent(target, service)
        return
    yield from _queue(target, service)
    accepted = _accepted(target, service)
    if pair.contract not in accepted:
        yield _unaccepted(target, service, pair.contract, accepted)
        return
    if target.name != pair.source.name or target != pair.source:
        yield from _contract(pair, target)


def _absent(broker: BrokerSeen, service: str) -> Finding:
    near = _near(service, (str(row["name"]) for row in broker.services))
    text = f"broker {broker.name} has no such service{near}"
    mend = f"brokerd service create {quote(service)} queue=QUEUE --broker {quote(broker.name)}"
    return error("D05", f"service {service}", text, mend)


def _accepted(broker: BrokerSeen, service: str) -> set[str]:
    """Return the contracts of which a service is a target."""
    return {
        str(row["service_contract_id"]) for row in broker.usages if row["service_id"] == service
    }


def _unaccepted(broker: BrokerSeen, service: str, contract: str, accepted: set[str]) -> Finding:
    text = f"it is no target for contract {contract}, only for "
    text += ", ".join(sorted(accepted)) or "none"
    named = quote(",".join(sorted({*accepted, contract})))
    mend = f"brokerd service alter {quote(service)} contracts={named} --broker {quote(broker.name)}"
    return error("D07", f"service {service} of broker {broker.name}", text, mend)


def _queue(broker: BrokerSeen, service: str) -> Iterator[Finding]:
    row = _row(broker.services, service)
    queue = None if row is None else _row(broker.queues, str(row["service_queue_id"]))
    if queue is None:
        return
    if queue["is_enqueue_enabled"] and queue["is_receive_enabled"]:
        if why_not := broker.readers.get(str(queue["name"])):
            yield not_read(broker.name, str(queue["name"]), why_not)
        if queue.get("is_full"):
            name, of = quote(str(queue["name"])), quote(broker.name)
            text = f"it is full, with {queue['ready_count']} messages that can be received"
            mend = f"brokerd queue show {name} --broker {of}; then receive, or raise its limit"
            yield warning("D74", f"queue {queue['name']} of broker {broker.name}", text, mend)
        return
    why = queue["status_reason"] or "no reason is known"
    of = quote(broker.name)
    mend = f"brokerd queue alter {quote(str(queue['name']))} status=on --broker {of}"
    about = f"queue {queue['name']} of broker {broker.name}"
    yield error("D06", about, f"it is off, for service {service} as well: {why}", mend)


def _contract(pair: PairSeen, target: BrokerSeen) -> Iterator[Finding]:
    """Yield a finding if both sides declare the contract, or a type of it, differently."""
    about = f"contract {pair.contract}"
    here, there = _types(pair.source, pair.contract), _types(target, pair.contract)
    if not here:
        return  # it is missing, which is reported already
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


# The path of messages.


def _mirrored(pair: PairSeen) -> Iterator[Finding]:
    """Yield a finding if no route to the service has the expected mirror (D18)."""
    routes = [one for one in pair.source.routes if one["remote_service_name"] == pair.to_service]
    if pair.mirror is None or any(
        pair.mirror in (one["address"], one["mirror_address"]) and one["mirror_address"]
        for one in routes
    ):
        return
    named = quote(str(routes[0]["name"])) if routes else "NAME"
    text = f"no route to {pair.to_service} has {pair.mirror} and another address (RTE-50)"
    mend = f"brokerd route alter {named} mirror={quote(pair.mirror)} "
    mend += f"--broker {quote(pair.source.name)}"
    yield error("D18", f"the routes of broker {pair.source.name}", text, mend)


# Checked from near to far: the endpoints, then the step at which the ping stopped, then the
# connection at its last step. The first fault found hides those behind it.
def _way(pair: PairSeen, ping: PingAnswer) -> Iterator[Finding]:
    leaves = any((one.leg, one.outcome) == ("out", "remote") for one in ping.steps)
    bare = without_binding(pair.source, [pair.to_service])
    if leaves and bare and pair.source.default_encryption:
        yield error("D28", *must_be_encrypted(pair.source, bare))
    if ping.is_complete:
        return
    unusable = list(_endpoints(pair, ping))
    yield from unusable
    if unusable:
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
    mend = f"brokerd destination retry {quote(last.where)}"
    if reason == Reason.AUTH_FAILED:  # no attempt helps before each knows the other
        mend = "brokerd peer pair"
    yield error(code, about, str(text), mend)


def _endpoints(pair: PairSeen, ping: PingAnswer) -> Iterator[Finding]:
    """Yield faults of both broker endpoints, if the path leads to another instance (D21 to D24)."""
    remote = [one for one in ping.steps if one.outcome == "remote"]
    if pair.far is not None or remote:
        yield from broker_endpoint(pair.endpoint, pair.instance, is_needed=True)
    if pair.far is None:
        return
    yield from broker_endpoint(pair.far.endpoint, pair.far.instance, is_needed=True)
    last = ping.steps[-1] if ping.steps else None
    if pair.far.endpoint is None or last is None or (last.leg, last.outcome) != ("out", "remote"):
        return
    listens = pair.far.endpoint["listener_address"]
    ports = {str(pair.far.endpoint["port"]), *(one.rpartition(":")[2] for one in listens)}
    if last.where.rpartition(":")[2] not in ports:
        text = f"the way leads there, and instance {pair.far.instance} listens at "
        text += ", ".join(map(str, listens))
        mend = f"brokerd route alter {quote(last.route or 'NAME')} address=..., unless a gateway "
        mend += "there passes it on"
        yield error("D24", f"address {last.where}", text, mend)


def _stopped(pair: PairSeen, step: PingStep) -> Finding:
    # The reason of the step chooses the cure: each is repaired elsewhere, by another command.
    """Return the finding for the step at which the path ends."""
    back = step.leg == "back"
    service = pair.from_service if back else pair.to_service
    where = f"broker {step.broker}" if step.broker else f"instance {step.instance}"
    text = status_text(step.reason) + (f": {step.detail}" if step.detail else "")
    about = f"the way {'back to' if back else 'to'} {service}, at {where}"
    if step.reason == DropReason.HOPS_EXHAUSTED and (circle := _circle(pair, step)):
        mend = "brokerd instance-route alter or drop one of its routes, so that the way ends"
        return error("D15", about, f"it goes in a circle: {circle}", mend)
    of = f" --broker {quote(step.broker)}" if step.broker else ""
    noun = "route" if step.broker else "instance-route"
    create = f"brokerd {noun} create NAME service={quote(service)} address=TCP://HOST:PORT{of}"
    if step.reason == DropReason.SERVICE_NOT_IN_BROKER:
        code = "D05"
        about = f"broker {step.where}"
        mend = f"brokerd service create {quote(service)} queue=QUEUE --broker {quote(step.where)}"
        if step.route:
            mend += f"; or brokerd {noun} alter {quote(step.route)} broker=ID{of}"
    elif step.reason in _OFF:
        code, mend = "D02", f"brokerd broker enable {quote(step.broker or 'NAME')}"
    elif step.reason in _ELSEWHERE:
        code, mend = _ELSEWHERE[step.reason]
    elif step.reason not in LACKING or not step.broker:
        code, mend = "D15", create
    elif back:
        code, mend = "D13", create
    else:
        return _no_way(pair, about, text, create, of)
    return error(code, about, text, mend)


def _circle(pair: PairSeen, last: PingStep) -> str:
    """Return the instances of a path that is a loop; "" if the path is only long."""
    steps = pair.ping.steps if pair.ping is not None else ()
    names = [one.instance for one in steps if one.leg == last.leg]
    for at, name in enumerate(names):
        if name in names[at + 1 :]:
            return " -> ".join(names[at : names.index(name, at + 1) + 1])
    return ""


def _no_way(pair: PairSeen, about: str, text: str, create: str, of: str) -> Finding:
    """Return why no route leads to the service: expired, or declared for a similar name."""
    service = pair.to_service
    for route in pair.source.routes:
        if route["remote_service_name"] == service and route["is_expired"]:
            name = str(route["name"])
            mend = f"brokerd route alter {quote(name)} lifetime=7d{of}"
            return error("D11", about, f"route {name} to it has expired", mend)
    near = _near(service, (str(one["remote_service_name"]) for one in pair.source.routes))
    return error("D12" if near else "D10", about, text + near, create)


def _near(name: str, others: Iterator[str]) -> str:
    """Return a hint that names the similar name, one that differs only in case or blanks (NBT-19).

    "" if no other name is similar."""
    alike = [one for one in others if one != name and _plain(one) == _plain(name)]
    return f"; perhaps {alike[0]!r} is meant" if alike else ""


def _plain(name: str) -> str:
    return name.strip().casefold()


def _row(rows: list[Row], name: str) -> Row | None:
    return next((row for row in rows if row["name"] == name), None)
