"""Exit statuses: one table that maps codes of errors to the exit statuses of commands.

Reads:  the code of an error.      Calls: nothing.
Never:  leaves out an error that a command can end with; a test checks all error classes.
docs/how-to/operate.md has the same table; a test compares the two. Numbers are those of
sysexits.h if it has one for the case.
"""

from typing import Final, NamedTuple

from brokerd.errors import BrokerError, ProcessEnded, RemoteError, StoreFault

OK: Final = 0
FAILED: Final = 1
LOOK: Final = 2
UNSEEN: Final = 3
USAGE: Final = 64
REFUSED: Final = 65
NOT_THERE: Final = 67
UNAVAILABLE: Final = 69
INTERNAL_ERROR: Final = 70
TAKEN: Final = 73
IO_ERROR: Final = 74
LATER: Final = 75
DENIED: Final = 77
CONFIG: Final = 78
INTERRUPTED: Final = 130


class Row(NamedTuple):
    """One exit status."""

    status: int
    short: str
    """Short description, for the last lines of a help text."""
    codes: tuple[str, ...] = ()
    """Codes of the errors that lead to this status."""


ROWS: Final = (
    Row(OK, "done"),
    Row(
        FAILED,
        "it did not work out",
        (
            "bench_failed",
            "broker_error",
            "dialog_ended",
            "handler_left_transaction_open",
            "invalid_state",
            "outcome_unknown",
            "pairing_failed",
            "process_ended",
            "queue_disabled",
            "receive_timeout",
            "remote_error",
            "service_moved",
            "unexpected_message",
            "would_wait_forever",
        ),
    ),
    Row(LOOK, "something asks for action"),
    Row(UNSEEN, "something could not be looked at"),
    Row(
        USAGE,
        "wrong words or values",
        (
            "activation_incomplete",
            "bad_request",
            "contract_unusable",
            "duplicate_handle",
            "error_needs_code_and_text",
            "group_service_mismatch",
            "invalid_argument",
            "invalid_lifetime",
            "invalid_name",
            "invalid_priority",
            "may_not_own_certificates",
            "not_in_contract",
            "null_body",
            "object_invalid",
            "query_failed",
            "reserved_message_type",
            "timer_beyond_lifetime",
            "usage",
            "wrong_direction",
        ),
    ),
    Row(
        REFUSED,
        "store, object or body refused",
        (
            "activation_conflict",
            "bad_traffic",
            "check_overrun",
            "duplicate_broker",
            "duplicate_binding",
            "duplicate_priority",
            "in_use",
            "message_too_large",
            "not_comparable",
            "object_exists",
            "objects_refused",
            "schema_validation_failed",
            "store_damaged",
            "store_missing",
            "store_moved",
            "validation_failed",
        ),
    ),
    Row(
        NOT_THERE,
        "nothing of that name",
        (
            "contract_not_found",
            "conversation_not_found",
            "group_not_found",
            "message_type_not_found",
            "no_summary",
            "object_not_found",
            "queue_not_found",
            "service_not_found",
        ),
    ),
    Row(
        UNAVAILABLE,
        "not reachable, or address taken",
        (
            "broker_unavailable",
            "connection_lost",
            "daemon_unreachable",
            "java_missing",
            "port_taken",
            "postgresql_extra_missing",
            "query_extra_missing",
            "report_extra_missing",
            "too_many_open_files",
        ),
    ),
    Row(
        INTERNAL_ERROR,
        "internal error",
        ("internal_error", "no_such_tx", "protocol_error"),
    ),
    Row(TAKEN, "store or directory in use", ("bench_directory", "demo_directory", "store_locked")),
    Row(
        IO_ERROR,
        "input or output failed",
        (
            "backup_failed",
            "copy_failed",
            "lake_unreadable",
            "landing_refused",
            "restore_failed",
            "result_unreadable",
            "store_fault",
            "traffic_unreadable",
        ),
    ),
    Row(
        LATER,
        "not now, try again",
        (
            "busy",
            "check_unavailable",
            "deadlock_victim",
            "lock_timeout",
            "queue_full",
            "quota_exceeded",
            "store_full",
            "transaction_aborted",
        ),
    ),
    Row(DENIED, "no permission", ("access_denied",)),
    Row(
        CONFIG,
        "configuration or file of objects wrong",
        ("config", "handler", "no_master_key", "store_version", "unsafe_file"),
    ),
    Row(INTERRUPTED, "interrupted"),
)

_BY_CODE: Final = {code: row.status for row in ROWS for code in row.codes}

HELP: Final = "Exit status: " + ", ".join(f"{row.status} {row.short}" for row in ROWS) + "."
"""The list of statuses, for the end of a help text."""


def exit_status(error: BaseException) -> int:
    """Return the exit status of a program that ends because of an error.

    A fault of the store has its own status (reliability, section 2), and so may the error of a
    process that was started for the command. An exception that is not one of brokerd's is an
    internal error. A code that is not in the table comes from a newer daemon; its status depends
    on whether a retry can help.
    """
    if isinstance(error, StoreFault):
        return error.exit_status
    if isinstance(error, ProcessEnded) and error.exit_status is not None:
        return error.exit_status
    if not isinstance(error, BrokerError):
        return INTERNAL_ERROR
    if isinstance(error, RemoteError):  # the code is that of an error found by another broker
        return FAILED
    return _BY_CODE.get(error.code, LATER if error.retryable else FAILED)
