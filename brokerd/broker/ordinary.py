"""The conditions that make a message ordinary: only such a message may take a fast path.

Reads: the broker's memory.      Calls: checks, inspection.
Never: changes anything, or gives a reason. A message that is not ordinary takes the general path,
which gives it its special treatment, or refuses it with the reason.

There is one function for each question, and each condition has a line of its own, with the rule
that makes other messages special. All fast paths call these functions, and so does the general path
where it has the same question. A feature that makes some messages special adds its condition to one
of these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from brokerd.broker.checks import Judge, looks_at_the_body, refuse_message
from brokerd.model import MAX_LIFETIME, is_reserved
from brokerd.objects.validation import problem
from brokerd.protocol.headers import Content
from brokerd.protocol.items import ENDS

if TYPE_CHECKING:
    from collections.abc import Collection

    from brokerd.broker.broker import Broker
    from brokerd.broker.state import HomeQueue, Live
    from brokerd.errors import BrokerError
    from brokerd.model import Contract
    from brokerd.protocol.endpoint import DialogEndpoint
    from brokerd.protocol.frames import Fragment
    from brokerd.security.grants import Rights


class Verbs(Protocol):
    """The transaction whose verbs are to be ordinary."""

    failure: BrokerError | None


class Lock(Protocol):
    """The lock of a conversation group."""

    @property
    def holder(self) -> object:
        """The transaction that holds it; None = it is free."""
        ...

    @property
    def line(self) -> Collection[object]:
        """The waiters for the lock."""
        ...


class _Unlocked(NamedTuple):
    holder: None = None
    line: tuple[()] = ()


NEW_GROUP: Final = _Unlocked()
"""The lock of a group that does not exist yet."""


def may_send_type(
    broker: Broker, contract: Contract, message_type: str, *, from_initiator: bool
) -> bool:
    """Return whether messages of a type are neither checked nor refused at their sender.

    The answer stays the same within one turn of the loop."""
    return (
        message_type not in broker.checked_on_send  # otherwise its body is checked (PBT-14)
        and contract.allows(message_type, initiator=from_initiator)  # else it is refused (OBJ-28)
    )


def may_act(broker: Broker, queue: HomeQueue, rights: Rights | None) -> bool:
    """Return whether a client may act for the services of a queue.

    `rights`: those of the client; None = all."""
    return (
        rights is None or rights.may_receive(broker.name, queue.name)  # otherwise refused (SND-25)
    )


def may_begin(broker: Broker, to_service: str, rights: Rights | None) -> bool:
    """Return whether a client may begin dialogs with a service. `rights`: its own; None = all."""
    return (
        rights is None or rights.may_send(broker.name, to_service)  # otherwise refused (SX-3)
    )


def may_send(  # noqa: PLR0917  # one call for each message: names would cost time
    broker: Broker,
    group: Lock,
    queue: HomeQueue,
    size: int,
    tx: Verbs | None,
    rights: Rights | None,
) -> bool:
    """Return whether a SEND of an ordinary type need not wait, and leaves only a row at its sender.

    `tx`: the transaction that sends; None = a new one. `rights`: those of its client; None = all.
    """
    options, holder = broker.options, group.holder
    return (
        options.fast_paths
        and (holder is tx or holder is None)  # otherwise it waits for the lock (GRP-9)
        and (holder is not None or not group.line)  # otherwise others come first (GRP-9)
        and (tx is None or tx.failure is None)  # otherwise it fails with that (GRP-11, GRP-12)
        and may_act(broker, queue, rights)
        and not broker.is_full  # otherwise it is refused (REL-26)
        and size < options.large_body  # otherwise its body is stored ahead, in pieces (REL-33)
        and size <= options.max_message  # otherwise it is refused (SND-12)
        and not queue.retains  # otherwise a copy is kept (RCV-31)
    )


def may_hand_over(broker: Broker, live: Live) -> bool:
    """Return whether a message leaves only a row on its peer's queue, in this broker (SND-14)."""
    peer = live.peer
    return (
        broker.enabled  # otherwise it waits for delivery (OBJ-4)
        and live.is_local  # otherwise it joins the transmission queue (SND-14)
        and peer is not None  # otherwise it has to be created, or loaded
        and not peer.gone  # otherwise the dialog fails (DLP-48)
        and live.endpoint.bound  # otherwise the delivery binds the dialog (DLP-43)
        and live.delivers_directly()  # otherwise it joins the transmission queue (SND-15, OBJ-40)
    )


def may_fill(queue: HomeQueue, messages: int = 0, size: int = 0) -> bool:
    """Return whether a queue takes one more message than so many, with so many bytes."""
    full = queue.room is not None and queue.is_at_limit(messages, size)
    return not full  # otherwise the message is refused (REL-42)


def may_leave(broker: Broker, live: Live) -> bool:
    """Return whether a message to a peer elsewhere leaves only a row of the transmission queue."""
    out = live.outgoing
    return (
        broker.enabled  # otherwise it waits for delivery (OBJ-4)
        and out is not None  # otherwise it has to be created (XMT-3)
        and not out.held  # otherwise the message is never sent (DLG-26)
    )


