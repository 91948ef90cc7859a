"""Errors: every exception that brokerd raises on purpose.

Each has a stable `code` (for wire, logs, docs and tests), `retryable` (whether a retry can help), a
`hint` (what to do), and the Service Broker number if there is one (`ssb_code`). Appendix A of the
programming model lists the errors that users meet.
"""

import shlex
from typing import ClassVar, Final, Self

from brokerd.rule_ids import without_rules

_NOTE: Final = "fix: "
_DECLARED: Final = "names are compared byte by byte; is it in the file that was applied last?"


class BrokerError(Exception):
    """Base of all errors of brokerd."""

    code: ClassVar[str] = "broker_error"
    retryable: ClassVar[bool] = False
    ssb_code: ClassVar[int | None] = None
    hint: ClassVar[str] = ""

    def __init__(
        self, message: str = "", *, hint: str | None = None, ssb_code: int | None = None
    ) -> None:
        super().__init__(message or without_rules((self.__doc__ or "").split("\n", 1)[0]))
        if hint is not None:
            self.hint = hint  # type: ignore[misc]  # an instance may be more exact
        if ssb_code is not None:
            self.ssb_code = ssb_code  # type: ignore[misc]  # likewise
        self._note_hint()

    def _note_hint(self) -> None:
        """Make the hint the last note, which tracebacks show below the message, once (SDK-26)."""
        notes = [one for one in getattr(self, "__notes__", ()) if not one.startswith(_NOTE)]
        if self.hint:
            notes.append(f"{_NOTE}{self.hint}")
        if notes:
            self.__notes__ = notes

    def advise(self, hint: str) -> None:
        """Replace the hint by a more exact one."""
        self.hint = hint  # type: ignore[misc]  # an instance may be more exact
        self._note_hint()

    @property
    def message(self) -> str:
        """One sentence that describes the error."""
        return str(self)

    @property
    def with_cure(self) -> str:
        """The message and the hint in one line, for a log or a view."""
        return f"{self.message}; fix: {self.hint}" if self.hint else self.message


# Refusals of verbs (appendix A).


class InvalidArgument(BrokerError):
    """An argument is not of the form the verb takes."""

    code = "invalid_argument"
    hint = "give what the message asks for; nothing was changed"


class BadRequest(BrokerError):
    """A request is not of the form of the client protocol (CLP)."""

    code = "bad_request"
    hint = "give what the message asks for; if you did: are client and daemon of one version?"


class InternalError(BrokerError):
    """Something nobody foresaw has failed; what was asked has had no effect (CLP-120)."""

    code = "internal_error"
    hint = "the log of the daemon has the traceback: please report it"


class InvalidName(BrokerError):
    """A name is empty, too long or not allowed for its kind (OBJ-8, OBJ-10, OBJ-11)."""

    code = "invalid_name"
    hint = "give another: 1 to 128 characters, not ANY, and for a queue not beginning with #"


class ServiceNotFound(BrokerError):
    """The local service does not exist (DLG-2)."""

    code = "service_not_found"
    ssb_code = 8423
    hint = _DECLARED


class ContractNotFound(BrokerError):
    """The contract does not exist in this broker (DLG-2)."""

    code = "contract_not_found"
    ssb_code = 8425
    hint = _DECLARED


class QueueNotFound(BrokerError):
    """The queue does not exist in this broker."""

    code = "queue_not_found"
    hint = "names are compared byte by byte; see the queues with: brokerd status"


class ConversationNotFound(BrokerError):
    """No conversation with this handle is open here (SND-2)."""

    code = "conversation_not_found"
    ssb_code = 8426
    hint = "see the open ones with: brokerd dialog ls; if it is over, begin a new one"


class GroupNotFound(BrokerError):
    """No such conversation group (GRP-19)."""

    code = "group_not_found"
    ssb_code = 8436
    hint = "a group lives while a dialog in it does; it is locked by receiving from it"


