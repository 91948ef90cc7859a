"""All tables of a broker's store, each with a comment on the meaning of a row.

The catalog has foreign keys; the tables that a message passes through do not: `store verify` checks
their references. Times are UTC microseconds, ids sixteen bytes.
"""

from typing import Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    text,
)

from brokerd.storage.shelves import NO_SHELF, SHELVES

metadata = MetaData()

APPLICATION_ID: Final = 0x62726B64
"""`PRAGMA application_id` of a store: the letters brkd."""

PAGED: Final = "paged = 1"
"""Condition of a message that memory does not hold (design D4)."""

AHEAD: Final = "paged = 1 AND sequence < 0"
"""Condition of a paged message that comes before all others of its conversation (RCV-9)."""

STRETCH: Final = "queuing_order >> 14"
"""The stretch of queuing orders that a message lies in (`stretches.py`)."""

LIFETIME_COUNTS: Final = "state NOT IN ('CD', 'ER')"
"""Condition of an endpoint whose lifetime can still end it (DLG-T14, DLG-T22)."""


UNSETTLED: Final = "state = 'CD' AND first_acked = 0"
"""Condition of a closed target endpoint that has not received FIRST_ACKED (DLP-57)."""


def _flag(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _option(name: str, default: int) -> Column[int]:
    """Return the column of a flag that was added later; older rows get its default."""
    return Column(name, Integer, nullable=False, server_default=text(str(default)))


# The one row of facts about this store. `incarnation` is drawn when a store is created, restored or
# cloned; `epoch` rises at each open; `next_*` are numbers never reused. `host` is the machine on
# which delivery was last enabled (MAN-7), `disabled_reason` why delivery is off, `unfinished` an
# administrative operation to be finished at the next open, `former_ids` the former identifiers of
# this broker, newest first, one after the other (MAN-6).
store = Table(
    "store",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True),
    Column("broker_name", String, nullable=False),
    Column("broker_id", LargeBinary, nullable=False),
    Column("instance_id", LargeBinary, nullable=False),
    Column("incarnation", LargeBinary, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("created_at", Integer, nullable=False),
    _flag("is_broker_enabled"),
    _flag("default_encryption"),
    Column("next_endpoint_key", Integer, nullable=False),
    Column("next_queuing_order", Integer, nullable=False),
    Column("next_transmission_order", Integer, nullable=False),
    _option("honor_priority", 0),
    Column("host", LargeBinary),
    Column("disabled_reason", String),
    Column("unfinished", String),
    Column("former_ids", LargeBinary),
    # Fingerprint of the master key that encrypts keys of dialogs here (SEC-71); NULL = unknown.
    Column("master_key", LargeBinary),
)

# A typed body (OBJ-13). `schema` is the text of a schema; `require_body` is NULL where the default
# of the validation kind holds.
message_types = Table(
    "service_message_types",
    metadata,
    Column("name", String, primary_key=True),
    Column("validation", String, nullable=False),
    Column("schema", String),
    Column("require_body", Integer),
    _option("validate_on_send", 0),
)

# The allowed senders of message types (OBJ-23): the contract, and one row per message type in it.
contracts = Table("service_contracts", metadata, Column("name", String, primary_key=True))
contract_types = Table(
    "service_contract_message_usages",
    metadata,
    Column("contract", ForeignKey("service_contracts.name", ondelete="CASCADE"), primary_key=True),
    Column("message_type", ForeignKey("service_message_types.name"), primary_key=True),
    Column("sent_by", String, nullable=False),
)

# A queue and its options (OBJ-39). `receive_ageing` in microseconds; NULL = off (PBT-16).
queues = Table(
    "service_queues",
    metadata,
    Column("queue_key", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    _flag("is_enqueue_enabled"),
    _flag("is_receive_enabled"),
    Column("activation_handler", String),
    Column("max_readers", Integer, nullable=False),
    _flag("is_activation_enabled"),
    Column("receive_ageing", Integer),
    Column("run_as", String),
    _option("is_retention_enabled", 0),
    _option("is_poison_message_handling_enabled", 1),
    # Limits of the messages retained for one conversation (PBT-24).
    Column("retention_max_rows", Integer),
    Column("retention_max_bytes", Integer),
    Column("retention_policy", String),
    # The effect of repeated rollbacks, where it is not the default (PSN-14, PBT-3).
    Column("poison_mode", String),
    Column("poison_threshold", Integer),
    Column("poison_disconnects", Integer),
    Column("poison_backoff_first", Integer),
    Column("poison_backoff_max", Integer),
    # Why the queue is on or off; `status_detail` as a JSON object (PBT-1).
    Column("status_reason", String),
    Column("status_changed_at", Integer),
    Column("status_changed_by", String),
    Column("status_detail", String),
    # Host, command and limits of readers as a JSON object, if they are not the defaults (ACT-20).
    Column("activation_options", String),
    # The most messages, and bytes of their bodies, that may wait; NULL = no limit (REL-42).
    Column("max_messages", Integer),
    Column("max_bytes", Integer),
    sqlite_autoincrement=True,
)

# A service, bound to one queue (OBJ-32), and the contracts for which it may be a target.
services = Table(
    "services",
    metadata,
    Column("service_key", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("queue", ForeignKey("service_queues.name"), nullable=False),
    sqlite_autoincrement=True,
)
service_contracts = Table(
    "service_contract_usages",
    metadata,
    Column("service", ForeignKey("services.name", ondelete="CASCADE"), primary_key=True),
    Column("contract", ForeignKey("service_contracts.name"), primary_key=True),
)

# The level of endpoints that match these criteria; NULL matches any (OBJ-48).
priorities = Table(
    "conversation_priorities",
    metadata,
    Column("priority_key", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("contract", ForeignKey("service_contracts.name")),
    Column("local_service", ForeignKey("services.name")),
    Column("remote_service", String),
    Column("priority", Integer, nullable=False),
    sqlite_autoincrement=True,
)

# One row of this broker's routing table; in msdb, of the instance's (RTE-60).
routes = Table(
    "routes",
    metadata,
    Column("name", String, primary_key=True),
    Column("service_name", String),
    Column("broker_id", LargeBinary),
    Column("address", String, nullable=False),
    Column("expires_at", Integer),
    Column("mirror", String, nullable=False, server_default=text("''")),
)

# A subscription to events (EVT-1): `events` as a JSON array, `broker_id` NULL for this broker,
# `activation_timeout` in microseconds or NULL for the default (ACT-37). A notification that is
# dropped and created again has another key.
event_notifications = Table(
    "event_notifications",
    metadata,
    Column("notification_key", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("scope", String, nullable=False),
    Column("queue", ForeignKey("service_queues.name")),
    Column("events", String, nullable=False),
    Column("to_service", String, nullable=False),
    Column("broker_id", LargeBinary),
    _flag("fan_in"),
    Column("activation_timeout", Integer),
    sqlite_autoincrement=True,
)

# A dialog that is open for an event notification (EVT-4). The row stays until the dialog has ended,
# even if the notification was dropped, so that no such dialog is lost.
event_dialogs = Table(
    "event_dialogs",
    metadata,
    Column("handle", LargeBinary, primary_key=True),
    Column("notification_key", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# An event that could not be delivered to its subscriber yet (PBT-15).
undelivered_events = Table(
    "undelivered_events",
    metadata,
    Column("event_key", Integer, primary_key=True),
    Column("notification_key", Integer, nullable=False),
    Column("event", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# One side of a dialog (DLP-2, VIEW-1), except its progress. `CD` rows only recognise duplicates.
conversation_endpoints = Table(
    "conversation_endpoints",
    metadata,
    Column("endpoint_key", Integer, primary_key=True),
    Column("handle", LargeBinary, nullable=False),
    Column("conversation_id", LargeBinary, nullable=False),
    _flag("is_initiator"),
    Column("service", String, nullable=False),
    Column("contract", String, nullable=False),
    Column("far_service", String, nullable=False),
    _flag("encryption"),
    Column("began_at", Integer, nullable=False),
    Column("expires_at", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("group_id", LargeBinary, nullable=False),
    Column("state", String, nullable=False),
    Column("far_broker", LargeBinary),
    _flag("bound"),
    Column("end_sequence", Integer, nullable=False),
    Column("far_end_sequence", Integer, nullable=False),
    Column("discarded", Integer, nullable=False),
    _flag("first_acked"),
    Column("purge_at", Integer),
    Column("error_code", Integer),
    Column("error_text", String),
    Column("route", String),
    # The queue for the errors of a dialog that the broker ends by itself (PBT-4).
    Column("error_queue", String),
    Column("state_since", Integer, nullable=False, server_default=text("0")),
    # The keys of a secured dialog, wrapped by the broker's key (SEC-38); NULL = it is not secured.
    Column("security", LargeBinary),
    Index("endpoints_group", "group_id"),
    Index("endpoints_handle", "handle", unique=True),
    Index("endpoints_conversation", "conversation_id", "is_initiator", unique=True),
    Index("endpoints_expiry", "expires_at", sqlite_where=text(LIFETIME_COUNTS)),
    Index("endpoints_unsettled", "endpoint_key", sqlite_where=text(UNSETTLED)),
    Index("endpoints_purge", "purge_at", sqlite_where=text("purge_at IS NOT NULL")),
)

# The progress of one side of a dialog: every message changes it, few change the row above.
endpoint_progress = Table(
    "endpoint_progress",
    metadata,
    Column("endpoint_key", Integer, primary_key=True),
    Column("send_sequence", Integer, nullable=False),
    Column("receive_sequence", Integer, nullable=False),
    Column("receive_fragment", Integer, nullable=False),
    # The message that was received last: another message with its number shows another history
    # (REL-15).
    Column("last_message", LargeBinary),
)


def _messages(name: str, *more: Index, found: str | None) -> Table:
    """Return a table of messages; `found`: the condition of those that are found by index.

    `flags`: `frames.HEADERS` if `body` begins with headers (SND-28), else 0."""
    where = None if found is None else text(found)
    return Table(
        name,
        metadata,
        Column("queuing_order", Integer, primary_key=True),
        Column("queue_key", Integer, nullable=False),
        Column("endpoint_key", Integer, nullable=False),
        Column("sequence", Integer, nullable=False),
        Column("message_type", String, nullable=False),
        Column("priority", Integer, nullable=False),
        _flag("paged"),
        Column("enqueued_at", Integer, nullable=False),
        Column("message_id", LargeBinary, nullable=False),
        Column("body_hash", LargeBinary),
        Column("body", LargeBinary),
        _option("flags", 0),
        Index(f"{name}_paged", "queue_key", "priority", "queuing_order", sqlite_where=where),
        # By stretch first, so that a flush, and later the sweep, writes few pages of the index:
        # with the endpoint first, 300 messages of 512 dialogs in turn rewrote 300 different pages.
        Index(f"{name}_of", text(STRETCH), "endpoint_key", "sequence", sqlite_where=where),
        *more,
    )


# A message waiting for a local service (status 1). Rows are only appended and deleted; those
# written while the queue's window in memory was full can be found by index (design D4).
queue_messages = _messages(
    "queue_messages",
    Index("queue_messages_ahead", "endpoint_key", "sequence", sqlite_where=text(AHEAD)),
    found=PAGED,
)

# Messages that were written beyond a window, while a shelf was free for their queue: when its last
# message is received, a shelf is emptied as a whole (`shelves.py`). `paged` is the number of the
# shelf. No message on a shelf comes before all others of its conversation (RCV-9).
_shelves = {number: _messages(f"shelf_{number}", found=None) for number in SHELVES}
messages_at: Final = {NO_SHELF: queue_messages, **_shelves}
"""The tables of messages, by the number of the place (`shelves.py`)."""

# A copy of a message of a queue with retention (RCV-31): received (status 0) or sent (status 3). It
# is deleted when its conversation ends; once archived, its `endpoint_key` is NULL, and it stays.
retained_messages = Table(
    "retained_messages",
    metadata,
    Column("queuing_order", Integer, primary_key=True),
    Column("queue_key", Integer, nullable=False),
    Column("endpoint_key", Integer),
    Column("handle", LargeBinary, nullable=False),
    Column("conversation_id", LargeBinary, nullable=False),
    Column("group_id", LargeBinary, nullable=False),
    Column("service", String, nullable=False),
    Column("contract", String, nullable=False),
    Column("status", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("message_type", String, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("enqueued_at", Integer, nullable=False),
    Column("message_id", LargeBinary, nullable=False),
    Column("body", LargeBinary),
    _option("flags", 0),
    Index("retained_messages_browse", "queue_key", "queuing_order"),
    Index("retained_messages_of", "endpoint_key", "queuing_order"),
)

# A pending conversation timer (DLG-35); the unnamed one has the name "". `is_held`: it was due
# while its queue could not take the message, and waits for the queue (DLG-41).
conversation_timers = Table(
    "conversation_timers",
    metadata,
    Column("endpoint_key", Integer, primary_key=True),
    Column("name", String, primary_key=True),
    Column("due_at", Integer, nullable=False),
    _flag("is_held"),
    Index("conversation_timers_due", "due_at", sqlite_where=text("is_held = 0")),
    sqlite_with_rowid=False,
)

# A conversation group whose latest transactions were all rolled back (PBT-3): how often, until when
# it waits for its next attempt, since when it is parked. `conversation_id` and `message_id` are
# those of the message received last, `error` is the cause given by that rollback.
held_groups = Table(
    "held_groups",
    metadata,
    Column("group_id", LargeBinary, primary_key=True),
    Column("queue_key", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("disconnects", Integer, nullable=False),
    Column("retry_at", Integer),
    Column("parked_at", Integer),
    Column("reason", String, nullable=False),
    Column("error", String, nullable=False),
    Column("conversation_id", LargeBinary, nullable=False),
    Column("message_id", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

# Queuing orders, as a JSON array, of messages that were received and may still be in the tables
# above: they are deleted later, in order, and before a store is used (`deferred_removals.py`).
queue_removals = Table(
    "queue_removals",
    metadata,
    Column("removal_key", Integer, primary_key=True),
    Column("orders", String, nullable=False),
)

# An ended endpoint, all of whose messages in the tables above count as deleted: the messages are
# many, and are deleted some at a time (`deferred_drops.py`).
queue_drops = Table(
    "queue_drops",
    metadata,
    Column("endpoint_key", Integer, primary_key=True),
)

# A body that is stored in pieces: of an incomplete message (status 2, DLP-11), or a large one.
# `owner` and `number` name its owner (`bodies.py`); bodies without an owner are swept. A message
# with such a body has a hash and no body in its own row.
bodies = Table(
    "bodies",
    metadata,
    Column("body_key", Integer, primary_key=True),
    Column("owner", Integer, nullable=False),
    Column("number", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Index("bodies_owner", "owner", "number", unique=True),
)

# A piece of a body: a fragment as it arrived, or a part of a body that a client sent.
body_pieces = Table(
    "body_pieces",
    metadata,
    Column("body_key", Integer, primary_key=True),
    Column("piece", Integer, primary_key=True),
    Column("hash", LargeBinary, nullable=False),
    Column("data", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

# A message the peer has not acknowledged yet (DLP-20).
transmission_queue = Table(
    "transmission_queue",
    metadata,
    Column("transmission_order", Integer, primary_key=True),
    Column("endpoint_key", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("flags", Integer, nullable=False),
    Column("message_type", String, nullable=False),
    Column("fragment_size", Integer, nullable=False),
    _flag("paged"),
    Column("enqueued_at", Integer, nullable=False),
    Column("message_id", LargeBinary, nullable=False),
    Column("body_hash", LargeBinary),
    Column("body", LargeBinary),
    Index("transmission_of", "endpoint_key", "sequence", sqlite_where=text(PAGED)),
)

# A broker of the instance, whether its file exists or not (MAN-16). Rows are in msdb only.
known_brokers = Table(
    "known_brokers",
    metadata,
    Column("name", String, primary_key=True),
    Column("broker_id", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

# Who may be named in a grant, beside the users of the machine: a peer instance or a client program
# (SEC-4). `instance_id` is NULL until the principal has logged in; `addresses` is a JSON array of
# the addresses that only this principal may serve. Rows are in msdb only, as are those of the next
# three tables.
principals = Table(
    "principals",
    metadata,
    Column("name", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("instance_id", LargeBinary),
    Column("addresses", String, nullable=False),
    Column("created_at", Integer, nullable=False),
    Column("created_by", String, nullable=False),
    sqlite_with_rowid=False,
)

# A certificate, by the SHA-256 of its encoding. `principal` NULL: this instance's own, whose
# private key is wrapped by the master key (SEC-5, SEC-31). `is_active`: dialogs may begin with it.
certificates = Table(
    "certificates",
    metadata,
    Column("certificate_id", LargeBinary, primary_key=True),
    Column("purpose", String, nullable=False),
    Column("principal", ForeignKey("principals.name", ondelete="CASCADE")),
    Column("encoded", LargeBinary, nullable=False),
    Column("not_before", Integer, nullable=False),
    Column("not_after", Integer, nullable=False),
    Column("private_key", LargeBinary),
    _flag("is_active"),
    Column("installed_at", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# A permission on a securable, given to a principal online (SX-3).
grants = Table(
    "grants",
    metadata,
    Column("permission", String, primary_key=True),
    Column("securable", String, primary_key=True),
    Column("principal", String, primary_key=True),
    Column("granted_at", Integer, nullable=False),
    Column("granted_by", String, nullable=False),
    sqlite_with_rowid=False,
)

# An entry of the audit: logins, refusals, grants and what administrators did (SX-15). `detail` is a
# JSON object. Rows are only appended; the oldest go when they are too many.
audit = Table(
    "audit",
    metadata,
    Column("audit_key", Integer, primary_key=True),
    Column("at", Integer, nullable=False),
    Column("action", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("outcome", String, nullable=False),
    Column("detail", String, nullable=False),
    sqlite_autoincrement=True,
)

# The principal that owns the certificates of a remote service (SEC-18).
remote_service_bindings = Table(
    "remote_service_bindings",
    metadata,
    Column("name", String, primary_key=True),
    Column("service_name", String, nullable=False),
    Column("principal", String, nullable=False),
    _flag("is_anonymous"),
    sqlite_with_rowid=False,
)

# The user, or `peer:` with the id of the instance, that has begun a dialog, while their number is
# limited (REL-45).
dialog_owners = Table(
    "dialog_owners",
    metadata,
    Column(
        "endpoint_key",
        ForeignKey("conversation_endpoints.endpoint_key", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("owner", String, nullable=False),
    Index("dialog_owners_owner", "owner"),
)

# How far an open dialog was when it was looked at last, and since when: `sent` and `received` are
# its next sequences. `announced_at`: when it was announced that its end is near (REL-44).
idle_dialogs = Table(
    "idle_dialogs",
    metadata,
    Column(
        "endpoint_key",
        ForeignKey("conversation_endpoints.endpoint_key", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("sent", Integer, nullable=False),
    Column("received", Integer, nullable=False),
    Column("since", Integer, nullable=False),
    Column("announced_at", Integer),
    Index("idle_dialogs_announced", "announced_at", sqlite_where=text("announced_at IS NOT NULL")),
)

# State that the application keeps for a conversation group (GRP-22).
group_states = Table(
    "group_states",
    metadata,
    Column("group_id", LargeBinary, primary_key=True),
    Column("state", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

# Commit tokens of one client: the highest number, and which of the last 1,024 were committed,
# as bits counted down from it (REL-2).
clients = Table(
    "clients",
    metadata,
    Column("client_id", LargeBinary, primary_key=True),
    Column("highest", Integer, nullable=False),
    Column("committed", LargeBinary, nullable=False),
    Column("used_at", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# A closing line that the metrics log does not have yet (design D16).
dialog_log = Table(
    "dialog_log",
    metadata,
    Column("endpoint_key", Integer, primary_key=True),
    Column("line", LargeBinary, nullable=False),
)
