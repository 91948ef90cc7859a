"""Every view: the meaning of its rows, its columns in order, and the key of a row (VIEW).

Reads: nothing.      Calls: nothing.      Never: reads a value; `views.py` does.
For objects of the catalog, columns that end in `_id` contain names, because names identify them
(OBJ-12). Instants are UTC microseconds since 1970; the command line shows them as text. The
reference page of the views is made from these texts.
"""

from typing import Final, NamedTuple


class View(NamedTuple):
    """The definition of one view."""

    meaning: str
    """The meaning of a row and the scope of the view, in one or two sentences."""
    columns: dict[str, str]
    """Meaning of each column, in the order of the columns."""
    key: int = 1
    """Number of leading columns that identify a row."""


VIEWS: Final[dict[str, View]] = {
    "conversation_endpoints": View(
        "One row for each side of a dialog that this broker has (VIEW-1).",
        {
            "conversation_handle": "handle of this side of the dialog",
            "conversation_id": "GUID of the conversation, the same on both sides",
            "is_initiator": "whether this side began the dialog",
            "service_contract_id": "contract of the dialog",
            "service_id": "service at this side",
            "conversation_group_id": "GUID of the conversation group",
            "lifetime": "when the dialog expires (UTC)",
            "state": "state as a code of two letters, such as CO or DI",
            "state_desc": "name of the state",
            "far_service": "service at the other side",
            "far_broker_instance": "GUID of the broker at the other side; empty until it is known",
            "principal_id": "user that acts for this side; not set yet",
            "far_principal_id": "owner of the certificate that has proven the other side; NULL if "
            "the dialog is not secured, or its keys are not in memory",
            "outbound_session_key_identifier": "id of the key that seals what is sent; it changes "
            "with each start",
            "inbound_session_key_identifier": "id of the key that has sealed what arrived last",
            "security_timestamp": "before this instant a closed endpoint is not removed (DLG-31)",
            "dialog_timer": "when the conversation timer is due; NULL if none is set",
            "send_sequence": "number of the next message to send",
            "receive_sequence": "number of the next message expected",
            "receive_sequence_frag": "fragment of that message expected next",
            "last_send_tran_id": "transaction that sent last",
            "end_dialog_sequence": "number of the EndDialog message; -1 if there is none",
            "system_sequence": "number of the last system message",
            "first_out_of_order_sequence": "lowest message number held out of order",
            "last_out_of_order_sequence": "highest message number held out of order",
            "last_out_of_order_frag": "its highest fragment",
            "is_system": "whether brokerd itself uses the dialog",
            "priority": "priority level, 1 to 10",
            "created_at": "when this endpoint was created",
            "last_activity_at": (
                "when the state changed or the youngest unread message arrived, whichever is later"
            ),
            "state_since": "when the endpoint entered its state",
            "error_code": (
                "number of the error that ended the dialog; negative if a broker found it"
            ),
            "error_text": "text of that error",
            "unread_count": "messages that wait to be received",
            "pending_send_count": "messages that the other side has not acknowledged",
            "ack_status": (
                "why an acknowledgement could not be sent; empty if nothing is wrong (NBT-3)"
            ),
            "ack_pending_since": "since when that acknowledgement has waited",
            "idle_since": "since when there was no message either way, if its end was announced",
            "idle_announced_at": "when that was; it ends dialog.idle_notice later (REL-44)",
        },
    ),
    "conversation_groups": View(
        "One row for each conversation group with an endpoint (VIEW-2).",
        {
            "conversation_group_id": "GUID of the conversation group",
            "service_id": "service that all dialogs of the group have at this side",
            "is_system": "whether brokerd itself uses the group",
            "locked_by_session": "client whose transaction holds the lock; NULL if it is free",
            "locked_since": "when the lock was acquired",
            "ready_messages": "messages that can be received",
            "effective_priority": (
                "highest level of its conversations that have a receivable message; NULL if none "
                "has (GRP-15)"
            ),
            "rollback_streak": "consecutive rollbacks of transactions that received from the group",
            "retry_at": "until when the group is held back after a rollback",
            "parked_at": "when the group was parked; NULL if it is not",
            "park_reason": "why it was parked",
        },
    ),
    "transmission_queue": View(
        "One row for each message that the other side has not acknowledged (VIEW-3, MON-4).",
        {
            "conversation_handle": "handle of the dialog that sends",
            "to_service_name": "service that the message is for",
            "to_broker_instance": (
                "GUID of the broker that the message is for; empty if any will do"
            ),
            "from_service_name": "service that sends",
            "service_contract_name": "contract of the dialog",
            "enqueue_time": "when the message was sent (UTC)",
            "message_sequence_number": "number of the message in its dialog",
            "message_type_name": "type of the message",
            "is_conversation_error": "whether it is an Error message",
            "is_end_of_dialog": "whether it is an EndDialog message",
            "message_body": "the body",
            "message_headers": "its headers; empty if it has none, or bodies were not requested",
            "transmission_status": (
                "why the message has not been delivered, as a sentence; empty before the first "
                "attempt"
            ),
            "priority": "level of the dialog",
            "status_key": "machine-readable key of that status (XMT-19)",
            "ssb_code": "Service Broker's number of that status, if it has one",
            "status_since": "since when the status has been so",
            "attempts": "how often the message was sent",
            "last_attempt_at": "when it was sent last",
            "next_attempt_at": "when it will be sent again",
            "effective_priority": (
                "level by which it is sent; 5 while the broker does not honor priorities (OBJ-56)"
            ),
            "destination": "address that it is sent to",
            "fragments_total": "fragments the message is cut into",
            "fragments_acked": "fragments the other side has acknowledged",
        },
    ),
    "service_queues": View(
        "One row for each queue of the broker (VIEW-4).",
        {
            "name": "name of the queue",
            "max_readers": "most readers that activation runs at a time",
            "activation_procedure": "handler or command that activation starts",
            "execute_as_principal_id": "user that readers act for",
            "is_activation_enabled": "whether activation is on",
            "is_receive_enabled": "whether messages can be received",
            "is_enqueue_enabled": "whether messages can be put in",
            "is_retention_enabled": "whether messages are kept until their dialog ends",
            "is_poison_message_handling_enabled": "whether consecutive rollbacks have consequences",
            "status_reason": "why the queue was switched on or off last",
            "status_changed_at": "when that was",
            "status_changed_by": "who did it",
            "culprit_conversation_id": "conversation for which the queue was switched off (PBT-1)",
            "culprit_message_id": "message for which the queue was switched off",
            "last_error": "error with which its reader rolled back last",
            "culprit_rollbacks": "consecutive rollbacks when the queue was switched off",
            "ready_count": "messages that can be received",
            "parked_count": "messages of parked groups",
            "retained_count": "messages kept after they were received",
            "incomplete_count": "messages of which fragments are missing",
            "message_bytes": "size of the bodies of all messages, if it is limited; an estimate "
            "where messages beyond memory were dropped unread",
            "max_messages": "messages at which the queue takes no more (REL-42); NULL = no limit",
            "max_bytes": "message_bytes at which the queue takes no more; NULL = no limit",
            "is_full": "whether a limit is reached",
            "refused_count": "sends and arrivals refused for that since the start",
            "oldest_ready_at": "when the oldest message that can be received arrived",
            "rollback_streak": "consecutive rollbacks of transactions that received from the queue",
            "monitor_absent_reason": "why the queue has no monitor; empty if it has one (ACT-5)",
        },
    ),
    "parked_groups": View(
        "One row for each group that is parked, waits for its next attempt, or has rollbacks "
        "counted (VIEW-14).",
        {
            "conversation_group_id": "GUID of the conversation group",
            "queue": "queue of the group",
            "state": "parked, waiting for its next attempt, or counted",
            "rollback_streak": "consecutive rollbacks",
            "disconnects": (
                "connections cut in the middle of a transaction that had received from the group"
            ),
            "retry_at": "when the group can be received again",
            "parked_at": "when the group was parked; NULL if it is not",
            "park_reason": "why it was parked",
            "last_error": "error with which its reader rolled back last",
            "messages": "messages that wait in the group",
            "culprit_conversation_id": "conversation of the message received first",
            "culprit_message_id": "GUID of the message received first",
        },
    ),
    "queue_monitors": View(
        "One row for each queue that has a monitor, over the whole instance (VIEW-6).",
        {
            "broker_id": "GUID of the broker",
            "queue_id": "queue that is monitored",
            "state": "state of the monitor (ACT-28)",
            "last_empty_rowset_time": "when a receive found the queue empty last",
            "last_activated_time": "when a reader was started last",
            "tasks_waiting": "sessions that wait in a receive, whoever started them",
            "tasks_running": "readers that run",
            "necessary": (
                "which condition asks for another reader, A, B or none, with the clause that fails"
            ),
            "backoff_until": "until when no reader is started after failures",
            "consecutive_failures": "readers in a row that failed",
            "last_failure": "why the last of them failed",
            "absent_reason": "why a monitor in state DROPPED is gone",
            "broker_name": "name of the broker",
        },
        key=2,
    ),
    "activated_tasks": View(
        "One row for each reader that activation has started and that runs, over the whole "
        "instance (VIEW-7).",
        {
            "spid": "client id of its session; of a process, set once it has received",
            "broker_id": "GUID of the broker",
            "queue_id": "queue that it reads",
            "procedure_name": "handler or command",
            "execute_as": "user that it acts for",
            "started_at": "when it was started",
            "pid": "process id; NULL for a reader inside the daemon",
            "receives": "receives it has made",
            "last_receive_at": "when it received last",
            "monitor_generation": "generation of the queue monitor that started it",
            "broker_name": "name of the broker",
        },
    ),
    "activation_decisions": View(
        "The latest 100 decisions about readers of each queue since the daemon started, over "
        "the whole instance (VIEW-15).",
        {
            "broker_id": "GUID of the broker",
            "queue_id": "queue that was decided about",
            "number": "number of the decision",
            "at": "when it was made",
            "decision": (
                "enabled, started, notified, limit reached, ended, aborted, backing off, drained "
                "or disabled"
            ),
            "text": "a sentence with the figures it was decided by",
            "times": "how many equal decisions in a row the line stands for",
            "last_at": "when the last of them was made",
            "broker_name": "name of the broker",
        },
        key=3,
    ),
    "error_events": View(
        "The latest 1,000 log events about a dialog that went wrong since the daemon started, "
        "over the whole instance (VIEW-16).",
        {
            "number": "number of the event",
            "at": "when it was logged",
            "event": "name of the event",
            "subclass": "its subclass",
            "broker_name": "name of the broker",
            "conversation_id": "GUID of the conversation, the same on both sides",
            "conversation_handle": "handle of this side of the dialog",
            "conversation_group_id": "GUID of the conversation group",
            "is_initiator": "whether this side began the dialog",
            "service_name": "service at this side",
            "far_service": "service at the other side",
            "service_contract_name": "contract of the dialog",
            "code": "number or code of the error",
            "reason": "what happened",
        },
    ),
    "retained_messages": View(
        "One row for each message kept by retention, of all queues of the broker (VIEW-5, PBT-24).",
        {
            "queuing_order": "position in the order of arrival",
            "queue": "queue of the message",
            "status": "status of the row (RCV-30)",
            "conversation_handle": "handle of this side of the dialog",
            "conversation_id": "GUID of the conversation, the same on both sides",
            "conversation_group_id": "GUID of the conversation group",
            "service_name": "service at this side",
            "service_contract_name": "contract of the dialog",
            "message_sequence_number": "number of the message in its dialog",
            "message_type_name": "type of the message",
            "priority": "level of the dialog",
            "enqueued_at": "when the message was put into the queue",
            "message_id": "GUID of the message",
            "message_body": "the body",
            "message_headers": "its headers; empty if it has none, or bodies were not requested",
            "is_archived": "whether policy `archive` has moved it to another queue",
        },
    ),
    "services": View(
        "One row for each service of the broker (VIEW-8).",
        {
            "name": "name of the service",
            "service_id": "the same",
            "principal_id": "its owner",
            "service_queue_id": "queue of the service",
        },
    ),
    "service_contract_usages": View(
        "One row for each contract that a service accepts dialogs on (VIEW-8).",
        {
            "service_id": "service",
            "service_contract_id": "contract",
        },
        key=2,
    ),
    "service_contracts": View(
        "One row for each contract of the broker (VIEW-8).",
        {
            "name": "name of the contract",
            "service_contract_id": "the same",
            "principal_id": "its owner",
        },
    ),
    "service_contract_message_usages": View(
        "One row for each message type of a contract (VIEW-8).",
        {
            "service_contract_id": "contract",
            "message_type_id": "message type",
            "is_sent_by_initiator": "whether the initiator may send it",
            "is_sent_by_target": "whether the target may send it; both are set for `any`",
        },
        key=2,
    ),
    "service_message_types": View(
        "One row for each message type of the broker (VIEW-8).",
        {
            "name": "name of the message type",
            "message_type_id": "the same",
            "principal_id": "its owner",
            "validation": "what a body must be, as a code of one letter",
            "validation_desc": "the same in words",
            "schema_id": "not set",
        },
    ),
    "conversation_priorities": View(
        "One row for each declared priority (VIEW-9).",
        {
            "priority_id": "name of the priority",
            "name": "the same",
            "service_contract_id": "contract it is for; NULL means any",
            "local_service_id": "local service it is for; NULL means any",
            "remote_service_name": "remote service it is for; NULL means any",
            "priority": "level, 1 to 10",
        },
    ),
    "remote_service_bindings": View(
        "One row for each remote service binding of the broker (MON-6).",
        {
            "name": "name of the binding",
            "remote_service_binding_id": "the same",
            "principal_id": "its owner",
            "remote_service_name": "remote service that dialogs are begun to",
            "service_contract_id": "contract it is for; NULL means any",
            "remote_principal_id": "principal that owns the certificate of that service",
            "is_anonymous_on": "whether the initiator stays unproven (SEC-19)",
        },
    ),
    "event_notifications": View(
        "One row for each event notification of the broker (VIEW-11).",
        {
            "name": "name of the notification",
            "scope": "what it watches: a queue, the broker or the instance",
            "queue": "the queue, where it watches one",
            "events": "events and groups of events it asks for",
            "service_name": "service that is notified",
            "broker_instance": "GUID of the broker of that service",
            "fan_in": "whether it asks for the same event as others of its service",
            "conversation_handle": "handle of its dialog",
            "dialog_state": "state of that dialog",
            "status": "open, or backing_off after its dialog broke",
            "last_sent_at": "when an event was sent last",
            "failures": "consecutive dialogs that broke before the service was notified",
            "last_error": "why the last one broke",
            "next_attempt_at": "when the next dialog is begun",
            "undelivered": "events that are kept until the service can be notified",
            "lost": "events beyond what is kept, since the daemon started",
        },
    ),
    "brokers": View(
        "One row for each broker of the instance, those that cannot be opened included (VIEW-10).",
        {
            "name": "name of the broker",
            "broker_id": "its GUID; of an absent broker the one that is remembered",
            "role": "principal, mirror or unknown, for a broker shared with a partner",
            "epoch": "how often its store was opened",
            "is_broker_enabled": "whether delivery is on",
            "is_honor_broker_priority_on": "whether messages are sent by priority",
            "is_default_encryption_on": "whether dialogs are encrypted unless they say otherwise",
            "disabled_reason": "why delivery is off",
            "start_failure": "why the broker cannot be opened; empty if it is open",
            "next_start_attempt": "when that is tried again",
        },
    ),
    "activation_counters": View(
        "One row: what activation has done since the daemon started (VIEW-12). Rates are "
        "those between the last two ticks.",
        {
            "tasks_running": "readers that run",
            "tasks_started_total": "readers started",
            "tasks_started_per_second": "readers started per second",
            "tasks_aborted_total": "readers that ended with an error",
            "tasks_aborted_per_second": "readers that ended with an error, per second",
            "procedures_invoked_total": "calls of handlers",
            "procedures_invoked_per_second": "calls of handlers per second",
            "task_limit_reached_total": "readers that were wanted while `max_readers` ran already",
            "task_limit_reached_per_second": "the same per second",
            "notifications_total": "QUEUE_ACTIVATION notifications sent",
            "notifications_per_second": "QUEUE_ACTIVATION notifications sent per second",
        },
    ),
    "periodic_tasks": View(
        "One row for each periodic pass of the daemon (VIEW-13).",
        {
            "task": "name of the pass",
            "period": "every how many ticks it runs",
            "last_start": "when it started last",
            "last_duration": "how long it took, in seconds",
            "runs": "how often it ran",
            "skips": "how often it was skipped because it still ran",
            "done_total": (
                "what it has done since the start, in its own unit, such as messages removed"
            ),
            "last_error": "its last error",
        },
    ),
    "connections": View(
        "One row for each connection to another instance (MON-1).",
        {
            "connection_id": "number of the connection",
            "transport_stream_id": "number of its stream",
            "state": "state as a number",
            "state_desc": "name of the state",
            "connect_time": "when it was made",
            "login_time": "when both sides were ready",
            "authentication_method": "how the peer proved who it is",
            "principal_name": "peer that its certificate has proven, or public",
            "remote_user_name": "name the peer gave; not set yet",
            "last_activity_time": "when something was sent or received last",
            "is_accept": "whether the peer made the connection",
            "login_state": "state of the login as a number",
            "login_state_desc": "name of that state",
            "peer_certificate_id": "certificate that the peer has shown",
            "encryption_algorithm": "algorithm as a number; 0 means none",
            "encryption_algorithm_desc": "name of the algorithm",
            "receives_posted": "network receives under way",
            "is_receive_flow_controlled": "whether reading has stopped because memory is full",
            "sends_posted": "network sends under way",
            "is_send_flow_controlled": "whether sending has stopped because the peer does not read",
            "total_bytes_sent": "bytes sent",
            "total_bytes_received": "bytes received",
            "total_fragments_sent": "message fragments sent",
            "total_fragments_received": "message fragments received",
            "total_sends": "network sends",
            "total_receives": "network receives",
            "peer_arbitration_id": "GUID by which one of two connections to a peer is chosen",
            "peer_address": "address of the peer",
            "destinations": "addresses that are reached over it",
            "error": "why it was closed",
        },
    ),
    "destinations": View(
        "One row for each address that messages are sent to (MON-8).",
        {
            "address": "the address, `TCP://host:port`",
            "peer_instance": "GUID of the instance there; empty until it is known",
            "state": "idle, connecting, online or suppressed",
            "suppressed_until": "when the next attempt to connect is made",
            "suppress_reason": "why no attempt is made until then",
            "status_key": "what is wrong, as a key (XMT-19); empty while nothing is",
            "status_since": "since when that has been so",
            "last_error": "last error; a success does not clear it",
            "last_error_at": "when that was",
            "consecutive_failures": "failed attempts to connect in a row",
            "pending_messages": (
                "messages that wait for their acknowledgement, in the store and in memory"
            ),
            "pending_fragments": "fragments in memory that are not acknowledged",
            "pending_bytes": "bytes in memory that are not acknowledged",
            "dialogs": "dialogs that send there",
            "is_self": "whether the address is this instance (TRN-26)",
            "connect_attempts": "attempts to connect",
            "connects": "attempts that succeeded",
            "losses": "connections that were lost",
            "failures_by_cause": "failed attempts by cause",
        },
    ),
    "endpoint": View(
        "One row: the broker endpoint; no row without one (MON-5).",
        {
            "name": "name of the endpoint",
            "state": "STARTED, STOPPED or DISABLED",
            "port": "port that it listens on",
            "listener_address": "addresses that it listens on",
            "is_message_forwarding_enabled": "whether messages for other instances pass through",
            "message_forwarding_size": "memory for those, in MB",
            "connection_auth": "how peers prove who they are",
            "certificate_id": "certificate that new connections show",
            "encryption": "whether connections are encrypted",
            "encryption_algorithm": "algorithm; empty means none",
            "drain": "seconds that open connections may finish when it stops",
            "is_listening": "whether it listens",
            "listen_error": "why it does not",
            "forward_bytes_used": "bytes of messages that are passing through",
        },
    ),
    "grants": View(
        "Permissions, those of the settings first (SEC-50). It needs CONTROL on `msdb`.",
        {
            "permission": "connect, send, receive, control or execute",
            "securable": "object that it is on; `*` and `?` are wildcards",
            "principal": "user, `client:NAME`, `peer:NAME` or public",
            "origin": "settings, or online for what `brokerd grant` has granted",
            "granted_at": "time; NULL for the settings",
            "granted_by": "client that granted it; empty for the settings",
        },
        key=4,
    ),
    "transport_counters": View(
        "One row: what the connections to other instances have carried since the daemon "
        "started (MON-12, MON-9).",
        {
            "open_connections": "connections open",
            "current_bytes_for_send": "bytes in socket buffers",
            "pending_fragments_for_send": "fragments in memory that were never sent",
            "pending_bytes_for_send": "bytes in memory that were never sent",
            "pending_fragments_for_receive": "fragments received and not yet stored or dropped",
            "fragment_sends_total": "fragments sent",
            "fragment_receives_total": "fragments received",
            "fragment_p1_sends_total": "fragments sent at priority level 1",
            "fragment_p2_sends_total": "fragments sent at priority level 2",
            "fragment_p3_sends_total": "fragments sent at priority level 3",
            "fragment_p4_sends_total": "fragments sent at priority level 4",
            "fragment_p5_sends_total": "fragments sent at priority level 5",
            "fragment_p6_sends_total": "fragments sent at priority level 6",
            "fragment_p7_sends_total": "fragments sent at priority level 7",
            "fragment_p8_sends_total": "fragments sent at priority level 8",
            "fragment_p9_sends_total": "fragments sent at priority level 9",
            "fragment_p10_sends_total": "fragments sent at priority level 10",
            "send_ios_total": "network sends",
            "receive_ios_total": "network receives",
            "send_io_bytes_total": "bytes sent",
            "receive_io_bytes_total": "bytes received",
            "boxcars_sent_total": "frames of packed fragments sent",
            "boxcars_received_total": "frames of packed fragments received",
            "connect_attempts_total": "attempts to connect",
            "connects_total": "attempts that succeeded",
            "losses_total": "connections that were lost",
            "failures_by_cause": "failed attempts by cause",
            "suppressed_destinations": "destinations that are not tried at present",
            "arbitrations_lost_total": (
                "connections closed because the peer's own connection was kept"
            ),
            "corrupted_items_total": "items that failed their checks",
            "refused_connections_total": "connections of peers that were refused (END-18)",
        },
    ),
    "routes": View(
        "One row for each route of the broker (MON-3).",
        {
            "name": "name of the route",
            "route_id": "the same",
            "principal_id": "its owner",
            "remote_service_name": "service that it is for; NULL means any",
            "broker_instance": "GUID of the broker that it is for; NULL means any",
            "lifetime": "when it expires (UTC); NULL means never",
            "address": "`TCP://host:port`, `LOCAL` or `TRANSPORT`",
            "mirror_address": "second address of a mirrored broker; empty if there is none",
            "is_expired": "whether it has expired",
            "is_dynamic": "whether the dynamic routing service made it",
            "mirror_state": "operational, principal_only or not_operational, for a mirrored route",
            "current_principal": "which of the two addresses is the principal",
        },
    ),
    "instance_routes": View(
        "One row for each route that decides about what arrives from other instances (MON-3).",
        {
            "name": "name of the route",
            "route_id": "the same",
            "principal_id": "its owner",
            "remote_service_name": "service that it is for; NULL means any",
            "broker_instance": "GUID of the broker that it is for; NULL means any",
            "lifetime": "when it expires (UTC); NULL means never",
            "address": "`TCP://host:port`, `LOCAL` or `TRANSPORT`",
            "mirror_address": "second address of a mirrored broker; empty if there is none",
            "is_expired": "whether it has expired",
            "is_dynamic": "whether the dynamic routing service made it",
            "mirror_state": "operational, principal_only or not_operational, for a mirrored route",
            "current_principal": "which of the two addresses is the principal",
        },
    ),
    "forwarded_messages": View(
        "One row for each message fragment held to be passed on (MON-2).",
        {
            "conversation_id": "GUID of the conversation, the same on both sides",
            "is_initiator": "whether the initiator sent it",
            "to_service_name": "service that it is for",
            "to_broker_instance": "GUID of the broker that it is for; empty if any will do",
            "from_service_name": "service that sent it",
            "from_broker_instance": "GUID of the broker that sent it",
            "adjacent_broker_address": "address that it goes to next",
            "message_sequence_number": "number of the message in its dialog",
            "message_fragment_number": "number of the fragment in its message",
            "hops_remaining": "instances that it may still pass through",
            "time_to_live": "seconds that it may travel in all",
            "time_consumed": "seconds that it has travelled",
            "message_id": "GUID of the message",
            "arrived_at": "when it arrived",
            "size_bytes": "its size",
        },
        key=9,
    ),
    "forwarder_counters": View(
        "One row: what has passed through for other instances since the daemon started (MON-13).",
        {
            "is_forwarding": "whether forwarding is on",
            "limit_bytes": "memory for what passes through",
            "used_bytes": "memory in use",
            "pending_messages": "messages of which something is held",
            "pending_fragments": "fragments held",
            "next_hops": "addresses that something is held for",
            "forwarded_messages_total": "messages passed on",
            "forwarded_bytes_total": "bytes passed on",
            "fragments_received_total": "fragments that arrived to be passed on",
            "fragments_sent_total": "fragments passed on",
            "notices_passed_total": "notices passed back to a sender (NBT-6)",
            "notices_dropped_total": "notices for which there was no way back",
            "discarded_messages_total": "messages of which a fragment was dropped",
            "discarded_by_reason": "the same by reason",
            "fragments_dropped": "fragments dropped, by reason",
        },
    ),
    "broker_statistics": View(
        "One row: what all brokers of the instance have done since the daemon started "
        "(MON-13, MON-9).",
        {
            "enqueued_messages_total": "messages put into queues",
            "enqueued_local_messages_total": (
                "of these, messages that did not come over the network"
            ),
            "enqueued_transport_messages_total": "of these, messages that came over the network",
            "enqueued_transport_fragments_total": "their fragments",
            "transmission_messages_waiting": "messages in transmission queues",
            "dequeued_transmission_messages_total": "messages that left transmission queues",
            "dropped_fragments_total": "fragments received and dropped",
            "dropped_by_reason": "the same by reason",
            "stale_fragments_total": (
                "fragments dropped because they waited longer than `dispatcher.stale` (DSP-9)"
            ),
            "out_of_order_fragments_total": (
                "fragments dropped because the one before them did not come within a tick (DSP-9)"
            ),
            "task_handlers": "tasks that process what arrives (DSP-6)",
            "task_restarts_total": "how often one of them was started again after an error (DSP-7)",
            "corrupted_items_total": "items that failed their checks",
            "active_dialogs": "dialogs with a timer for retransmission",
            "sends_total": "sends",
            "receives_total": "receives",
            "rollbacks_total": "transactions rolled back",
            "activation_errors_total": "readers that ended with an error",
            "retransmitted_fragments_total": "fragments sent again",
            "duplicate_fragments_total": "fragments received that were stored already",
            "delayed_dialogs": "dialogs that have something to send and nowhere to send it",
            "reclassified_by_trigger": "dialogs classified again, by what caused it",
            "resumed_for_resources_total": "sends that went on after a lack of memory (XMT-12)",
            "clean_ups_resumed_total": (
                "ticks that went on with removing received messages (DLP-25)"
            ),
            "route_requests_by_outcome": "requests for routes, by outcome (BCN)",
            "tick_overruns": "passes skipped because the one before still ran (CLK-3)",
            "acks_sent_total": "acknowledgements sent on their own",
            "acks_carried_total": "acknowledgements that a message carried",
            "memory_full_at": "when a fragment was last dropped for want of memory (DSP-10)",
            "checks_total": "bodies checked",
            "checks_unfit_total": "bodies that failed their check",
            "checks_overrun_by_cause": (
                "checks without a verdict, by cause: time, memory, crash or gave_up"
            ),
            "checks_unavailable_total": "checks that could not be made",
            "checks_waiting": "bodies that wait for their check",
            "check_restarts_total": "how often the process for checks was started again",
            "check_failure": "why checks cannot be made at present; NULL if they can",
        },
    ),
    "transmission_statistics": View(
        "One row: what the broker keeps and writes for what it sends (MON-14).",
        {
            "transmission_objects": "dialog endpoints with something to send that are in memory",
            "transmission_objects_made_total": "how often one was put into memory",
            "changesets_total": "transactions written to the store",
            "writes_total": "flushes, each of which holds many changesets",
            "rows_written_total": "rows written",
            "write_microseconds_total": "time spent writing, in microseconds",
        },
    ),
    "counters": View(
        "One row: totals of the broker and of the instance since the daemon started, for "
        "checks from outside.",
        {
            "sends": "sends of this broker",
            "receives": "receives of this broker",
            "rollbacks": "transactions of this broker rolled back",
            "flushes": "flushes to its store",
            "changesets": "transactions written to its store",
            "fragments_received": "fragments received from other instances",
            "fragments_stored": "of these, stored",
            "fragments_duplicate": "of these, stored already",
            "fragments_buffered": "of these, in memory",
            "fragments_dropped": "of these, dropped, by reason",
            "retransmitted": "fragments sent again",
            "acks_sent": "acknowledgements sent on their own",
            "acks_carried": "acknowledgements that a message carried",
            "peak_memory": "most memory the process has had, in bytes",
        },
    ),
    "principals": View(
        "One row for each peer and client of the instance (SEC-4, VIEW-17).",
        {
            "name": "name with its kind, such as `peer:west`",
            "type": "`peer` or `client`",
            "instance_id": "GUID of the only instance that may log in as this peer; empty until "
            "it has logged in (SEC-55)",
            "addresses": "addresses that only this peer may serve",
            "create_date": "when it was added",
            "created_by": "who added it",
            "certificates": "number of certificates installed for it",
        },
    ),
    "certificates": View(
        "One row for each certificate installed in the instance, its own among them (VIEW-17).",
        {
            "certificate_id": "SHA-256 of the encoded certificate",
            "purpose": "`transport` or `dialog`",
            "principal_name": "peer or client that owns it; empty for the instance's own",
            "subject": "name in the certificate; it proves nothing",
            "start_date": "when it begins to be valid",
            "expiry_date": "when it expires",
            "days_left": "whole days until then; negative once it has expired",
            "is_active": "whether it may be chosen for new dialogs, or by the own endpoint",
            "is_in_use": "whether it is the one chosen now (SEC-21, SEC-22)",
            "why_not_valid": "why it is not valid now; empty if it is (SEC-11)",
            "has_private_key": "whether the instance has the private key",
            "installed_at": "when it was installed, or made",
        },
    ),
    "audit": View(
        "One row for each login, refusal and change by an administrator, the newest first "
        "(SX-15, VIEW-18).",
        {
            "audit_id": "number of the entry",
            "event_time": "when it happened",
            "action": "action, such as `login` or `principal_added`",
            "actor": "who did it; empty for the instance itself",
            "subject": "what it was done to",
            "outcome": "`success` or `refused`",
            "detail": "further facts, as a JSON object",
        },
    ),
}

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    name: tuple(view.columns) for name, view in VIEWS.items()
}
KEYS: Final[dict[str, int]] = {name: view.key for name, view in VIEWS.items()}
"""Number of leading columns that identify a row, by view."""
