"""Failures: the error class for the code in a FAILED frame.

Reads:  FAILED frames.     Never: invents a code; an unknown one becomes a plain `BrokerError`.
"""

from typing import Final

from brokerd import errors
from brokerd.errors import BrokerError, RemoteError
from brokerd.protocol.client_frames import Failed


class Interrupted(errors.TransactionAborted):
    """The connection was lost while this transaction was open; it has been rolled back (REL-3)."""


def _by_code() -> dict[str, type[BrokerError]]:
    found = [each for each in vars(errors).values() if isinstance(each, type)]
    return {
        each.code: each
        for each in found
        if issubclass(each, BrokerError) and not issubclass(each, RemoteError)
    }


_CLASSES: Final = _by_code()


def rebuild(failed: Failed) -> BrokerError:
    """Return the error that a FAILED frame describes, ready to be raised.

    Raises: nothing.
    """
    kind = _CLASSES.get(failed.code, BrokerError)
    error = kind(failed.message, hint=failed.hint or None)
    if kind.code != failed.code:
        error.code = failed.code  # type: ignore[misc]  # a newer daemon knows more codes
    if kind.retryable != failed.retryable:
        error.retryable = failed.retryable  # type: ignore[misc]  # the daemon knows better
    if kind.ssb_code != failed.ssb_code:
        error.ssb_code = failed.ssb_code  # type: ignore[misc]  # one name, several numbers
    return error
