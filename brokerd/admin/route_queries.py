"""`explain_route` and `ping`: the path of messages to a service, by the tables and in fact.

Reads: memory, and the store for a dialog that is not in memory.
Calls: delivery.peers.router, delivery.peers.ping.
Never: takes a lock, or a turn of the balancer.
"""

from collections.abc import Callable

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.delivery.outgoing.transmission_status import Attempts
from brokerd.delivery.peers.ping import Pinging
from brokerd.delivery.peers.router import Router
from brokerd.errors import ConversationNotFound, InvalidArgument, ObjectNotFound
from brokerd.ids import BrokerId, Handle, show
from brokerd.model import is_system
from brokerd.protocol import admin_verbs as admin
from brokerd.routing.classify import ArrivalKey, DialogKey
from brokerd.routing.explain import Explanation

AttemptsOf = Callable[[Broker, Outgoing], Attempts]
"""Function that returns how often a dialog was transmitted, and the times of last and next."""


async def explain_route(
    router: Router, attempts: AttemptsOf, broker: Broker, verb: admin.ExplainRoute
) -> dict[str, object]:
    """Answer `explain_route`; raise `InvalidArgument` or `ConversationNotFound`."""
    wanted = verb.options
    named = None if wanted.broker_id is None else BrokerId(wanted.broker_id)
    key: DialogKey | ArrivalKey
    tried = Attempts()
    if wanted.handle is not None:
        if verb.service is not None or wanted.arriving:
            raise InvalidArgument("a dialog is explained by its handle alone")
        key, explained, out = await _of_dialog(router, broker, Handle(wanted.handle))
        tried = Attempts() if out is None else attempts(broker, out)
    elif not verb.service:
        raise InvalidArgument("name the service, or give the handle of a dialog")
    else:
        if wanted.arriving:
            key = ArrivalKey(verb.service, named, not wanted.reply, wanted.hops)
        else:
            key = DialogKey(verb.service, named, broker.broker_id, not wanted.reply)
        explained = router.explain(broker, key)
    return {
        "service": key.service_name,
        "broker_id": None if key.broker_id is None else show(key.broker_id),
        "attempts": tried.times,
        "next_attempt_at": tried.next_at,
        **msgspec.to_builtins(explained),
    }


async def ping(pinging: Pinging, broker: Broker, verb: admin.Ping) -> dict[str, object]:
    """Answer `ping`; raise `InvalidArgument` or `ObjectNotFound` (NBT-7)."""
    wanted = verb.options
    own = sorted(name for name in broker.services if not is_system(name))
    asking = wanted.from_service or next(iter(own), None)
    if asking is None:
        raise InvalidArgument(
            f"broker {broker.name!r} has no service that a reply could come to",
            hint="declare one, or ask from another broker",
        )
    if asking not in broker.services:
        raise ObjectNotFound(f"there is no service {asking!r} in broker {broker.name!r}")
    named = None if wanted.broker_id is None else BrokerId(wanted.broker_id)
    found = await pinging.ping(
        broker, verb.service, broker_id=named, from_service=asking, wait=wanted.wait
    )
    return {"service": verb.service, "from_service": asking, **msgspec.to_builtins(found)}


async def _of_dialog(
    router: Router, broker: Broker, handle: Handle
) -> tuple[DialogKey, Explanation, Outgoing | None]:
    """Return the routing key of a dialog, the explanation of its route, and its outgoing messages.

    The outgoing messages are None if the endpoint is not in memory, or has nothing to send.
    """
    live = broker.endpoints.find(handle)
    endpoint = await broker.store.endpoints.by_handle(handle) if live is None else live.endpoint
    if endpoint is None:
        raise ConversationNotFound(f"no conversation {show(handle)} is open here")
    out = None if live is None else live.outgoing
    return *router.explain_dialog(broker, endpoint, out), out
