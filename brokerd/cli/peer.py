"""`brokerd peer`: other instances, known by their certificates (SEC-4)."""

from brokerd.cli.peer_pair import command as pair
from brokerd.cli.peer_revoke import command as revoke
from brokerd.cli.principals import add_command, list_command, show_command
from brokerd.cli.view_commands import noun
from brokerd.security.credentials import Kind

command = noun(
    "peer",
    "Other instances that may connect, known by their certificates.",
    list_command(Kind.PEER, "List the peers: certificates, addresses, and the instance of each."),
    show_command(Kind.PEER, "Show a peer and its certificates."),
    add_command(
        Kind.PEER,
        "Add a peer, or install further certificates for it; those it has stay valid. "
        "`brokerd certificate export` prints them on the other machine. It may log in once it has "
        "`connect on endpoint`.",
    ),
    revoke,
    pair,
)
