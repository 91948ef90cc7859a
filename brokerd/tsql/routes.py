"""Routes, remote service bindings and event notifications in the file of objects. PURE.

Reads:  what `declaring` has left.      Calls: blocks, routing.address, objects.event_names.
Never:  keeps the id of a database of the server: a broker here has its own.
"""

from collections.abc import Iterator
from typing import Any

from brokerd.errors import InvalidArgument
from brokerd.model import POST_EVENT_NOTIFICATION, Scope
from brokerd.objects.event_names import QUEUE_ACTIVATION, expand, refusal
from brokerd.objects.keys import MAX_REMOTE_NAME
from brokerd.routing.address import TRANSPORT, normalise
from brokerd.security.names import Kind, principal_name
from brokerd.tsql.blocks import Block, usable
from brokerd.tsql.declaring import LOCAL_ROUTE, MSDB, Declared, Objects
from brokerd.tsql.names import is_known, shown
from brokerd.tsql.tree import Notification

_MAX_LIFETIME = 2**31 - 1
_SCOPES = {"SERVER": Scope.INSTANCE, "DATABASE": Scope.BROKER, "QUEUE": Scope.QUEUE}


def route_blocks(home: Objects) -> Iterator[Block]:
    """Yield the tables of the routes; those of msdb are routes of the instance."""
    kind = "instance_route" if home.database.casefold() == MSDB else "route"
    if home.has_dropped_local_route and LOCAL_ROUTE not in home.route:
        yield Block(kind, {"name": LOCAL_ROUTE, "drop": True})
    for name, declared in home.route.items():
        if usable(name, declared, "route"):
            yield _route(kind, name, declared)


def _route(kind: str, name: str, declared: Declared) -> Block:
    said = declared.said
    table: dict[str, Any] = {"name": name}
    if said.service:
        table["service"] = said.service
    block = Block(kind, table)
    address = said.address or ""
    why = _address_problem(address)
    if not why and said.service and len(said.service) > MAX_REMOTE_NAME:
        why = f"the name of a service has at most {MAX_REMOTE_NAME} characters"
    table["address"] = address
    if not why and normalise(address) == TRANSPORT and said.service:
        why = "TRANSPORT is for a route without a service"
    if said.broker:
        block.hints.append(f'broker = "{said.broker}" was the id of the database at the far side')
        declared.entry.needs(
            "the far broker gets an id of its own: add broker = its id, as brokerd status shows "
            "it there, if the route is for that broker alone"
        )
    if said.mirror:
        block.hints.append(f'mirror = "{said.mirror}" needs the id of the far broker as well')
        declared.entry.needs("a mirrored route names the id of the far broker: add both by hand")
    if said.lifetime is not None:
        if 1 <= said.lifetime <= _MAX_LIFETIME:
            table["lifetime"] = said.lifetime
        else:
            declared.entry.needs("its lifetime is out of range and left out")
    if why:
        block.is_active = False
        declared.entry.needs(f"a comment in the file: {why}")
    return block


def _address_problem(address: str) -> str:
    if not is_known(address):
        return "its address is known only when the script runs"
    try:
        normalise(address)
    except InvalidArgument as error:
        return f"{error.message} ({address or 'it has no address'})"
    return ""


def binding_blocks(home: Objects) -> Iterator[Block]:
    """Yield the tables of the bindings, as comments: the owner of the key has to be added first."""
    for name, declared in home.binding.items():
        if not usable(name, declared, "binding"):
            continue
        said = declared.said
        user = said.user or "NAME"
        try:
            principal = principal_name(Kind.PEER, user)
        except InvalidArgument:
            principal = "peer:NAME"
        table: dict[str, Any] = {"name": name, "service": said.service, "principal": principal}
        if said.anonymous:
            table["anonymous"] = True
        remark = f"After brokerd peer pair, or brokerd peer add: {principal} owns the certificate."
        declared.entry.needs(
            f"a comment in the file: pair with the instance of {said.service}, whose certificate "
            "takes the place of the user's (brokerd peer pair makes the binding, too)"
        )
        yield Block("remote_service_binding", table, [remark], is_active=False)


def notification_blocks(
    home: Objects, queues: list[Block], services: dict[str, list[str]]
) -> Iterator[Block]:
    """Yield the tables of the event notifications."""
    names = {block.table["name"].casefold(): block for block in queues}
    for name, declared in home.notification.items():
        if not usable(name, declared, "notification"):
            continue
        yield _notification(name, declared, names, services)


def _notification(
    name: str, declared: Declared, queues: dict[str, Block], services: dict[str, list[str]]
) -> Block:
    said: Notification = declared.said
    scope = _SCOPES[said.scope]
    table: dict[str, Any] = {"name": name, "scope": scope.value}
    block = Block("event_notification", table)
    queue = queues.get(shown(said.queue).casefold()) if said.queue else None
    if said.queue:
        table["queue"] = shown(said.queue) if queue is None else queue.table["name"]
    kept = [event for event in said.events if not refusal(event, scope)]
    lost = [event for event in said.events if event not in kept]
    if lost:
        declared.entry.needs(f"brokerd has no such event for this scope: {', '.join(lost)}")
    table["events"] = kept
    table["service"] = said.service
    if said.fan_in:
        table["fan_in"] = True
    if said.broker and said.broker.casefold() != "current database":
        block.hints.append("broker = the id of the broker that has the service")
    if why := _why_no_notification(table, said, queue, services):
        block.is_active = False
        declared.entry.needs(f"a comment in the file: {why}")
    return block


def _why_no_notification(
    table: dict[str, Any],
    said: Notification,
    queue: Block | None,
    services: dict[str, list[str]],
) -> str:
    """Return why the daemon would refuse an event notification; empty = it would not."""
    if said.queue and queue is None:
        return f'queue "{table["queue"]}" is not declared'
    if not table["events"]:
        return "none of its events has a counterpart"
    if said.service not in services:
        return f'service "{said.service}" is not declared; in another broker, that has an id'
    if POST_EVENT_NOTIFICATION not in services[said.service]:
        return f'service "{said.service}" does not list {POST_EVENT_NOTIFICATION}'
    activation = queue.table.get("activation") if queue is not None else None
    if activation and activation["status"] and QUEUE_ACTIVATION in expand(table["events"]):
        return "its queue has activation of its own, which excludes QUEUE_ACTIVATION"
    return ""
