"""Recorder: receives the requests of a session and their outcomes (reliability 7.1).

Called: by `Session` and `Transaction`, if a recorder was given to `connect`.
Fields: always op ("begin_dialog", "send", "receive", "end", "set_timer", "savepoint",
"rollback_to", "commit", "rollback"), kind ("invoke", "ok", "fail", "info" = unknown), client, and
tx (number of the transaction in its session); depending on op: token (with the outcome of a
commit), dialog, handle, group, queue, seq, message_type, body, headers, savepoint, reason, timer
(its name), after (milliseconds until it is due, None = cancelled). Ids and bodies are bytes,
headers are a dict. A receive
is one "invoke", then one "ok" per message, or one "ok" without a seq. The "ok" of a "rollback_to"
undoes the requests made between the savepoint of that number and its own "invoke".
Never:  decides anything. A recorder that raises breaks the verb that called it.
"""

from typing import Protocol

from brokerd.errors import BrokerError, ConnectionLost, OutcomeUnknown


class Recorder(Protocol):
    """A receiver of one client's events, in the order in which they happened."""

    def event(self, **fields: object) -> None:
        """Record one event.

        An error in this method breaks the verb that called it.

        Raises: nothing.
        """
        ...


def outcome(error: BaseException | None) -> dict[str, object]:
    """Return kind and reason of a commit's outcome; "info" = it may have taken effect.

    Raises: nothing.
    """
    if error is None:
        return {"kind": "ok"}
    if isinstance(error, OutcomeUnknown | ConnectionLost) or not isinstance(error, BrokerError):
        return {"kind": "info", "reason": getattr(error, "code", type(error).__name__)}
    return {"kind": "fail", "reason": error.code}
