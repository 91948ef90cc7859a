"""`brokerd group`: conversation groups, who has locked them, which are parked (VIEW-2)."""

from brokerd.cli.listing import Choice, Shown, listing, noun, showing, since

command = noun(
    "group",
    "Conversation groups: who has locked them, what waits in them.",
    listing(
        "conversation_groups",
        "List conversation groups with an open dialog.",
        Shown("conversation_group_id", "group"),
        Shown("service_id", "service"),
        Shown("ready_messages", "ready"),
        Shown("effective_priority", "priority"),
        Shown("locked_by_session", "locked by"),
        Shown("locked_since", "since", since),
        Shown("parked_at", "parked", since),
        Shown("park_reason", "reason"),
        choices=(Choice("service", "service_id", "Of this service."),),
    ),
    showing(
        "conversation_groups", "Show all columns of a group.", "GROUP", "conversation_group_id"
    ),
)