def may_end(broker: Broker, tx: Verbs) -> bool:
    """Return whether the ENDs of a transaction can be ordinary at all."""
    return (
        broker.options.fast_paths
        and tx.failure is None  # otherwise it fails with that (GRP-11, GRP-12)
    )


def may_close(broker: Broker, live: Live) -> bool:
    """Return whether an endpoint that ends after its peer leaves only its closing line.

    The rules are DLG-T16 and DLG-T17."""
    return (
        broker.options.fast_paths
        and live.is_local  # otherwise it stays for repeats (DLG-33)
        and not live.gone
        and live.outgoing is None  # otherwise its rows are deleted (DLG-T16)
        and not live.ready  # otherwise unread messages are deleted (REL-35)
        and not live.unpublished  # otherwise those, too
        and live.beyond == 0  # otherwise those, too
        and not live.parts  # otherwise fragments are deleted (DLP-11)
        and not live.endpoint.receive_fragment  # otherwise those, too
        and live.group.held is None  # otherwise its group is forgotten (PBT-3)
        and not broker.is_watched  # otherwise its end is reported (EVT-10)
        and not broker.retains  # otherwise retained messages are deleted (RCV-31)
        and not broker.keeps_states  # otherwise the group's state is deleted (GRP-2)
        and not broker.timers.any  # otherwise timers are deleted (DLG-41)
    )


def may_converse(
    broker: Broker, from_service: str, to_service: str, contract: str, lifetime: int | None
) -> bool:
    """Return whether a dialog that is begun, sent on and ended in one transaction is ordinary.

    It leaves nothing at its initiator (DLG-16), and its message goes onto a queue of this broker
    (SND-14). `lifetime`: in seconds."""
    catalog = broker.catalog_index
    target = catalog.services.get(to_service)
    return (
        broker.enabled  # otherwise it waits for delivery (OBJ-4)
        and not broker.is_watched  # otherwise its events are reported (EVT-10)
        and not is_reserved(from_service, contract)  # otherwise it is refused (OBJ-27, EVT-3)
        and from_service in catalog.services  # otherwise it is refused (DLG-2)
        and contract in catalog.contracts  # otherwise it is refused (DLG-2)
        and (lifetime is None or 1 <= lifetime <= MAX_LIFETIME)  # otherwise refused (DLG-10)
        and target is not None  # otherwise it is routed, or refused (DLP-40)
        and contract in target.contracts  # otherwise the target refuses it (DLP-40)
        and broker.queues[target.queue].queue.enqueue_enabled  # otherwise it waits (OBJ-40)
        and broker.always_here(to_service)  # otherwise it is routed (RTE-1)
    )


def may_arrive(broker: Broker, live: Live, item: Fragment) -> bool:
    """Return whether a fragment is a whole message, the next of its dialog, for a queue that is
    on."""
    return (
        broker.options.fast_paths
        and broker.enabled  # otherwise it is dropped (DSP-12)
        and not broker.is_full  # otherwise its sender is notified (REL-26)
        and not item.flags & ENDS  # otherwise it ends or fails the dialog (DLP-6)
        and item.fragments == 1  # otherwise it is joined with others (DLP-11)
        and item.sequence == live.endpoint.receive_sequence  # otherwise early, or a repeat (DLP-19)
        and len(item.body) <= broker.options.max_message  # otherwise the dialog fails (SND-12)
        and live.queue.queue.enqueue_enabled  # otherwise its sender is notified (DSP-11)
        and (live.queue.room is None or may_fill(live.queue))  # else its sender hears (REL-42)
    )


def names_match(endpoint: DialogEndpoint, item: Fragment) -> bool:
    """Return whether sender, service and contract of a fragment are the dialog's own (DLP-45,
    DLP-48)."""
    return (
        (item.from_broker == endpoint.far_broker or not endpoint.bound)
        and item.to_service == endpoint.service
        and item.contract == endpoint.contract
    )


class TargetChecks:
    """The receiving side's checks, for many messages within one turn of the loop.

    They remember the kind of message accepted last."""

    __slots__ = ("_accepted", "_broker", "_checked")

    def __init__(self, broker: Broker, *, checked: bool = False) -> None:
        """Create the checks. `checked`: whether bodies may have a verdict of the checking process
        by now."""
        self._broker = broker
        self._checked = checked
        self._accepted: object = None

    def accept(
        self, contract: Contract, message_type: str, body: bytes | None, *, from_initiator: bool
    ) -> bool:
        """Return whether a message can be enqueued without waiting for a check (OBJ-18, OBJ-29)."""
        if type(body) is Content:
            body = body.body
        terms = (contract, message_type, from_initiator, body is None)
        if terms == self._accepted:
            return True
        broker = self._broker
        known = broker.message_types
        judge: Judge = problem
        kind = known.get(message_type)
        if kind is not None and body is not None and broker.inspection.concerns(kind, len(body)):
            if not self._checked or broker.inspection.overrun(kind, body):
                return False  # the general path waits for the verdict
            judge = broker.inspection.evaluate
        if refuse_message(
            contract, message_type, body, known=known, from_initiator=from_initiator, judge=judge
        ):
            return False
        if not looks_at_the_body(known[message_type]):
            self._accepted = terms
        return True
