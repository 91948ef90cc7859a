"""`brokerd transmission`: messages not yet acknowledged by peers, and why (VIEW-3)."""

from brokerd.cli.view_commands import Choice, Shown, listing, noun, since, until

command = noun(
    "transmission",
    "The transmission queue: messages that wait for acknowledgement, and why.",
    listing(
        "transmission_queue",
        "List messages that peers have not acknowledged. --older-than: waiting longer than this.",
        Shown("conversation_handle", "handle"),
        Shown("from_service_name", "from"),
        Shown("to_service_name", "to"),
        Shown("message_sequence_number", "sequence"),
        Shown("message_type_name", "type"),
        Shown("enqueue_time", "waiting", since),
        Shown("destination", "destination"),
        Shown("attempts", "attempts"),
        Shown("next_attempt_at", "next in", until),
        Shown("status_key", "status"),
        Shown("transmission_status", "meaning"),
        choices=(
            Choice("service", "from_service_name", "Only messages from this local service."),
            Choice("far-service", "to_service_name", "Only messages to this service."),
            Choice("handle", "conversation_handle", "Only messages of this dialog."),
        ),
        aged=True,
    ),
)
