"""`brokerd dialog`: the dialog endpoints of a broker (VIEW-1)."""

from brokerd.cli.listing import Choice, Shown, listing, noun, showing, since

_STATES = "In this state (SO, SI, CO, DI, DO, ER, CD); may be given several times."

command = noun(
    "dialog",
    "Dialog endpoints: which there are, in which state, since when.",
    listing(
        "conversation_endpoints",
        "List dialog endpoints. --older-than: in their present state for so long.",
        Shown("conversation_handle", "handle"),
        Shown("state", "state"),
        Shown("state_since", "since", since),
        Shown("is_initiator", "initiator"),
        Shown("service_id", "service"),
        Shown("far_service", "far service"),
        Shown("service_contract_id", "contract"),
        Shown("send_sequence", "sent"),
        Shown("receive_sequence", "received"),
        Shown("unread_count", "unread"),
        Shown("pending_send_count", "pending"),
        Shown("error_code", "error"),
        choices=(
            Choice("state", "state", _STATES, many=True),
            Choice("service", "service_id", "Of this local service."),
            Choice("far-service", "far_service", "With this far service."),
            Choice("group", "conversation_group_id", "Of this conversation group."),
        ),
        aged=True,
    ),
    showing(
        "conversation_endpoints",
        "Show all columns of the endpoints with this handle or conversation id.",
        "HANDLE|CONVERSATION",
        "conversation_handle",
        "conversation_id",
    ),
)