class InvalidState(BrokerError):
    """The verb is not allowed in the state of this conversation (SND-2, DLG-19)."""

    code = "invalid_state"
    ssb_code = 8427
    hint = (
        "see the state with: brokerd dialog show HANDLE; a dialog that the other side has ended, "
        "or that is in error, can only be received from and ended; once this side has ended it, "
        "nothing more can be done with it, but if it waits for a side that will never answer, "
        "remove it and its unsent messages: brokerd dialog end HANDLE --cleanup --reason WHY"
    )
    """The `ssb_code` above is that of `end`; `send` has 8429, `move` 8438, `set_timer` 8458."""


class InvalidLifetime(BrokerError):
    """A lifetime is outside 1 to 2147483647 seconds (DLG-10)."""

    code = "invalid_lifetime"
    ssb_code = 8411
    hint = "give whole seconds in that range, or leave it out"


class TimerBeyondLifetime(BrokerError):
    """A conversation timer would be due after the dialog has expired (DLG-38)."""

    code = "timer_beyond_lifetime"
    ssb_code = 8410
    hint = "set it to fall within the lifetime given when the dialog began"


class MessageTypeNotFound(BrokerError):
    """The message type does not exist in this broker."""

    code = "message_type_not_found"
    ssb_code = 8428
    hint = _DECLARED


class NotInContract(BrokerError):
    """The message type is not part of the dialog's contract (OBJ-28)."""

    code = "not_in_contract"
    ssb_code = 8431
    hint = "use a message type of the contract, or begin the dialog under another one"


class WrongDirection(BrokerError):
    """The contract reserves this message type to the other side (OBJ-28)."""

    code = "wrong_direction"
    ssb_code = 8432
    hint = "the contract says which side sends it: initiator, target or any"


class ValidationFailed(BrokerError):
    """The body is not what its message type asks for (PBT-14)."""

    code = "validation_failed"
    ssb_code: ClassVar[int | None] = 8430
    hint = "the message says where; nothing was sent"


class SchemaValidationFailed(ValidationFailed):
    """The body is not what the schema of its message type says (PBT-14)."""

    code = "schema_validation_failed"
    ssb_code = 9616
    hint = "the message says where it differs from the schema; nothing was sent"


class CheckOverrun(ValidationFailed):
    """The check of the body came to no verdict: it took too much time or memory (OBJ-62)."""

    code = "check_overrun"
    ssb_code = None  # Service Broker has no such error (ERR-8430)
    hint = "send a smaller body, simplify the schema, or raise checks.time or checks.memory"


class CheckUnavailable(BrokerError):
    """Bodies cannot be checked at present; no message whose type requires that is sent (OBJ-61)."""

    code = "check_unavailable"
    retryable = True
    hint = "the event log of the daemon says why its process for checks does not start"


class ReservedMessageType(BrokerError):
    """System message types are sent by the broker only (OBJ-27)."""

    code = "reserved_message_type"
    hint = "end the dialog with end(handle), or with an error code and a text"


class NullBody(BrokerError):
    """A body was given as None; leave it out to send none (SND-11)."""

    code = "null_body"
    ssb_code = 8433
    hint = "leave the body out, or give bytes"


class DuplicateHandle(BrokerError):
    """A handle is given twice in one send (SND-8)."""

    code = "duplicate_handle"
    ssb_code = 8451
    hint = "give each handle once"


class MessageTooLarge(BrokerError):
    """The message is over the configured size (SND-12)."""

    code = "message_too_large"
    ssb_code = 8459
    hint = "send it in several messages, or raise dialog.max_message"


class ErrorNeedsCodeAndText(BrokerError):
    """Ending with an error takes a positive code and a text (DLG-20)."""

    code = "error_needs_code_and_text"
    ssb_code = 8419
    hint = "give a code above 0 and a description with it (--error 7 --description WHY), or neither"


class GroupServiceMismatch(BrokerError):
    """All dialogs of a group belong to one local service (DLG-8)."""

    code = "group_service_mismatch"
    ssb_code = 9610
    hint = "begin the dialog in a group of its own service, or in none"


class QueueDisabled(BrokerError):
    """The queue is off (RCV-17)."""

    code = "queue_disabled"
    ssb_code = 9617
    hint = (
        "see why with: brokerd queue show QUEUE; switch it on: brokerd queue alter QUEUE status=on"
    )


