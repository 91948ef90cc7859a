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
    broker_endpoint,
    delivery,
    must_be_encrypted,
    without_binding,
)
from brokerd.admin.doctor.findings import Finding, Row, error, info, problem
from brokerd.admin.doctor.message_checks import failed_dialogs, held_up, stuck_dialogs
from brokerd.admin.doctor.queue_checks import examine_queue, parked_groups
from brokerd.admin.doctor.seen import BrokerSeen
from brokerd.client.admin_answers import PingAnswer, PingStep
from brokerd.clock import Instant
from brokerd.routing.reasons import LACKING, DropReason, Reason, status_text
from brokerd.telemetry.status import DestinationStatus, FailedDialogs, unsent

_MIRROR_MEND: Final = ("start one of the two instances:", "brokerd destination ls")
_ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    Reason.MIRROR_ERROR: ("D20", *_MIRROR_MEND),
    Reason.MIRROR_INITIALISING: ("D20", *_MIRROR_MEND),
    Reason.DUPLICATE_BROKER: ("D55", "brokerd doctor, there: it names the two, and the cure"),
    Reason.FORWARDING_DISABLED: ("D16", "there: brokerd endpoint alter forwarding=true"),
    DropReason.FORWARD_STORE_FULL: ("D17", "there: brokerd endpoint alter forward_size_mb=..."),
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
    now: Instant = Instant(0)
    endpoint: Row | None = None
    """The broker endpoint of the near instance."""
    far: FarSeen | None = None
    """The far instance, if it has the far service and could be queried."""
    destinations: list[Row] = []
    failed: tuple[FailedDialogs, ...] = ()
    """Dialogs between the two services that failed in the last hour."""
    waiting: tuple[DestinationStatus, ...] = ()
    """The destinations for which messages to the far service wait."""


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
    failed: tuple[FailedDialogs, ...] = ()
    """Dialogs of the service that failed in the last hour."""


def examine_service(seen: ServiceSeen) -> Iterator[Finding]:
    """Yield faults that keep a service from being reached or read, or its messages from leaving."""
    broker, service, contract = seen.broker, seen.service, seen.contract
    of = quote(broker.name)
    yield from delivery(seen.known)
    if _row(broker.services, service) is None:
        yield _absent(broker, service)
        return
    yield from parked_groups(broker, seen.parked)
    yield from _queue(broker, service, seen.now)
    accepted = _accepted(broker, service)
    if contract is not None and _row(broker.contracts, contract) is None:
        text = "there is no such contract"
        mend = "correct the name, or declare the contract and its types (brokerd apply); there are:"
        about = f"contract {contract} of broker {broker.name}"
        yield error("D07", about, text, mend, f"brokerd contract ls --broker {of}")
    elif contract is not None and contract not in accepted:
        yield _unaccepted(broker, service, contract, accepted)
    elif not accepted:
        text = "it accepts no contract, so dialogs can begin there and none can be begun to it"
        alter = f"brokerd service alter {quote(service)} contracts=DEFAULT --broker {of}"
        yield info("D07", f"service {service} of broker {broker.name}", text, "", alter)
    yield from stuck_dialogs(broker, seen.now)
    yield from failed_dialogs(seen.failed, seen.now)


def examine_pair(pair: PairSeen) -> Iterator[Finding]:
    """Yield the faults in the declarations of both sides, then those on the path out and back."""
    declared = [*_source(pair), *(_target(pair, pair.target) if pair.target is not None else ())]
    declared += _mirrored(pair)
    yield from declared
    if any(one.code in ("D05", "D01") for one in declared):
        return  # no dialog can begin, or arrive
    if pair.ping is None:
        again = f"brokerd ping {quote(pair.to_service)} --broker {quote(pair.source.name)}"
        yield problem("D38", f"the way to {pair.to_service}", pair.not_pinged, "", again)
        return
    way = list(_way(pair, pair.ping))
    yield from way
    if not way:
        for to in pair.waiting:
            yield held_up(to, unsent(to, pair.now))
    yield from failed_dialogs(pair.failed, pair.now)


