"""Permissions: the right that each verb of a client needs, in one table (SX-3, CLP-130).

Reads:  the rights of a client, its verb, the queues of brokers.
Calls:  security.grants, objects.declarations.
Never:  lets a verb pass that the table lacks, or checks the client's own broker in place of the
        broker that the verb names.
Fails:  `AccessDenied` names the missing right, and the broker.

Every setting that can make the daemon run code (`handler`, `command`, `host` and `run_as` of an
activation, and the binding of a service to such a queue) is a change of objects, so it needs
CONTROL on the changed broker, and because it names a program EXECUTE beside it (SX-23). Verbs that
concern the whole instance need CONTROL on `msdb`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

from brokerd.broker.broker import Broker
from brokerd.errors import AccessDenied, ConversationNotFound
from brokerd.ids import Handle, show
from brokerd.model import MSDB, Activation, Queue
from brokerd.objects.declarations import parse_from
from brokerd.objects.declared import Declared, Kind
from brokerd.protocol import admin_verbs as admin
from brokerd.protocol import client_frames as frames
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.credential_verbs import CREDENTIAL_VERBS
from brokerd.protocol.frames import Kind as PeerFrame
from brokerd.protocol.pairing_verbs import AwaitPairing, CancelPairing, InvitePeer, JoinPeer
from brokerd.security.grants import Rights, parse_grant


def _own(_verb: wire.Verb, own: str) -> Iterable[str]:
    return (own,)


def _paired(_verb: wire.Verb, own: str) -> Iterable[str]:
    """Yield the brokers that pairing changes: principals in `msdb`, routes in the own one."""
    return (MSDB, own)


def _named(verb: Any, _own: str) -> Iterable[str]:  # noqa: ANN401  # each has the field
    return (verb.broker,)


def _instance(_verb: wire.Verb, _own: str) -> Iterable[str]:
    return (MSDB,)


def _viewed(verb: admin.View, own: str) -> Iterable[str]:
    return (MSDB,) if verb.name in OF_INSTANCE else (own,)


def _of_object(verb: wire.Create | wire.Alter | wire.Drop, own: str) -> Iterable[str]:
    return (MSDB,) if verb.kind == Kind.INSTANCE_ROUTE else (own,)


def _declared(verb: wire.Apply, own: str) -> Iterable[str]:
    """Yield the brokers of a declaration, parsed by the function that is also used to apply it.

    A second parser might find other brokers in the declaration."""
    declared = parse_from(own, verb.objects)
    for one in declared.brokers:
        yield one.broker
        if one.instance_routes is not None:
            yield MSDB


OF_INSTANCE: Final = frozenset({"audit", "certificates", "grants", "principals"})
"""Views of the security of the whole instance: they need CONTROL on `msdb`."""

CONTROL: Final[dict[type, Callable[[Any, str], Iterable[str]]]] = {
    wire.Apply: _declared,
    wire.Create: _of_object,
    wire.Alter: _of_object,
    wire.Drop: _of_object,
    wire.CleanUp: _own,
    admin.View: _viewed,
    admin.ExplainRoute: _own,
    admin.Ping: _own,
    admin.DialogTimeline: _own,
    admin.Enable: _named,
    admin.Disable: _named,
    admin.ErrorConversations: _named,
    admin.NewBroker: _named,
    admin.CleanUpEndpoints: _named,
    admin.Backup: _named,
    admin.ForgetBroker: _named,
    admin.DrainQueue: _named,
    admin.PurgeQueue: _named,
    admin.AlterEndpoint: _instance,
    admin.RetryDestination: _instance,
    admin.ConfirmClock: _instance,
    admin.HandOver: _instance,
    admin.GrantPermission: _instance,
    admin.RevokePermission: _instance,
    admin.WhoCan: _instance,
    **dict.fromkeys(CREDENTIAL_VERBS.values(), _instance),
    InvitePeer: _paired,
    AwaitPairing: _instance,
    CancelPairing: _instance,
    JoinPeer: _paired,
    **dict.fromkeys(admin.POISON_VERBS.values(), _named),
}
"""Functions that return the brokers on which a verb needs CONTROL, by the type of the verb.

Arguments: the verb, the name of the client's own broker."""

WHERE: Final[dict[Callable[[Any, str], Iterable[str]], str]] = {
    _own: "`control` on the broker of the session",
    _named: "`control` on the broker that it names",
    _instance: "`control` on `msdb`",
    _paired: "`control` on `msdb` and on the broker of the session",
    _viewed: "`control` on the broker of the session; on `msdb` for views of its security",
    _of_object: "`control` on the broker of the session; on `msdb` for its routes",
    _declared: "`control` on each broker that it declares; on `msdb` for its routes; nothing where "
    "it only adds what is missing, and all is there",
}
"""Meaning of each function of `CONTROL`, for the reference page."""

