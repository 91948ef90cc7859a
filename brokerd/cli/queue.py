"""`brokerd queue`: the queues of a broker and how deep they are (VIEW-4)."""

from brokerd.cli.listing import Choice, Shown, listing, noun, showing, since

command = noun(
    "queue",
    "Queues: how deep they are, whether they are on.",
    listing(
        "service_queues",
        "List the queues of a broker.",
        Shown("name", "queue"),
        Shown("is_receive_enabled", "receive"),
        Shown("is_enqueue_enabled", "enqueue"),
        Shown("ready_count", "ready"),
        Shown("parked_count", "parked"),
        Shown("retained_count", "retained"),
        Shown("incomplete_count", "incomplete"),
        Shown("oldest_ready_at", "oldest", since),
        Shown("activation_procedure", "handler"),
        Shown("max_readers", "max readers"),
        Shown("status_reason", "reason"),
        choices=(Choice("name", "name", "Of this name."),),
    ),
    showing("service_queues", "Show all columns of a queue.", "NAME", "name"),
)