def _source(pair: PairSeen) -> Iterator[Finding]:
    broker, of = pair.source, quote(pair.source.name)
    if _row(broker.services, pair.from_service) is None:
        text = f"broker {broker.name} has no such service, so nothing can begin, or be answered"
        yield error("D05", f"service {pair.from_service}", text, *_make_service(broker))
        return
    if _row(broker.contracts, pair.contract) is None:
        text = f"broker {broker.name}, where dialogs begin, has no such contract"
        mend = "correct the name, or declare the contract and its types (brokerd apply); there are:"
        contracts = f"brokerd contract ls --broker {of}"
        yield error("D07", f"contract {pair.contract}", text, mend, contracts)
    yield from _queue(broker, pair.from_service, pair.now)


def _target(pair: PairSeen, target: BrokerSeen) -> Iterator[Finding]:
    service = pair.to_service
    if _row(target.services, service) is None:
        yield _absent(target, service)
        return
    yield from _queue(target, service, pair.now)
    accepted = _accepted(target, service)
    if pair.contract not in accepted:
        yield _unaccepted(target, service, pair.contract, accepted)
        return
    if target.name != pair.source.name or target != pair.source:
        yield from _contract(pair, target)


def _absent(broker: BrokerSeen, service: str) -> Finding:
    near = _near(service, (str(row["name"]) for row in broker.services))
    text = f"broker {broker.name} has no such service{near}"
    return error("D05", f"service {service}", text, *_make_service(broker))


def _make_service(broker: BrokerSeen) -> tuple[str, str]:
    """Return what helps where a service is missing, and the command that lists the others."""
    mend = "correct the name, or declare it with its queue (brokerd service create); there are:"
    return mend, f"brokerd service ls --broker {quote(broker.name)}"


def _accepted(broker: BrokerSeen, service: str) -> set[str]:
    """Return the contracts of which a service is a target."""
    return {
        str(row["service_contract_id"]) for row in broker.usages if row["service_id"] == service
    }


def _unaccepted(broker: BrokerSeen, service: str, contract: str, accepted: set[str]) -> Finding:
    text = f"it is no target for contract {contract}, only for "
    text += ", ".join(sorted(accepted)) or "none"
    named = quote(",".join(sorted({*accepted, contract})))
    accept = f"brokerd service alter {quote(service)} contracts={named}"
    accept += f" --broker {quote(broker.name)}"
    mend = "use a contract that it accepts, or let it accept this one:"
    return error("D07", f"service {service} of broker {broker.name}", text, mend, accept)


def _queue(broker: BrokerSeen, service: str, now: Instant) -> Iterator[Finding]:
    row = _row(broker.services, service)
    queue = None if row is None else _row(broker.queues, str(row["service_queue_id"]))
    if queue is None:
        return
    name = str(queue["name"])
    status = next((one for one in broker.queue_status if one.name == name), None)
    if status is not None:
        yield from examine_queue(status, now, broker.parked)


def _contract(pair: PairSeen, target: BrokerSeen) -> Iterator[Finding]:
    """Yield a finding if both sides declare the contract, or a type of it, differently."""
    about = f"contract {pair.contract}"
    here, there = _types(pair.source, pair.contract), _types(target, pair.contract)
    if not here:
        return  # it is missing, which is reported already
    if here != there:
        unlike = sorted({name for name, _ in {*here.items()} ^ {*there.items()}})
        text = f"{pair.source.name} and {target.name} do not mean the same by {', '.join(unlike)}"
        mend = "give the new one a name of its own; compare it at both sides:"
        show = f"brokerd contract show {quote(pair.contract)} --broker {quote(pair.source.name)}"
        yield error("D08", about, text, mend, show)
        return
    for name in sorted(here):
        mine, theirs = _row(pair.source.message_types, name), _row(target.message_types, name)
        ours, others = (one and one["validation_desc"] for one in (mine, theirs))
        if ours != others:
            text = f"it is checked as {ours} at {pair.source.name}, as {others} at {target.name}"
            mend = "apply the same declaration on both sides; here it is:"
            show = f"brokerd message-type show {quote(name)} --broker {quote(pair.source.name)}"
            yield error("D09", f"message type {name}", text, mend, show)


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
    text = f"no route to {pair.to_service} has {pair.mirror} and another address (RTE-50)"
    about, of = f"the routes of broker {pair.source.name}", quote(pair.source.name)
    if not routes:
        yield error("D18", about, text, "make a route to it (brokerd route create)")
        return
    alter = f"brokerd route alter {quote(str(routes[0]['name']))} mirror={quote(pair.mirror)}"
    yield error("D18", about, text, "", f"{alter} --broker {of}")


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
        yield error("D38", about, text, "", f"brokerd ping {quote(pair.to_service)}")
        return
    reason = str(row["status_key"] or "")
    code = _CONNECTING.get(Reason(reason), "D38") if reason in set(Reason) else "D38"
    text = row["last_error"] or f"it does not answer within {ping.seconds:.1f} s"
    mend = (
        "see whether the daemon there runs, its endpoint is started, and the network passes; then:"
    )
    command = f"brokerd destination retry {quote(last.where)}"
    if reason == Reason.AUTH_FAILED:  # no attempt helps before each knows the other
        mend, command = "each side has to know the other's certificate:", "brokerd peer pair"
    yield error(code, about, str(text), mend, command)


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
        mend = "correct the address of the route, unless a gateway there passes it on:"
        show = f"brokerd route show {quote(last.route or '')} --broker {quote(pair.source.name)}"
        yield error("D24", f"address {last.where}", text, mend, *([show] if last.route else []))


