"""Reason keys: why a message waits or was dropped, as shown to users (XMT-19).

Reads, calls: nothing.
Never:  decides anything; the parts that know the reason pick the key, and views and logs show it.
"""

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Keys of the transmission status, `status_key` in the views (XMT-19)."""

    NOT_ATTEMPTED = "not_attempted"
    AWAITING_ACK = "awaiting_ack"
    NO_ROUTE = "no_route"
    BCN_PENDING = "bcn_pending"
    BCN_FAILED = "bcn_failed"
    LOCAL_SERVICE_MISSING = "local_service_missing"
    BROKER_NOT_HERE = "broker_not_here"
    FORWARDING_DISABLED = "forwarding_disabled"
    ROUTING_UPDATING = "routing_updating"
    INSTANCE_ROUTES_UNAVAILABLE = "instance_routes_unavailable"
    MIRROR_INITIALISING = "mirror_initialising"
    MIRROR_ERROR = "mirror_error"
    DUPLICATE_BROKER = "duplicate_broker"
    SENDER_DISABLED = "sender_disabled"
    TRANSPORT_UNAVAILABLE = "transport_unavailable"
    INVALID_ADDRESS = "invalid_address"
    DNS_FAILED = "dns_failed"
    CONNECT_FAILED = "connect_failed"
    TARGET_UNREACHABLE = "target_unreachable"
    HANDSHAKE_FAILED = "handshake_failed"
    AUTH_FAILED = "auth_failed"
    REFUSED = "refused"
    CONNECTION_LOST = "connection_lost"
    NO_BINDING = "no_binding"
    NO_CERTIFICATE = "no_certificate"
    NO_PRIVATE_KEY = "no_private_key"
    CERT_INACTIVE = "cert_inactive"
    CERT_NOT_YET_VALID = "cert_not_yet_valid"
    CERT_EXPIRED = "cert_expired"
    NO_MASTER_KEY = "no_master_key"
    PEER_QUEUE_DISABLED = "peer_queue_disabled"
    PEER_STORE_FULL = "peer_store_full"
    PEER_QUEUE_FULL = "peer_queue_full"
    PEER_DIALOG_LIMIT = "peer_dialog_limit"
    TARGET_NOTICE = "target_notice"
    DAMAGED = "damaged"
    TARGET_QUEUE_BUSY = "target_queue_busy"
    LOCAL_DELIVERY_FAILED = "local_delivery_failed"
    HELD_AFTER_END = "held_after_end"
    HELD_AFTER_ERROR = "held_after_error"
    TRANSMITTER_PAUSED = "transmitter_paused"


class DropReason(StrEnum):
    """Keys of dropped arrivals, in addition to those of `Reason`."""

    HOPS_EXHAUSTED = "hops_exhausted"
    """The message would have to be forwarded and has no hop left (FWD-6, 11285)."""
    BROKER_DISABLED = "broker_disabled"
    """The broker of the message is in this instance, with delivery deactivated (DSP-12)."""
    SERVICE_NOT_IN_BROKER = "service_not_in_broker"
    """The broker that the message names lacks the service and sends an error (DLP-41, 8490)."""
    NO_SEND_PERMISSION = "no_send_permission"
    """The sender may not send to the service; only one that is authenticated is answered, with an
    error (SEC-54, 8494)."""
    ROUTE_CHANGED = "route_changed"
    """The sender's routes now lead to another broker of this instance than for earlier messages,
    which are not stored yet (XMT-7); the message is sent again."""
    FORWARD_STORE_FULL = "forward_store_full"
    """The message would exceed the memory for forwarded messages (FWD-7, 11289)."""
    TIME_TO_LIVE_OVER = "time_to_live_over"
    """The message was in transit for longer than its origin allows (FWD-8, 11291)."""
    FORWARD_AGE = "forward_age"
    """The message was held for too long, since its next hop cannot be reached (FWD-9, 11290)."""
    FORWARD_DUPLICATE = "forward_duplicate"
    """The forwarder holds the same fragment already (FWD-10, 11288)."""
    FORWARD_SEND_ERROR = "forward_send_error"
    """The message is larger than the next hop accepts (FWD-11, 11292)."""
    TRANSPORT_STOPPING = "transport_stopping"
    """The forwarder stops (FWD-11, 11293)."""
    ROUTE_NO_LONGER_VALID = "route_no_longer_valid"
    """The route was changed or expired while the message was held (FWD-11, 11294)."""


LACKING: Final = frozenset(
    {
        Reason.NO_ROUTE,
        Reason.LOCAL_SERVICE_MISSING,
        Reason.BCN_PENDING,
        Reason.BCN_FAILED,
        Reason.BROKER_NOT_HERE,
        Reason.INVALID_ADDRESS,
    }
)
"""Keys of obstacles that a new or corrected route can remove."""

MEANING: Final[dict[str, str]] = {
    Reason.NOT_ATTEMPTED: "stored, not given to a destination yet",
    Reason.AWAITING_ACK: "sent, acknowledgement outstanding",
    Reason.NO_ROUTE: "nothing matches the service name and broker",
    Reason.BCN_PENDING: "dynamic routing has been asked",
    Reason.BCN_FAILED: "the dynamic routing dialog ended in error",
    Reason.LOCAL_SERVICE_MISSING: "a route leads to this instance, which has no such service",
    Reason.BROKER_NOT_HERE: "the named broker does not serve in this instance",
    Reason.FORWARDING_DISABLED: "would have to be forwarded and forwarding is off",
    Reason.ROUTING_UPDATING: "routing data is being replaced",
    Reason.INSTANCE_ROUTES_UNAVAILABLE: "the instance routing table cannot be read",
    Reason.MIRROR_INITIALISING: "the mirrored route is not resolved yet",
    Reason.MIRROR_ERROR: "the mirrored route has failed",
    Reason.DUPLICATE_BROKER: "two instances say that the broker is theirs",
    Reason.SENDER_DISABLED: "delivery is off in the sending broker",
    Reason.TRANSPORT_UNAVAILABLE: "no broker endpoint, or it is not started",
    Reason.INVALID_ADDRESS: "the address cannot be parsed",
    Reason.DNS_FAILED: "the host name was not resolved",
    Reason.CONNECT_FAILED: "the TCP connection failed",
    Reason.TARGET_UNREACHABLE: "the target broker did not take the message",
    Reason.HANDSHAKE_FAILED: "the login failed",
    Reason.AUTH_FAILED: "identity not proved",
    Reason.REFUSED: "the identity may not connect",
    Reason.CONNECTION_LOST: "error while receiving or sending",
    Reason.NO_BINDING: "no remote service binding",
    Reason.NO_CERTIFICATE: "no certificate",
    Reason.NO_PRIVATE_KEY: "no private key",
    Reason.CERT_INACTIVE: "the certificate is inactive",
    Reason.CERT_NOT_YET_VALID: "the certificate is not valid yet",
    Reason.CERT_EXPIRED: "the certificate has expired",
    Reason.NO_MASTER_KEY: "the session key cannot be stored or read",
    Reason.PEER_QUEUE_DISABLED: "the target's queue is off",
    Reason.PEER_STORE_FULL: "the target's disk has no room",
    Reason.PEER_QUEUE_FULL: "the target's queue is at its limit",
    Reason.PEER_DIALOG_LIMIT: "the target has as many dialogs of this instance as it takes",
    Reason.TARGET_NOTICE: "the target or a forwarder dropped it",
    Reason.DAMAGED: "the stored body is damaged",
    Reason.TARGET_QUEUE_BUSY: "local delivery was put off",
    Reason.LOCAL_DELIVERY_FAILED: "local delivery failed",
    Reason.HELD_AFTER_END: "held: the dialog has been ended",
    Reason.HELD_AFTER_ERROR: "held: the dialog is in error",
    Reason.TRANSMITTER_PAUSED: "the transmitter pauses after an internal error",
    DropReason.HOPS_EXHAUSTED: "no hop left for another forwarding",
    DropReason.BROKER_DISABLED: "the broker's delivery is deactivated",
    DropReason.SERVICE_NOT_IN_BROKER: "the broker that is named has no such service: it refuses",
    DropReason.NO_SEND_PERMISSION: "the sender may not send to the service",
    DropReason.ROUTE_CHANGED: "its routes lead to another broker here since; it is sent again",
    DropReason.FORWARD_STORE_FULL: "the forwarder's memory for messages of others is full",
    DropReason.TIME_TO_LIVE_OVER: "it was under way for longer than its origin allows",
    DropReason.FORWARD_AGE: "the forwarder could not pass it on in time",
    DropReason.FORWARD_DUPLICATE: "the forwarder holds it already",
    DropReason.FORWARD_SEND_ERROR: "it is too large for the next hop",
    DropReason.TRANSPORT_STOPPING: "the forwarder stops",
    DropReason.ROUTE_NO_LONGER_VALID: "the forwarder's route has changed",
}
"""One sentence for each key, for `transmission_status` and `explain`."""

SSB_CODES: Final[dict[str, int]] = {
    Reason.NO_ROUTE: 9750,
    Reason.BCN_PENDING: 9770,
    Reason.BCN_FAILED: 9761,
    Reason.LOCAL_SERVICE_MISSING: 9796,
    Reason.BROKER_NOT_HERE: 9795,
    Reason.FORWARDING_DISABLED: 9792,
    Reason.ROUTING_UPDATING: 9797,
    Reason.INSTANCE_ROUTES_UNAVAILABLE: 9788,
    Reason.MIRROR_INITIALISING: 9794,
    Reason.MIRROR_ERROR: 9787,
    Reason.SENDER_DISABLED: 9791,
    Reason.TRANSPORT_UNAVAILABLE: 9748,
    Reason.INVALID_ADDRESS: 9785,
    Reason.DNS_FAILED: 9783,
    Reason.CONNECT_FAILED: 9754,
    Reason.TARGET_UNREACHABLE: 9753,
    Reason.HANDSHAKE_FAILED: 9758,
    Reason.AUTH_FAILED: 9751,
    Reason.REFUSED: 9752,
    Reason.CONNECTION_LOST: 9755,
    Reason.NO_BINDING: 9727,
    Reason.NO_CERTIFICATE: 9731,
    Reason.NO_PRIVATE_KEY: 9733,
    Reason.CERT_INACTIVE: 9767,
    Reason.CERT_NOT_YET_VALID: 28024,
    Reason.CERT_EXPIRED: 28025,
    Reason.NO_MASTER_KEY: 28050,
    Reason.PEER_QUEUE_DISABLED: 11219,
    Reason.TARGET_QUEUE_BUSY: 9749,
    Reason.LOCAL_DELIVERY_FAILED: 28005,
    Reason.HELD_AFTER_END: 9779,
    Reason.HELD_AFTER_ERROR: 9784,
    Reason.TRANSMITTER_PAUSED: 28072,
    DropReason.NO_SEND_PERMISSION: 8494,
    DropReason.HOPS_EXHAUSTED: 11285,
    DropReason.FORWARD_STORE_FULL: 11289,
    DropReason.TIME_TO_LIVE_OVER: 11291,
    DropReason.FORWARD_AGE: 11290,
    DropReason.FORWARD_DUPLICATE: 11288,
    DropReason.FORWARD_SEND_ERROR: 11292,
    DropReason.TRANSPORT_STOPPING: 11293,
    DropReason.ROUTE_NO_LONGER_VALID: 11294,
}
"""Service Broker's error number of each key, for the column `ssb_code` (XMT-19)."""


def status_text(reason: str, detail: str = "") -> str:
    """Return the meaning of a key, followed by the detail unless it is empty (XMT-19)."""
    meaning = MEANING.get(reason, reason)
    return f"{meaning}: {detail}" if detail else meaning
