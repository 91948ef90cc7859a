"""Permissions of commands: the verbs that each command asks a daemon for (SX-3).

Reads, calls: nothing.
Never:  decides whether a request is allowed: the daemon does, by the table in
        `sessions/permissions.py`, which says what each verb needs.

A command without verbs works on files, as the user that runs it, or starts a daemon of its own.
To add a command: a row in `VERBS`; a test fails without it, and when a command asks for a verb that
its row lacks.
"""

from collections.abc import Iterable
from typing import Final

_TRANSACTION: Final = ("begin", "commit", "rollback")
_SENDING: Final = (*_TRANSACTION, "begin_dialog", "send", "end", "receive", "transact")
_OBJECT: Final = {
    "alter": ("alter",),
    "create": ("create",),
    "drop": ("drop",),
    "ls": ("objects", "view"),
    "show": ("objects", "view"),
}


def _each(noun: str, names: Iterable[str], *verbs: str) -> dict[str, tuple[str, ...]]:
    return {f"{noun} {name}": verbs for name in names}


VERBS: Final[dict[str, tuple[str, ...]]] = {
    **{
        f"{noun} {name}": verbs
        for noun in (
            *("message-type", "contract", "queue", "service", "priority", "route"),
            *("instance-route", "binding", "event"),
        )
        for name, verbs in _OBJECT.items()
        if (noun, name) != ("event", "alter")  # a notification is dropped and made again
    },
    **_each("bench", ("activation", "backlog", "compare", "dialogs", "idle", "large", "latency")),
    **_each(
        "bench", ("local", "peer", "replay", "route", "scale", "scale-out", "stages", "stalled")
    ),
    **_each("config", ("check", "show")),
    **_each("report", ("compare", "query", "run")),
    **_each("store", ("accept-loss", "accept-server", "copy", "restore", "verify")),
    **_each("endpoint", ("alter", "disable", "start", "stop"), "alter_endpoint"),
    **_each("broker", ("ls", "show"), "view"),
    **_each("connection", ("ls", "show"), "view"),
    **_each("destination", ("ls", "show"), "view"),
    **_each("forwarder", ("ls", "show"), "view"),
    **_each("dialog", ("ls", "show"), "view"),
    **_each("certificate", ("ls", "show"), "view"),
    **_each("client", ("ls", "show"), "view"),
    **_each("peer", ("ls", "show"), "view"),
    **_each("group", ("ls", "show"), "view"),
    "activator ls": (),
    "activator serve": (*_TRANSACTION, "receive", "end"),
    "apply": ("apply",),
    "audit": ("view",),
    "broker alter": ("alter",),
    "broker clean-up": ("clean_up_endpoints",),
    "broker disable": ("disable",),
    "broker enable": ("enable",),
    "broker error-conversations": ("error_conversations",),
    "broker forget": ("forget_broker",),
    "broker hand-over": ("hand_over",),
    "broker new-id": ("new_broker",),
    "call": (*_SENDING, "view"),
    "certificate check-copy": ("view",),
    "certificate drop": ("drop_certificate", "view"),
    "certificate export": ("own_certificates",),
    "certificate renew": ("make_certificates", "own_certificates"),
    "certificate replace-key": ("replace_master_key",),
    "certificate rotate-key": ("rotate_master_key",),
    "certificate switch": ("switch_certificates",),
    "client add": ("install_principal",),
    "client new": ("install_principal", "own_certificates"),
    "client revoke": ("revoke_principal",),
    "clock confirm": ("confirm_clock",),
    "completion": (),
    "demo": (),
    "destination retry": ("retry_destination",),
    "dialog end": ("clean_up", "end", "transact"),
    "dialog move": ("move", "transact"),
    "dialog resend": (*_TRANSACTION, "resend_pending"),
    "dialog status": ("transmission_status",),
    "dialog timeline": ("dialog_timeline",),
    "dialog timer": ("set_timer", "transact"),
    "doctor": ("explain_route", "objects", "ping", "status", "transmission_status", "view"),
    "endpoint show": ("view",),
    "explain": (),
    "grant": ("grant",),
    "import": (),
    "group discard": ("discard_group",),
    "group edit": ("edit_group",),
    "group end": ("end_group",),
    "group release": ("release_group",),
    "init": (),
    "log tail": (),
    "monitor ls": ("view",),
    "page": ("open_page",),
    "periodic ls": ("view",),
    "peer add": ("install_principal",),
    "peer pair": (
        *("await_pairing", "cancel_pairing", "invite_peer", "join_peer"),
        *("objects", "ping"),
    ),
    "peer revoke": ("drop", "objects", "revoke_principal", "view"),
    "ping": ("ping",),
    "queue browse": ("browse",),
    "queue cure": ("cure_queue",),
    "queue drain": ("drain_queue",),
    "queue purge": ("purge_queue", "view"),
    "receive": (*_SENDING, "objects", "view"),
    "revoke": ("revoke",),
    "route add": ("create",),
    "route explain": ("explain_route",),
    "route rm": ("drop",),
    "route serve": (*_SENDING, "alter", "apply", "create", "drop", "objects"),
    "route test": ("explain_route",),
    "send": (*_SENDING, "objects", "view"),
    "serve": (),
    "ship": (),
    "status": ("status",),
    "store backup": ("backup",),
    "task ls": ("view",),
    "top": ("status",),
    "transmission ls": ("view",),
    "who-can": ("who_can",),
    "worker run": (
        *(*_SENDING, "apply", "get_group", "get_state", "move", "objects"),
        *("set_state", "set_timer"),
    ),
}
"""Verbs that a command may ask for, by its words; `view` is also asked to find the broker."""
