"""Recorder: receives the requests of a session and their outcomes (reliability 7.1).

Called: by `Session` and `Transaction`, and only if one was given to `connect`.
Fields: op ("begin_dialog", "send", "receive", "end", "set_timer", "savepoint", "rollback_to",
"commit", "rollback"), kind ("invoke", "ok", "fail", "info" = unknown), client and tx (a number of
this session's own) always; by op: token (with what a commit came to), dialog, handle, group, queue,
seq, message_type, body, savepoint, reason, timer (its name), after (milliseconds until it is due,
None = cancelled). Ids and bodies are bytes. A receive is one "invoke", then one
"ok" a message, or one without a seq. What an "ok" of "rollback_to" undoes was asked for after the
savepoint of that number and before the "invoke".
Never:  decides anything. A recorder that raises breaks the verb that called it.
"""

from typing import Protocol

from brokerd.errors import BrokerError, ConnectionLost, OutcomeUnknown


class Recorder(Protocol):
    """Takes the events of one client in the order in which they happened."""

    def event(self, **fields: object) -> None:
        """Record one event.

        An error that it raises breaks the verb that called it.

        Raises: nothing.
        """
        ...


def outcome(error: BaseException | None) -> dict[str, object]:
    """Return kind and reason of the outcome of a commit; one that is not surely refused is "info".

    Raises: nothing.
    """
    if error is None:
        return {"kind": "ok"}
    if isinstance(error, OutcomeUnknown | ConnectionLost) or not isinstance(error, BrokerError):
        return {"kind": "info", "reason": getattr(error, "code", type(error).__name__)}
    return {"kind": "fail", "reason": error.code}