def _stopped(  # noqa: PLR0911  # one return a cure
    pair: PairSeen, step: PingStep
) -> Finding:
    # The reason of the step chooses the cure: each is repaired elsewhere, by another command.
    """Return the finding for the step at which the path ends."""
    back = step.leg == "back"
    service = pair.from_service if back else pair.to_service
    where = f"broker {step.broker}" if step.broker else f"instance {step.instance}"
    text = status_text(step.reason) + (f": {step.detail}" if step.detail else "")
    about = f"the way {'back to' if back else 'to'} {service}, at {where}"
    if step.reason == DropReason.HOPS_EXHAUSTED and (circle := _circle(pair, step)):
        mend = "alter or drop one of its routes, so that the way ends:"
        routes = "brokerd instance-route ls"
        return error("D15", about, f"it goes in a circle: {circle}", mend, routes)
    of = f" --broker {quote(step.broker)}" if step.broker else ""
    noun = "route" if step.broker else "instance-route"
    create = f"make a route: brokerd {noun} create NAME service={quote(service)} "
    create += f"address=TCP://HOST:PORT{of}; the present ones:"
    routes = f"brokerd {noun} ls{of}"
    if step.reason == DropReason.SERVICE_NOT_IN_BROKER:
        mend = "correct the name, declare the service there, or let the route name another broker:"
        show = [f"brokerd {noun} show {quote(step.route)}{of}"] if step.route else []
        services = f"brokerd service ls --broker {quote(step.where)}"
        return error("D05", f"broker {step.where}", text, mend, services, *show)
    if step.reason in _OFF:
        enable = f"brokerd broker enable {quote(step.broker or 'main')}"
        return error("D02", about, text, "", enable)
    if step.reason in _ELSEWHERE:
        code, *cure = _ELSEWHERE[step.reason]
        return error(code, about, text, *cure)
    if step.reason not in LACKING or not step.broker:
        return error("D15", about, text, create, routes)
    if back:
        return error("D13", about, text, create, routes)
    return _no_way(pair, about, text, create, of)


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
            extend = f"brokerd route alter {quote(name)} lifetime=7d{of}"
            return error("D11", about, f"route {name} to it has expired", "", extend)
    near = _near(service, (str(one["remote_service_name"]) for one in pair.source.routes))
    explain = f"brokerd route explain {quote(service)}{of}"
    return error("D12" if near else "D10", about, text + near, create, explain)


def _near(name: str, others: Iterator[str]) -> str:
    """Return a hint that names the similar name, one that differs only in case or blanks (NBT-19).

    "" if no other name is similar."""
    alike = [one for one in others if one != name and _plain(one) == _plain(name)]
    return f"; perhaps {alike[0]!r} is meant" if alike else ""


def _plain(name: str) -> str:
    return name.strip().casefold()


def _row(rows: list[Row], name: str) -> Row | None:
    return next((row for row in rows if row["name"] == name), None)