class QueueFull(BrokerError):
    """The queue at the other side, in the same broker, is at one of its limits (REL-42)."""

    code = "queue_full"
    retryable = True
    hint = (
        "let its messages be received, or raise the limit: "
        "brokerd queue alter QUEUE max_messages=N max_bytes=SIZE"
    )


class HandlerLeftTransactionOpen(BrokerError):
    """The handler ended with a transaction open; it was rolled back (ACT-23)."""

    code = "handler_left_transaction_open"
    ssb_code = 8415
    hint = "use `async with session.transaction()`, or commit before the handler returns"


class ServiceMoved(BrokerError):
    """The service of this conversation was given another queue while a receive waited (OBJ-35)."""

    code = "service_moved"
    hint = "receive from the queue that the message names"


class LockTimeout(BrokerError):
    """Another transaction held the conversation group for too long (GRP-11)."""

    code = "lock_timeout"
    retryable = True
    hint = "roll back and do it again; the message says who holds the group"


class DeadlockVictim(BrokerError):
    """The transaction was rolled back to break a deadlock (GRP-12)."""

    code = "deadlock_victim"
    retryable = True
    hint = "do the whole transaction again"


class Busy(BrokerError):
    """A limit on what may be outstanding is reached; try again when answers have come."""

    code = "busy"
    retryable = True
    hint = "wait for answers before asking more"


class BrokerUnavailable(BrokerError):
    """A broker of the instance cannot be opened; the daemon tries again (CLK-6)."""

    code = "broker_unavailable"
    retryable = True

    @classmethod
    def because(cls, name: str, reason: BrokerError) -> Self:
        """Return the error for the broker `name`, with the reason why it cannot be opened."""
        return cls(f"broker {name!r} cannot be opened: {reason.message}", hint=reason.hint)


class DuplicateBroker(BrokerError):
    """The identifier is active in this instance already (OBJ-3)."""

    code = "duplicate_broker"
    ssb_code = 9772
    hint = "give one of the two an identifier of its own: brokerd broker new-id"


class BackupFailed(BrokerError):
    """The copy of a store could not be written; no file is left, and the store is as it was."""

    code = "backup_failed"
    hint = "choose a directory that the daemon may write to and that has room"


class RestoreFailed(BrokerError):
    """A store could not be rebuilt from a backup chain; nothing was replaced (REL-49)."""

    code = "restore_failed"
    hint = "brokerd store restore --list DIR shows which states can be rebuilt"


class CopyFailed(BrokerError):
    """A store could not be copied; the source is as it was, and no target is left (REL-61)."""

    code = "copy_failed"
    hint = "run the same command again"


class NoSuchTx(BrokerError):
    """The request names a transaction that is finished or was never begun (REL-3)."""

    code = "no_such_tx"
    hint = "a transaction ends with its block: begin another one"


class TransactionAborted(BrokerError):
    """An earlier request of this transaction failed; roll back and start again."""

    code = "transaction_aborted"
    retryable = True
    hint = "do the whole transaction again"


class OutcomeUnknown(BrokerError):
    """The client could not learn whether the commit took effect (REL-2)."""

    code = "outcome_unknown"
    hint = "the client has asked, and nobody knows: look for its effect before you do it again"


class QuotaExceeded(BrokerError):
    """A limit of the broker is reached; what is stored already stays (SND-24)."""

    code = "quota_exceeded"
    retryable = True
    hint = "commit in smaller transactions, or wait until some of it has gone"


class StoreFull(BrokerError):
    """The disk has no room for new messages; receiving and ending still work (REL-26)."""

    code = "store_full"
    retryable = True
    hint = "make room on the disk; it goes on by itself then"


# Errors of the client library itself.


class ConnectionLost(BrokerError):
    """The connection to the daemon is gone and could not be made again in time."""

    code = "connection_lost"
    retryable = True
    hint = "is the daemon running? brokerd status"


class TooManyOpenFiles(ConnectionLost):
    """The process or the machine may open no more files, and a connection is one."""

    code = "too_many_open_files"
    hint = "raise the limit (ulimit -n, here and where the daemon starts) or use fewer connections"


