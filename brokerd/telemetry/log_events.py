"""The events of the event log: when each is written, its subclasses, its Service Broker number.

Reads:  nothing.      Calls: nothing.
Never:  writes a line: `logs.py` does, and has a constant for each name. The reference page of the
        events is made from these texts.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Event(NamedTuple):
    """One event."""

    meaning: str
    """The subject of the event, and when it is written if it has no subclass."""
    subclasses: Mapping[str, str] = MappingProxyType({})
    """When each subclass is written; empty = the event has no subclasses and lacks the field."""
    ssb_id: int | None = None
    """Service Broker's number of the event class, the field `ssb_event_id`."""


EVENTS: Final[dict[str, Event]] = {
    "broker.connection": Event(
        "A connection to another instance. Written once for each change, at level debug for "
        "`connecting`.",
        {
            "connecting": "an attempt to connect began",
            "connected": "the attempt succeeded and both sides are ready",
            "accept": "a peer connected and both sides are ready",
            "connect_failed": "the attempt failed, with the reason",
            "closing": "the connection is being closed in order",
            "closed": "the connection is closed, with what it carried",
            "receive_io_error": "receiving failed",
        },
        ssb_id=138,
    ),
    "broker.conversation": Event(
        "The life of a dialog. What ends a dialog before its time is written at level info, the "
        "rest at level debug.",
        {
            "begin_dialog": "a program began a dialog",
            "dialog_created": "the first message of a dialog created its target side",
            "send": "a message was sent",
            "received_sequenced": "a message arrived",
            "end": "this side ended the dialog",
            "received_end": "the other side ended the dialog",
            "received_end_ack": "the other side acknowledged the end",
            "end_with_error": "this side ended the dialog with an error",
            "received_error": "the other side ended the dialog with an error",
            "broker_error": "this broker ended the dialog with an error",
            "received_broker_error": "the broker at the other side ended the dialog with an error",
            "terminate": "the lifetime was over before the other side acknowledged the end",
            "end_with_cleanup": "an operator removed this side of the dialog",
        },
        ssb_id=124,
    ),
    "broker.conversation_group": Event(
        "A conversation group, at level debug.",
        {
            "create": "a dialog began in a new group",
            "drop": "the last dialog of the group is gone",
        },
        ssb_id=136,
    ),
    "broker.corrupted_message": Event(
        "Something that arrived failed its checks and was dropped.",
        ssb_id=161,
    ),
    "broker.forwarded_message_dropped": Event(
        "A message for another instance was dropped here, with the reason. The first of each "
        "reason and next address is written, those after it are summed up (FWD-12).",
        ssb_id=140,
    ),
    "broker.forwarded_message_sent": Event(
        "A message was passed on to another instance, at level debug.",
        ssb_id=139,
    ),
    "broker.message_classify": Event(
        "It was decided where a dialog sends to. `local` and `remote` are at level debug.",
        {
            "local": "to a service of this instance",
            "remote": "to another instance",
            "delayed": "nowhere at present, with the reason; it is decided again later",
            "ambiguous": "several services fit, and one was chosen (NBT-18)",
        },
        ssb_id=141,
    ),
    "broker.message_undeliverable": Event(
        "A message that arrived was not put on a queue, with the reason; its sender repeats it if "
        "that can help.",
        {
            "sequenced": "a message of a dialog",
            "unsequenced": "an acknowledgement, or another item without a number",
        },
        ssb_id=160,
    ),
    "broker.mirrored_route": Event(
        "Which of the two addresses of a mirrored route works has changed.",
        {
            "operational": "both answer, and one is the principal",
            "principal_only": "only the principal answers",
            "not_operational": "neither is known as the principal",
        },
        ssb_id=144,
    ),
    "broker.duplicate_broker": Event(
        "Two instances deliver for one broker (RTE-71).",
        {
            "seen": "the second one was noticed",
            "over": "only one of them is left",
        },
    ),
    "broker.queue_disabled": Event(
        "Consecutive rollbacks have switched a queue off.",
        ssb_id=143,
    ),
    "broker.remote_ack": Event(
        "An acknowledgement, at level debug.",
        {
            "message_with_ack_sent": "sent with a message",
            "ack_sent": "sent on its own",
            "message_with_ack_received": "received with a message",
            "ack_received": "received on its own",
        },
        ssb_id=149,
    ),
    "broker.transmission": Event(
        "Sending failed, for one dialog or for all.",
        ssb_id=142,
    ),
    "broker.activation": Event(
        "The readers of a queue.",
        {
            "started": "a reader was started",
            "ended": "a reader ended because it found nothing more",
            "aborted": "a reader ended with an error, or its process died",
            "notified": "subscribers were told that another reader is wanted (QUEUE_ACTIVATION)",
            "task_output": "what a reader printed",
            "failed_to_start": "readers of the queue fail, and the next start waits",
            "handler_failed": "a handler raised an exception; its transaction was rolled back",
            "queue_off": "a reader waits because its queue is off",
            "queue_missing": "a reader waits because its queue does not exist",
            "receive_failed": "a reader could not receive, and tries again",
            "reads_again": "a reader that had to wait reads again",
        },
        ssb_id=163,
    ),
    "broker.activator": Event(
        "What `brokerd activator` does; it writes these lines itself, to its own log.",
        {
            "connected": "it is connected to a daemon",
            "lost": "the connection to a daemon was lost, and is made again",
            "started": "a program was started",
            "ended": "a program ended",
            "output": "what a program printed",
            "survivors": "programs of an earlier run still run, and count until they end",
            "at_max": "a program was wanted while as many run as may",
            "slot_held": "a process of an ended program still runs outside of its process group",
            "unknown_queue": "a daemon reported a queue that the file does not name",
        },
    ),
    "audit.broker_login": Event(
        "The login of a peer, where the endpoint authenticates peers (SEC-12).",
        {
            "success": "the peer logged in",
            "protocol_error": "the peer broke the protocol",
            "format_error": "what the peer sent could not be read",
            "negotiate_failure": "the two sides have no method in common",
            "authentication_failure": "the peer did not prove who it is",
            "authorization_failure": "the peer may not connect",
        },
        ssb_id=159,
    ),
    "audit.broker_conversation": Event(
        "The security of a dialog, where a message breaks it, or its sender may not send.",
        {
            "no_security_header": "a message without security arrived for a dialog that has it",
            "no_certificate": "a certificate that a message names is not installed, or not valid",
            "invalid_signature": "a message is not authentic, or was changed on its way",
            "run_as_target_failure": "the user of the target could not be used",
            "no_send_permission": (
                "a dialog of another instance was refused because its sender may not send to the "
                "service (SEC-54)"
            ),
            "error_from_elsewhere": (
                "an error of a dialog was ignored because it came from another instance than "
                "the dialog sends to (NBT-24)"
            ),
        },
        ssb_id=158,
    ),
    "broker.administration": Event(
        "An operator changed something; names who it was, and the state before and after.",
        {
            "enable": "delivery of a broker was switched on",
            "disable": "delivery of a broker was switched off, by an operator or by the daemon",
            "error_conversations": "every dialog of a broker was ended with an error",
            "new_broker": "a broker took a new identifier",
            "clean_up": "endpoints were removed without telling their peers",
            "backup": "a copy of a store was written",
            "alter_endpoint": "the broker endpoint was changed",
            "retry_destination": "a suppressed destination was tried at once",
            "cure_queue": (
                "the dialog for which a queue was switched off was ended, and the queue switched on"
            ),
            "drain_queue": "activation of a queue was switched off and its readers ended",
            "purge_queue": "dialogs with messages on a queue were ended with an error",
            "forget": "a broker whose store is gone was forgotten",
            "confirm_clock": "a jump of the clock was confirmed",
            "hand_over": "the stores are handed over to a daemon that waits for them",
            "grant": "a permission was granted",
            "revoke": "a permission was taken back",
            "pair": "another instance was installed by pairing",
            "undo_pairing": "a pairing broke off, and what it had installed was removed",
            "add_principal": "a peer or a client was added, with its certificates",
            "alter_principal": "the addresses or the instance of a peer were set",
            "revoke_principal": "a peer or a client was removed, with its certificates",
            "install_certificate": "a further certificate of a peer or a client was installed",
            "remove_certificate": "a certificate was removed",
            "switch_certificate": "the instance began to use another of its own certificates",
        },
    ),
    "broker.certificate": Event(
        "The certificates of the instance, of peers and of clients, and the keys of its own.",
        {
            "made": "the instance made a certificate of its own",
            "expires_soon": (
                "a certificate of this instance, of a peer or of a client expires in less than "
                "30, 7 or 1 days (NBT-21)"
            ),
            "expired": "such a certificate has expired, and none has replaced it",
            "received": (
                "a peer sent its next certificate, or dropped an old one, over its connection "
                "(SEC-64)"
            ),
            "list_failed": (
                "an error in the processing of a peer's list of certificates; nothing was "
                "installed (SEC-64)"
            ),
            "master_key_replaced": (
                "an operator gave the lost master key up, and the instance made another"
            ),
            "authority": "a file of the section `ca` cannot be used (SEC-69)",
            "master_key_rotated": "another master key took over from the present one (SEC-71)",
            "no_master_key": (
                "the master key is missing or another one: nothing that needs a private key works "
                "(SEC-38)"
            ),
        },
    ),
    "broker.daemon": Event(
        "The daemon as a whole.",
        {
            "starting": "the daemon starts",
            "waiting": "another daemon has the stores on the server, or the server is away",
            "claimed": "the wait is over, and this daemon opens the stores",
            "takes_over": "the daemon that had the stores showed no sign of life for too long",
            "passed_over": (
                "a server of the URL takes changes, but was the primary before, or is of another "
                "system (REL-59, REL-60)"
            ),
            "history_noted": (
                "the data directory notes another server or timeline than before (REL-59)"
            ),
            "not_answering": "while it waits, it cannot answer at the client socket",
            "ready": "it is ready",
            "reloaded": "its settings were read again",
            "reload_refused": "its settings could not be read again; the old ones stay",
            "objects_applied": "a declaration of objects was applied",
            "unknown_principal": "the file of the start has a binding for an unknown principal",
            "draining": "it was asked to stop and finishes what is under way",
            "stopped": "it has stopped",
            "failed": "it stops because of an error",
            "client_failed": "a request failed with an internal error",
            "http_failed": "a request over HTTP failed with an internal error",
            "inquiry_failed": "a peer's question about a dialog failed with an internal error",
            "transaction_too_old": (
                "a transaction was rolled back because it held locks for too long (PBT-18)"
            ),
            "loop_blocked": "something blocks the event loop, with its stack (FP-8)",
            "loop_free": "the event loop is free again",
            "client_refused": "a client did not prove who it is, or did not encrypt (SX-21)",
            "unknown_user": "`clients.grants` names a user that the machine does not know",
            "open_to_network": "a listener can be reached from other machines (SX-21)",
            "dialogs_left_out": (
                "stopping left no time to write every open dialog to the metrics log"
            ),
        },
    ),
    "broker.endpoint": Event(
        "A listener for peers or clients.",
        {
            "listening": "it listens",
            "listen_failed": "it cannot listen, with the reason",
            "stopped": "it no longer listens",
            "refused": "a connection was refused because of a limit (END-18)",
            "accept_failed": "a connection could not be accepted, such as for want of descriptors",
        },
    ),
    "broker.store": Event(
        "A store and its disk.",
        {
            "opened": "a store that could not be opened was opened",
            "refused": "a store cannot be opened, with the reason",
            "replaced": "another broker is in the place of the one that the instance remembers",
            "mirror": "the partner has the shared store open",
            "slow": "a commit waits for the disk (REL-34)",
            "quick_again": "commits are quick again",
            "full": "the disk has no room, and new messages are refused (REL-26)",
            "room_again": "the disk has room again",
            "leftovers": "messages left over from ended dialogs are being deleted",
            "loss_accepted": "an operator accepted the loss of a part of the store",
            "new_history": "the PostgreSQL server was failed over or restored (REL-64)",
        },
    ),
    "broker.clock": Event(
        "The clock of the machine (REL-24).",
        {
            "jumped": "it jumped, and the daemon does not follow yet",
            "returned": "it jumped back",
            "confirmed": "the daemon follows the jump",
        },
    ),
    "broker.tick": Event(
        "Periodic work.",
        {
            "pass_failed": "a pass failed; the others ran",
            "overrun": "a pass was skipped because it still ran",
        },
    ),
    "broker.queue_status": Event(
        "Somebody switched a queue on or off.",
    ),
    "broker.parking": Event(
        "A conversation group after rollbacks (PBT-3).",
        {
            "retry_scheduled": "the group waits until its next attempt",
            "parked": "the group was parked",
            "released": "the group can be received again",
            "edited": "its first message was given another body",
            "discarded": "messages of it were deleted",
            "ended": "its dialogs were ended with an error",
        },
    ),
    "broker.checks": Event(
        "Checks of bodies (OBJ-61).",
        {
            "not_started": "the process for checks could not be started",
        },
    ),
    "broker.lost_messages": Event(
        "A dialog failed after the application had ended its side; the other side lacks these "
        "messages (PBT-4).",
    ),
    "broker.lingering_dialogs": Event(
        "Dialogs that ended or failed on one side have not been ended on the other for a long "
        "time (PBT-5).",
    ),
    "broker.idle_dialogs": Event(
        "Dialogs without a message either way for long (REL-44).",
        {
            "announced": "dialogs that will be ended; written once a round, with their number",
            "ended": "one dialog was ended, with an error at both sides",
        },
    ),
    "broker.history_lost": Event(
        "One side of a dialog no longer has what it acknowledged, since its store is of an earlier "
        "time; both sides get an error (REL-15).",
    ),
    "broker.event_notification": Event(
        "Event notifications of this instance.",
        {
            "broken": "the dialog of a notification broke; another one is begun later",
            "lost": "more events waited for a subscriber than are kept",
        },
    ),
    "broker.dynamic_routing": Event(
        "Requests for routes (BCN).",
        {
            "asked": "a route was asked for",
            "answered": "the request was answered",
            "failed": "the request failed",
            "route_failed": "the address of a route that was made so fails",
        },
    ),
}
