"""The waits of sends for the checks of their bodies (OBJ-18, OBJ-62).

Reads:  message types.      Calls: broker.inspection.
Never:  refuses an unfit body: `broker.checks` does, and has the verdict by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.checking.checker import Outcome
from brokerd.errors import CheckOverrun, CheckUnavailable
from brokerd.ids import Handle
from brokerd.model import MessageType
from brokerd.verbs.group_locks import may_have

CHECK = "check"
"""The name of a send's wait for the check of its body."""


def before_send(
    tx: Transaction, lives: Sequence[Live], message_type: str, body: bytes | None
) -> Blocked | None:
    """Wait for the verdict on a body that needs a check before it is sent.

    The type of such a body is checked on the sending side (PBT-14), or the body goes directly
    onto a queue of this broker (SND-14). The groups are locked meanwhile, so later messages
    stay behind it.

    Raises:
        CheckOverrun: the check came to no verdict (OBJ-62).
        CheckUnavailable: the check could not be run.
    """
    broker = tx.broker
    kind = broker.message_types.get(message_type)
    if kind is None or body is None or not broker.inspection.concerns(kind, len(body)):
        return None
    if message_type not in broker.checked_on_send and not any(_stays(tx, live) for live in lives):
        return None
    if _has_verdict(broker, kind, body):
        return None
    tx.inspecting((body,))
    return Blocked(CHECK, partial(broker.inspection.check, kind, body))


def check_ahead(
    tx: Transaction,
    handles: Iterable[Handle],
    message_type: str,
    body: bytes | None,
    done: Resume,
) -> bool:
    """Begin the check for which a send will wait when its turn comes; call `done` at its end.

    Return False if the send will not wait for a check, or its check was begun before.

    Checks of bodies that a client wrote together then share an exchange with the checker.
    Dialogs that are not in memory, or not local, are left to `before_send`."""
    broker = tx.broker
    kind = broker.message_types.get(message_type)
    if kind is None or body is None or not broker.inspection.concerns(kind, len(body)):
        return False
    if broker.inspection.is_asked(kind, body):
        return False
    if len(body) > broker.options.max_message or not any(
        live is not None
        and may_have(tx, live)
        and (message_type in broker.checked_on_send or _stays(tx, live))
        for live in map(broker.endpoints.find, handles)
    ):
        return False
    tx.inspecting((body,))
    broker.inspection.check(kind, body, done)
    return True


def before_sends(
    tx: Transaction, live: Live, messages: Iterable[tuple[str, bytes | None]]
) -> Blocked | None:
    """Do the same as `before_send` for many messages of one dialog, with a single wait."""
    if not _stays(tx, live):
        return None
    wanted: list[tuple[MessageType, bytes]] = []
    inspection = tx.broker.inspection
    for message_type, body in messages:
        kind = tx.broker.message_types.get(message_type)
        if kind is None or body is None or not inspection.concerns(kind, len(body)):
            continue
        if not _has_verdict(tx.broker, kind, body):
            wanted.append((kind, body))
    if not wanted:
        return None
    tx.inspecting(body for _, body in wanted)

    def check_all(resume: Resume) -> None:
        left = len(wanted)

        def checked() -> None:
            nonlocal left
            left -= 1
            if not left:
                resume()

        for kind, body in wanted:
            inspection.check(kind, body, checked)

    return Blocked(CHECK, check_all)


def _has_verdict(broker: Broker, kind: MessageType, body: bytes) -> bool:
    """Return whether a body has a verdict; raise if its check came to no verdict."""
    verdict = broker.inspection.verdict(kind, body)
    if verdict is None:
        return False
    if verdict.outcome is Outcome.OVERRUN:
        raise CheckOverrun(f"a body of message type {kind.name!r} was not sent: {verdict.text}")
    if verdict.outcome is Outcome.UNAVAILABLE:
        raise CheckUnavailable(f"a body of message type {kind.name!r} was not sent: {verdict.text}")
    return True


def _stays(tx: Transaction, live: Live) -> bool:
    endpoint = tx.view(live)
    return endpoint is not None and tx.broker.delivers_directly(live, endpoint.send_sequence)