ANYONE: Final[frozenset[type]] = frozenset(
    {wire.Status, wire.Objects, wire.TxOutcome, admin.OpenPage}
)
"""Verbs that every connected client may use.

OPEN PAGE gives no right: the browser may do what the client may do, and each request is checked."""

IN_TRANSACTIONS: Final[frozenset[type]] = frozenset(
    {
        wire.Begin,
        wire.Commit,
        wire.Rollback,
        wire.Savepoint,
        wire.RollbackTo,
        wire.BeginDialog,
        wire.Send,
        wire.Receive,
        wire.End,
        wire.GetGroup,
        wire.Move,
        wire.GetState,
        wire.SetState,
        wire.SetTimer,
        wire.ResendPending,
    }
)
"""Verbs of transactions: `brokerd.verbs` checks the rights on their queues, services, dialogs."""


def check(
    rights: Rights,
    broker: Broker,
    verb: wire.Verb,
    client: str,
    brokers: Mapping[str, Broker],
) -> None:
    """Check that a client of `broker` may use a verb outside of transactions.

    `brokers`: those of the instance, whose queues say which services get a program.

    Raises:
        AccessDenied: a right is missing, or the table does not know the verb.
        ConversationNotFound: the dialog belongs to a queue the client may not see (BI-R2).
        ObjectsRefused: the objects of an `apply` are not a valid declaration.
    """
    if type(verb) in ANYONE:
        return
    if (of_a_queue := OF_A_QUEUE.get(type(verb))) is not None:
        of_a_queue(rights, broker, verb, client)
        return
    asked = wire.NAMES[type(verb)]
    controlled = CONTROL.get(type(verb))
    if controlled is None:
        raise AccessDenied(f"{asked} is not for clients whose rights are limited")
    if not rights.control:
        raise _lacks_control(asked, broker.name, client)
    for name in controlled(verb, broker.name):
        if not rights.may_control(name):
            raise _lacks_control(asked, name, client)
    if isinstance(verb, admin.GrantPermission):
        _refuse_to_give(rights, verb, client)
    _refuse_programs(rights, broker, verb, client, brokers)


def adds_to_own(verb: wire.Verb, broker: str) -> bool:
    """Return whether a verb adds missing objects to the client's own broker, and nothing else.

    If none is missing it changes nothing, and needs no right (SEC-82): what it would tell, every
    client may read by `objects`."""
    if not isinstance(verb, wire.Apply) or not verb.ensure:
        return False
    declared = parse_from(broker, verb.objects).brokers
    return all(one.broker == broker and one.instance_routes is None for one in declared)


def _refuse_programs(
    rights: Rights,
    broker: Broker,
    verb: wire.Verb,
    client: str,
    brokers: Mapping[str, Broker],
) -> None:
    """Raise `AccessDenied` if a verb names a program and the client lacks EXECUTE (SX-23)."""
    programs = NAMES_PROGRAMS.get(type(verb))
    for name, what in () if programs is None else programs(verb, broker, brokers):
        if not rights.may_execute(name):
            raise AccessDenied(
                f"{wire.NAMES[type(verb)]} names a program to run ({what}), which needs execute "
                f"permission on broker {name!r}; {client} does not have it",
                hint=f'ask for it: brokerd grant "execute on {name} to USER"',
            )


def _refuse_to_give(rights: Rights, verb: admin.GrantPermission, client: str) -> None:
    """Raise `AccessDenied` if a client would grant what it lacks, to itself for instance."""
    try:
        grant = parse_grant(verb.grant)
    except ValueError:
        return  # `admin.grants` refuses the text
    if not rights.may_give(grant):
        raise AccessDenied(
            f"{client} cannot grant {grant.permission} on {grant.on!r}, which it does not have"
        )


def _lacks_control(asked: str, broker: str, client: str) -> AccessDenied:
    return AccessDenied(
        f"{asked} needs control permission on broker {broker!r}, which {client} does not have"
    )


def _browse(rights: Rights, broker: Broker, verb: wire.Browse, client: str) -> None:
    if not rights.may_receive(broker.name, verb.queue):
        raise AccessDenied(
            f"{client} has no receive permission on queue {verb.queue!r} of {broker.name!r}"
        )


def _see_dialog(
    rights: Rights, broker: Broker, verb: wire.TransmissionStatus, _client: str
) -> None:
    live = broker.endpoints.find(Handle(verb.handle))
    if live is not None and not rights.may_receive(broker.name, live.queue.name):
        raise ConversationNotFound(f"no conversation {show(verb.handle)} is open here")


OF_A_QUEUE: Final[dict[type, Callable[[Rights, Broker, Any, str], None]]] = {
    wire.Browse: _browse,
    wire.TransmissionStatus: _see_dialog,
}
"""Verbs outside of transactions that need only RECEIVE on a queue, with the check of each."""