class AccessDenied(BrokerError):
    """A client asks for what its user has no permission to do."""

    code = "access_denied"
    ssb_code = 8494
    hint = "an administrator of the instance can grant it: brokerd grant --help"


class RemoteError(BrokerError):
    """The far side of the dialog ended it with an error (DLG-28).

    `number` is negative if a broker found the error. Then `code` is the name of the error in
    appendix A, `ssb_code` its number without the sign, and `retryable` whether a new dialog may
    succeed (ERR-1).
    """

    code = "remote_error"
    hint = "it comes from the program at the other side, and means what the two have agreed on"

    def __init__(self, number: int, description: str) -> None:
        super().__init__(f"the dialog ended with error {number}: {description}")
        self.number = number
        self.description = description
        if number < 0:
            self.ssb_code = -number  # type: ignore[misc]  # one class, all numbers
            self.retryable = self.resend_may_help  # type: ignore[misc]  # ERR-1
            code, hint = FOUND_BY_BROKERS.get(number, (self.code, _OF_ANOTHER_VERSION))
            self.code = code  # type: ignore[misc]  # one class, all numbers
            self.advise(hint)

    @property
    def resend_may_help(self) -> bool:
        """Whether the same messages may arrive on a new dialog (ERR-1).

        After any other error of a broker, a new dialog would fail in the same way. The meaning of
        an application's error is known only to the applications."""
        return self.number in RESEND_HELPS


RESEND_HELPS: Final = frozenset({-8489, -8462, -9719, -60002})
"""Errors after which a new dialog may succeed: lifetime over, other side gone or restored, idle."""
_OF_ANOTHER_VERSION: Final = "the description says what the broker at the other side found"
FOUND_BY_BROKERS: Final = {
    -8408: (
        "contract_not_supported",
        "let the service there accept the contract (brokerd service alter), and begin a new dialog",
    ),
    -8425: (
        "contract_not_found",
        "the broker there lacks the contract: apply the same declaration there, and begin anew",
    ),
    -8428: (
        "message_type_not_found",
        "the broker there lacks the message type: apply the same declaration there",
    ),
    -8430: ("validation_failed", "send a body that is what the message type asks for there"),
    -8437: ("wrong_direction", "the contract differs there: apply the same declaration on both"),
    -8457: ("wrong_direction", "the contract differs there: apply the same declaration on both"),
    -8459: ("message_too_large", "send it in several messages, or raise dialog.max_message there"),
    -8462: ("peer_gone", "send again on a new dialog"),
    -8469: ("peer_service_altered", "the service there does not accept this contract any more"),
    -8470: ("peer_service_dropped", "the service there is gone: is there another one to talk to?"),
    -8487: ("peer_contract_dropped", "the contract is gone: use one that both sides have"),
    -8489: ("lifetime_exceeded", "send again on a new dialog, with a longer lifetime"),
    -8490: (
        "remote_service_not_found",
        "create the service there, or correct its name; a broker_id, or the broker of the route"
        " that was taken, has to be that of the broker that has it",
    ),
    -8494: (
        "access_denied",
        "have the other side grant it: brokerd grant send on SERVICE to PRINCIPAL",
    ),
    -8495: ("already_acknowledged_elsewhere", "another copy of the service has the dialog: go on"),
    -8498: ("not_in_contract", "the contract differs there: apply the same declaration on both"),
    -9615: ("schema_validation_failed", "send a body that is what the schema there asks for"),
    -9616: ("schema_validation_failed", "the other side sent a body that the schema refuses"),
    -9719: ("broker_restored", "send again on a new dialog what the restored broker lacks"),
    -9720: ("broker_restored", "the other side is of an earlier time now: begin a new dialog"),
    -9727: (
        "no_binding",
        "it was to be encrypted: name the owner of its target by a remote service binding"
        " (brokerd binding create), or begin with encryption=False",
    ),
    -9731: (
        "no_certificate",
        "make a dialog certificate where dialogs begin: brokerd certificate renew",
    ),
    -60001: ("history_lost", "see what the other side still has, and begin a new dialog"),
    -60002: (
        "dialog_idle",
        "begin a new dialog when there is something to say; dialog.idle_after of the broker that"
        " ended it says how long one may be silent",
    ),
}
"""Code and hint, by the number of an Error message from a broker (appendix A)."""


