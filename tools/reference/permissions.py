"""The page of the permissions: what each verb, command and frame needs (SX-3)."""

from brokerd.cli.permissions import VERBS
from brokerd.protocol.client_verbs import NAMES
from brokerd.sessions import permissions as table_of
from tools.reference.markdown import code, codes, page, sentence, table

FILE = "permissions.md"
_INTRODUCTION = """
What a client, a command or a peer needs, once something is granted. How permissions are granted:
[Say who may do what](../how-to/permissions.md). The daemon's own user and root need none.
"""
_PROGRAMS = "; `execute` there if it names a program"
_IN_TRANSACTIONS = {
    "begin_dialog": "`receive` on the queue of its own service, and `send` on the other service",
    "receive": "`receive` on the queue",
    "get_group": "`receive` on the queue",
    **dict.fromkeys(("begin", "commit", "rollback", "savepoint", "rollback_to"), "nothing"),
}
_OF_CONVERSATION = "`receive` on the queue of the conversation or group"
_COMMANDS = """
## Commands

The verbs that a command asks a daemon for. One without verbs works on files, as the user that runs
it, or starts a daemon of its own.
"""


def render() -> str:
    """Return the page."""
    verbs = sorted((name, _need(kind, name)) for kind, name in NAMES.items())
    commands = [(code(f"brokerd {name}"), codes(VERBS[name])) for name in sorted(VERBS)]
    return page(
        "Permissions",
        _INTRODUCTION,
        "## Verbs",
        table(("Verb", "Needs"), [(code(name), sentence(need)) for name, need in verbs]),
        _COMMANDS.strip(),
        table(("Command", "Verbs"), commands),
        "## Frames of peers",
        table(
            ("Frame", "Accepted from"),
            [(code(kind.name), sentence(one)) for kind, one in table_of.PEER_FRAMES.items()],
        ),
    )


def _need(kind: type, name: str) -> str:
    """Return in words what a verb needs."""
    if kind in table_of.ANYONE:
        return "nothing"
    if kind in table_of.IN_TRANSACTIONS:
        return _IN_TRANSACTIONS.get(name, _OF_CONVERSATION)
    if kind in table_of.OF_A_QUEUE:
        return "`receive` on the queue"
    more = _PROGRAMS if kind in table_of.NAMES_PROGRAMS else ""
    more = "; and what it grants" if name == "grant" else more
    return table_of.WHERE[table_of.CONTROL[kind]] + more
