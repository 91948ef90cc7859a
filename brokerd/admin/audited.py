"""Audited verbs: the operations of an administrator that are recorded, and what of them (SX-15).

PURE.   Reads: a verb that was performed.       Calls: nothing.
Never:  returns a body, a key or a part of one (SX-9, SX-10).

Verbs for principals, certificates, grants and pairing are not in the table: their entries are made
in the transactions that change them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from brokerd.ids import show
from brokerd.protocol import admin_verbs as admin
from brokerd.protocol import client_verbs as wire
from brokerd.telemetry.audit import Action

Detail = dict[str, object]


class Performed(NamedTuple):
    """An operation that was performed, as it is recorded."""

    action: Action
    subject: str
    detail: Detail


def begun(verb: wire.Verb, own: str) -> Performed | None:
    """Return the entry to be durable before a verb is performed; None = there is none.

    Only a purge has one: it goes on over several requests, and may be interrupted (MAN-24)."""
    if not isinstance(verb, admin.PurgeQueue) or verb.after is not None:
        return None
    subject, detail = _purge(verb, own)
    return Performed(Action.PURGE_QUEUE, subject, {**detail, "phase": "begun"})


def performed(verb: wire.Verb, own: str, answer: object = None) -> Performed | None:
    """Return the entry for a verb of a client of the broker `own`; None = it is not recorded.

    Of the batches of a purge only the last is, with the counts of all of them (MAN-24)."""
    describe = AUDITED.get(type(verb))
    if describe is None:
        return None
    subject, detail = describe(verb, own)
    if isinstance(verb, admin.PurgeQueue) and isinstance(answer, Mapping):
        if answer["next"] is not None:
            return None
        detail = {**detail, "phase": "done", **answer["total"]}
    return Performed(Action(wire.NAMES[type(verb)]), subject, detail)


def _of_broker(verb: Any, _own: str) -> tuple[str, Detail]:  # noqa: ANN401  # each has the field
    return verb.broker, {}


def _of_group(verb: Any, _own: str) -> tuple[str, Detail]:  # noqa: ANN401  # each has the fields
    detail: Detail = {"group": show(verb.group)}
    for name in ("everything", "reason", "code", "description"):
        if (value := getattr(verb, name, None)) not in (None, ""):
            detail[name] = value
    return verb.broker, detail


def _of_queue(verb: Any, _own: str) -> tuple[str, Detail]:  # noqa: ANN401  # each has the fields
    return f"{verb.broker}/{verb.queue}", {}


def _purge(verb: admin.PurgeQueue, _own: str) -> tuple[str, Detail]:
    detail: Detail = {"code": verb.code, "description": verb.description}
    return f"{verb.broker}/{verb.queue}", detail


def _new_broker(verb: admin.NewBroker, _own: str) -> tuple[str, Detail]:
    return verb.broker, {"broker_id": show(verb.broker_id)}


def _clean_up(verb: wire.CleanUp, own: str) -> tuple[str, Detail]:
    return own, {"handle": show(verb.handle), "reason": verb.reason}


def _clean_up_many(verb: admin.CleanUpEndpoints, _own: str) -> tuple[str, Detail]:
    how = verb.options
    chosen: Detail = {
        "states": list(how.states),
        "older_than": how.older_than,
        "service": how.service,
        "far_service": how.far_service,
        "dry_run": how.dry_run,
    }
    return verb.broker, {"reason": verb.reason} | {n: v for n, v in chosen.items() if v}


def _backup(verb: admin.Backup, _own: str) -> tuple[str, Detail]:
    return verb.broker, {"path": verb.path}


def _alter_endpoint(verb: admin.AlterEndpoint, _own: str) -> tuple[str, Detail]:
    return "endpoint", dict(verb.endpoint)


def _clock(_verb: admin.ConfirmClock, _own: str) -> tuple[str, Detail]:
    return "clock", {}


def _stores(_verb: admin.HandOver, _own: str) -> tuple[str, Detail]:
    return "stores", {}


AUDITED: Final[Mapping[type, Callable[[Any, str], tuple[str, Detail]]]] = {
    wire.CleanUp: _clean_up,
    admin.Enable: _of_broker,
    admin.Disable: _of_broker,
    admin.ErrorConversations: _of_broker,
    admin.NewBroker: _new_broker,
    admin.CleanUpEndpoints: _clean_up_many,
    admin.Backup: _backup,
    admin.ForgetBroker: _of_broker,
    admin.DrainQueue: _of_queue,
    admin.PurgeQueue: _purge,
    admin.AlterEndpoint: _alter_endpoint,
    admin.ConfirmClock: _clock,
    admin.HandOver: _stores,
    admin.ReleaseGroup: _of_group,
    admin.DiscardGroup: _of_group,
    admin.EndGroup: _of_group,
    admin.EditGroup: _of_group,
    admin.CureQueue: _of_queue,
}
"""Functions that return the subject and the facts of a verb, by its type.

Arguments: the verb, the name of the client's own broker."""