class DialogEnded(BrokerError):
    """The far side has ended the dialog; this side has been ended too."""

    code = "dialog_ended"
    hint = "begin a new dialog"


class WouldWaitForever(BrokerError):
    """The program waits for an answer before its transaction has sent the question (SDK-7)."""

    code = "would_wait_forever"
    hint = "leave the transaction block first: nothing is sent before its commit"


class ReceiveTimeout(BrokerError):
    """No message came on this dialog in time; it may still come."""

    code = "receive_timeout"
    retryable = True
    hint = "receive again: it will come to the same dialog"


class UnexpectedMessage(BrokerError):
    """A message is of a type that was not asked for; it stays in the queue."""

    code = "unexpected_message"
    hint = "ask for its type as well, or end the dialog"


# Errors that stop a program before or while it runs.


class Refusal(BrokerError):
    """A command cannot do what it was asked; nothing has been changed."""


class UsageError(Refusal):
    """The words of a command are off."""

    code = "usage"


class ProcessEnded(Refusal):
    """A process that a command has started is gone before it was to end.

    `exit_status` is that of the process if it has reported why it ends; the command then exits
    with the same status.
    """

    code = "process_ended"

    def __init__(
        self, message: str = "", *, hint: str | None = None, exit_status: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.exit_status = exit_status


class ConfigError(Refusal):
    """The configuration is wrong; every problem found is listed."""

    code = "config"


class StoreLocked(Refusal):
    """Another daemon has this store open (REL-16)."""

    code = "store_locked"
    hint = "stop that process, or give this instance an instance.data_dir of its own"


class StoreDamaged(Refusal):
    """The store is not what it should be (REL-5, REL-6)."""

    code = "store_damaged"
    hint = (
        "put a backup in its place, or move it away to start with an empty store; "
        "its -wal and -shm files go with it"
    )


class StoreMoved(Refusal):
    """The store goes on elsewhere, or is a copy that was not finished (REL-61)."""

    code = "store_moved"
    hint = (
        "start the daemon with settings that name the other place; if the copy was interrupted, "
        "run the same brokerd store copy again, which finishes it"
    )


class PostgresqlExtraMissing(Refusal):
    """The driver of PostgreSQL is not installed."""

    code = "postgresql_extra_missing"
    hint = "install it with: pip install 'brokerd[postgresql]'"


class UnsafeFile(Refusal):
    """A file is a link, belongs to somebody else, or may be written to by others (SX-24)."""

    code = "unsafe_file"


class NoMasterKey(Refusal):
    """The master key is missing, or another one encrypted the keys that are stored (SEC-38)."""

    code = "no_master_key"
    ssb_code = 28055
    hint = (
        "put the file master.key back into instance.data_dir from a backup of the same time, with "
        "mode 0600, and start the daemon again; if it is lost for good: brokerd certificate "
        "replace-key"
    )


class StoreMissing(Refusal):
    """The file of a broker that this instance has is not there (MAN-17)."""

    code = "store_missing"

    @classmethod
    def for_broker(cls, name: str, path: object, broker_id: str) -> Self:
        """Return the error for a broker whose file existed before."""
        return cls(
            f"{path} is not there, and this instance has a broker {name} ({broker_id}): was a "
            "mount forgotten, or the file moved?",
            hint="mount it, move it back (a -wal file beside it first), or put a backup in its "
            f"place; if it is gone for good: brokerd broker forget {shlex.quote(name)}",
        )

    @classmethod
    def for_schema(cls, name: str, place: str, broker_id: str) -> Self:
        """Return the error for a broker whose schema in a database existed before."""
        return cls(
            f"{place} is not there, and this instance has a broker {name} ({broker_id})",
            hint="check store.url and store.schema_prefix, or restore the schema; if it is gone "
            f"for good: brokerd broker forget {shlex.quote(name)}",
        )


class StoreVersion(Refusal):
    """The store was written by another version (REL-29)."""

    code = "store_version"


class PortTaken(Refusal):
    """An address to listen on is in use or not ours."""

    code = "port_taken"
    hint = (
        "stop the program that uses the address, or choose another one; it must be an address of "
        "this machine"
    )
    in_use_at = ""
    """The address, if a process listens on it, possibly the daemon that is to be restarted."""


class DaemonUnreachable(Refusal):
    """No daemon answers at the given address."""

    code = "daemon_unreachable"


class ObjectsRefused(Refusal):
    """A declaration of objects cannot be applied; nothing was changed (design D9)."""

    code = "objects_refused"
    hint = "mend what the message names; nothing was changed"


class InUse(ObjectsRefused):
    """Another object or an open dialog needs it; nothing was changed (OBJ-22, OBJ-37, OBJ-42)."""

    code = "in_use"
    hint = "let go of it first: alter or drop what the message names"


class InvalidPriority(ObjectsRefused):
    """The level of a priority is not 1 to 10 (OBJ-48)."""

    code = "invalid_priority"
    hint = "give a level from 1 (lowest) to 10; left out it is 5"


class ContractUnusable(ObjectsRefused):
    """The initiator could send nothing under this contract (OBJ-24)."""

    code = "contract_unusable"
    ssb_code = 8492
    hint = "let the initiator, or any side, send at least one of its types"


class ActivationIncomplete(ObjectsRefused):
    """Activation needs a handler and a principal (OBJ-60)."""

    code = "activation_incomplete"
    ssb_code = 9613
    hint = 'give activation.handler ("module:function") and, if not the owner, activation.run_as'


class ActivationConflict(ObjectsRefused):
    """A queue is activated from within and from without at once (ACT-35)."""

    code = "activation_conflict"
    ssb_code = 9717
    hint = "drop the event notification for QUEUE_ACTIVATION, or switch the queue's activation off"
    """`ssb_code` is for switching activation on; creating a notification has 9718 instead."""


class DuplicatePriority(ObjectsRefused):
    """Another priority has the same criteria (OBJ-51)."""

    code = "duplicate_priority"
    hint = "alter that one, or give this one other criteria"


class DuplicateBinding(ObjectsRefused):
    """Another remote service binding is for the same service (SEC-18)."""

    code = "duplicate_binding"
    hint = "alter that one; a service has one binding in each broker"


class MayNotOwnCertificates(ObjectsRefused):
    """The principal of a remote service binding may not own certificates (SEC-18)."""

    code = "may_not_own_certificates"
    ssb_code = 28083
    hint = "name a peer, peer:NAME; brokerd peer ls shows those that are here"


class PairingFailed(BrokerError):
    """Two instances could not be paired; nothing is left of the attempt (SEC-62)."""

    code = "pairing_failed"
    hint = "mend what the message names, and run brokerd peer pair again"


class ObjectExists(ObjectsRefused):
    """There is an object of this kind and name already (OBJ-12)."""

    code = "object_exists"
    hint = "alter it, or choose another name"


class ObjectInvalid(ObjectsRefused):
    """A key of an object has a value that it does not take (CLP-81)."""

    code = "object_invalid"


class ObjectNotFound(ObjectsRefused):
    """There is no object of this kind and name in the broker."""

    code = "object_not_found"
    hint = "names are compared byte by byte; the command ls of its kind lists what there is"


IO_FAULT: Final = 74
"""Exit status after which a supervisor starts the daemon again."""
BAD_FILE: Final = 65
"""Exit status if the file itself is bad, so that starting again would not help."""


class StoreFault(BrokerError):
    """Writing to the store failed; the daemon stops at once (REL-5).

    `exit_status` is 65 if the file is bad, 70 if this program has broken a rule of the store, and
    74 otherwise (reliability, section 2).
    """

    code = "store_fault"

    def __init__(
        self, message: str = "", *, hint: str | None = None, exit_status: int = IO_FAULT
    ) -> None:
        super().__init__(message, hint=hint)
        self.exit_status = exit_status


# Violations of the protocol by a peer or a client, which cost only that side its connection.


class ProtocolError(BrokerError):
    """The far end broke the protocol; the connection is closed (TRN-44)."""

    code = "protocol_error"