# Programs.

Named = Iterator[tuple[str, str]]
"""Pairs of a broker and the object by which a verb names a program for it."""
PROGRAM_KEYS: Final = frozenset({"handler", "command", "host", "run_as"})
"""Keys of an activation that say what runs, where, and as whom."""


def _in_object(
    verb: wire.Create | wire.Alter, own: Broker, _brokers: Mapping[str, Broker]
) -> Named:
    """Yield the object that is created or altered, if it names a program."""
    if verb.kind == Kind.QUEUE:
        activation = verb.object.get("activation")
        if isinstance(activation, dict) and activation.keys() & PROGRAM_KEYS:
            yield own.name, f"activation of queue {verb.object.get('name')!r}"
    elif verb.kind == Kind.SERVICE:
        queue = verb.object.get("queue")
        if isinstance(queue, str) and _activation(own, queue) is not None:
            yield own.name, f"service on queue {queue!r}, which has an activation"


def _in_declaration(verb: wire.Apply, own: Broker, brokers: Mapping[str, Broker]) -> Named:
    """Yield the declared objects that name a program which the broker does not have already."""
    for one in parse_from(own.name, verb.objects).brokers:
        there = brokers.get(one.broker)
        for queue in one.queues.values():
            if queue.activation is not None and _program(queue.activation) != _program(
                _activation(there, queue.name)
            ):
                yield one.broker, f"activation of queue {queue.name!r}"
        yield from _bound(one, there)


def _bound(declared: Declared, there: Broker | None) -> Named:
    """Yield the declared services that are bound anew to a queue with an activation."""
    known = {} if there is None else there.store.catalog.services
    for service in declared.services.values():
        before, queue = known.get(service.name), declared.queues.get(service.queue)
        activation = queue.activation if queue is not None else None
        if before is not None and before.queue == service.queue:
            continue
        if activation is not None or _activation(there, service.queue) is not None:
            yield declared.broker, f"service {service.name!r} on queue {service.queue!r}"


def _activation(broker: Broker | None, queue: str) -> Activation | None:
    found: Queue | None = None if broker is None else broker.store.catalog.queues.get(queue)
    return None if found is None else found.activation


def _program(activation: Activation | None) -> tuple[object, ...] | None:
    if activation is None:
        return None
    return activation.handler, activation.command, activation.host, activation.run_as


NAMES_PROGRAMS: Final[dict[type, Callable[[Any, Broker, Mapping[str, Broker]], Named]]] = {
    wire.Create: _in_object,
    wire.Alter: _in_object,
    wire.Apply: _in_declaration,
}
"""Functions that find the programs named by a verb, each of which needs EXECUTE beside CONTROL.

Arguments: the verb, the client's own broker, the brokers of the instance."""


# Frames.


class Sender(StrEnum):
    """The far ends from which a frame is accepted."""

    ANYBODY = "anybody who has connected"
    PAIRING = "anybody while a pairing waits; the frame proves its secret"
    CLIENT = "a client that has logged in; each request needs what its verb needs"
    PEER = "a peer that has logged in, which needs CONNECT on the endpoint (SEC-6)"
    SENDER = "a peer that has logged in; a dialog begins only with SEND on its service (SEC-50)"
    TRUSTED = "an authenticated peer, or any where the endpoint authenticates nobody (SX-7)"


CLIENT_FRAMES: Final[dict[int, Sender]] = {
    frames.HELLO: Sender.ANYBODY,
    frames.REQUEST: Sender.CLIENT,
    frames.PART_UP: Sender.CLIENT,
    frames.CANCEL: Sender.CLIENT,
    frames.PING: Sender.CLIENT,
}
"""Kinds of frames of clients; any other ends the connection."""

PEER_FRAMES: Final[dict[PeerFrame, Sender]] = {
    PeerFrame.HELLO: Sender.ANYBODY,
    PeerFrame.REJECT: Sender.ANYBODY,
    PeerFrame.GOODBYE: Sender.ANYBODY,
    PeerFrame.PAIR: Sender.PAIRING,
    PeerFrame.PAIRED: Sender.PAIRING,
    PeerFrame.ARBITRATE: Sender.PEER,
    PeerFrame.PING: Sender.PEER,
    PeerFrame.PONG: Sender.PEER,
    PeerFrame.BOXCAR: Sender.SENDER,
    PeerFrame.ROLE: Sender.TRUSTED,
    PeerFrame.NOTICE: Sender.TRUSTED,
    PeerFrame.TRACE: Sender.TRUSTED,
    PeerFrame.BROKERS: Sender.TRUSTED,
    PeerFrame.CERTIFICATES: Sender.TRUSTED,
}
"""Kinds of frames of peers; `protocol.connection` and the transport let no other pass."""
