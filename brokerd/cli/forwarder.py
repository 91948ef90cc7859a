"""`brokerd forwarder`: messages of others that pass through this instance (MON-2)."""

from brokerd.cli.listing import Choice, Shown, listing, noun, since

command = noun(
    "forwarder",
    "Forwarding: what is held to be passed on to other instances.",
    listing(
        "forwarded_messages",
        "List what is held now; it is in memory only, and its sender still has it.",
        Shown("from_service_name", "from"),
        Shown("to_service_name", "to"),
        Shown("adjacent_broker_address", "next"),
        Shown("message_sequence_number", "sequence"),
        Shown("message_fragment_number", "fragment"),
        Shown("hops_remaining", "hops"),
        Shown("size_bytes", "bytes"),
        Shown("arrived_at", "arrived", since),
        Shown("conversation_id", "conversation"),
        choices=(
            Choice("to", "to_service_name", "For this service."),
            Choice("next", "adjacent_broker_address", "For this next hop."),
        ),
    ),
)
