"""`brokerd connection`: connections to other instances, as they are now (MON-1)."""

from brokerd.cli.view_commands import Choice, Shown, fingerprint, listing, noun, showing, since

command = noun(
    "connection",
    "Connections to other instances.",
    listing(
        "connections",
        "List the connections: their peers, states and traffic.",
        Shown("connection_id", "number"),
        Shown("peer_address", "peer"),
        Shown("principal_name", "principal"),
        Shown("peer_certificate_id", "certificate", fingerprint),
        Shown("encryption_algorithm_desc", "encryption"),
        Shown("is_accept", "accepted"),
        Shown("state_desc", "state"),
        Shown("login_state_desc", "login"),
        Shown("login_time", "online", since),
        Shown("last_activity_time", "last traffic", since),
        Shown("total_fragments_sent", "sent"),
        Shown("total_fragments_received", "received"),
        Shown("is_send_flow_controlled", "send held"),
        Shown("is_receive_flow_controlled", "receive held"),
        Shown("error", "error"),
        choices=(
            Choice(
                "state",
                "state_desc",
                "Only connections in this state, such as LOGGED_IN.",
                many=True,
            ),
        ),
    ),
    showing("connections", "Show all columns of a connection.", "NUMBER", "connection_id"),
)
