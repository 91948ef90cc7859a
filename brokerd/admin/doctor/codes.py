"""The codes of findings: what each says, and what helps (MON-22).

Reads, calls: nothing.
Never:  changes the meaning of a code; a test compares the codes with those that the checks use.
"""

from typing import Final, NamedTuple


class Code(NamedTuple):
    """The meaning of one code."""

    meaning: str
    cure: str


CODES: Final[dict[str, Code]] = {
    "D01": Code(
        "A broker is missing, or cannot be opened or examined.",
        "Correct the name; `brokerd broker ls` shows those that are here, and why one is not open.",
    ),
    "D02": Code(
        "Delivery is off in a broker: it sends nothing and takes nothing from others.",
        "Switch it on: `brokerd broker enable`.",
    ),
    "D03": Code(
        "Two brokers of the instance have the same identifier, as after a copy of a file.",
        "Give the copy an identifier of its own: `brokerd broker new-id`.",
    ),
    "D04": Code(
        "The master key is missing, so the private keys of the instance cannot be used.",
        "Put master.key back from a backup; if it is lost, `brokerd certificate replace-key`.",
    ),
    "D05": Code(
        "A broker that is asked for a service does not have it.",
        "Correct the name, or declare the service and its queue there.",
    ),
    "D06": Code(
        "A queue is off, by hand or because one dialog was rolled back again and again.",
        "Switch it on: `brokerd queue alter NAME status=on`; if one dialog is the cause, "
        "`brokerd queue cure` ends it and switches the queue on.",
    ),
    "D07": Code(
        "A contract is missing, or the target service does not accept it.",
        "Use another contract, or let the service accept it: `brokerd service alter`.",
    ),
    "D08": Code(
        "The two sides mean different message types by the same contract.",
        "Apply the same declaration on both sides; a changed contract needs a new name.",
    ),
    "D09": Code(
        "The two sides check the same message type differently.",
        "Apply the same declaration on both sides.",
    ),
    "D10": Code(
        "Messages are held here: their service is not found, as there is none of that name or no "
        "route leads to it; or their dialog is over; or their broker may not send.",
        "The finding says which. Correct the name, or make a route (`brokerd route explain` shows "
        "the choice); or end the dialog.",
    ),
    "D11": Code(
        "A route has expired and is not used.",
        "Extend it: `brokerd route alter NAME lifetime=7d`, or drop it.",
    ),
    "D12": Code(
        "No route leads to the service, but one to a name that differs in case or blanks.",
        "Correct the name in the route or in the program.",
    ),
    "D13": Code(
        "No route leads back from the target to the initiator.",
        "Make one at the target's broker.",
    ),
    "D14": Code(
        "Dynamic routing is asked for services that this broker has itself.",
        "Give each a route with address LOCAL, or set bcn.exempt_local.",
    ),
    "D15": Code(
        "An instance on the way has no route to the service, or the way goes in a circle.",
        "Make or correct the routes of that instance: `brokerd instance-route`.",
    ),
    "D16": Code(
        "An instance on the way does not forward.",
        "Switch it on there: `brokerd endpoint alter forwarding=true`.",
    ),
    "D17": Code(
        "The memory for messages that pass through is nearly full.",
        "Raise it: `brokerd endpoint alter forward_size_mb=...`.",
    ),
    "D18": Code(
        "No route to the service names the mirror that is expected.",
        "Add it: `brokerd route alter NAME mirror=ADDRESS`.",
    ),
    "D19": Code("One of two mirrored instances cannot be reached.", "Start it."),
    "D20": Code(
        "Neither of two mirrored instances is known to be principal.", "Start one of them."
    ),
    "D21": Code(
        "Routes lead to other instances, and this one has no broker endpoint.",
        "Add a section [endpoint] to the settings and restart the daemon.",
    ),
    "D22": Code("The broker endpoint is not started.", "Start it: `brokerd endpoint start`."),
    "D23": Code(
        "The broker endpoint cannot listen.",
        "Stop what has the port, or choose another: `brokerd endpoint alter port=...`.",
    ),
    "D24": Code(
        "A route names a port at which the far instance does not listen.",
        "Correct the address of the route.",
    ),
    "D26": Code(
        "A certificate has expired, or will within 30 days.",
        "Make the next one, install it at the other sides, then switch to it.",
    ),
    "D28": Code(
        "Dialogs are to be encrypted, and no binding names the owner of their target.",
        "Pair with that instance, or make a binding; or send in clear.",
    ),
    "D36": Code("The host name of an address is not resolved.", "Correct it, or the name service."),
    "D37": Code(
        "The last attempts to connect to a destination failed.",
        "See whether the daemon there runs and the network passes; `brokerd destination retry`.",
    ),
    "D38": Code(
        "A ping went no further, or the login there failed.",
        "The text says at which step; `brokerd ping` repeats it.",
    ),
    "D39": Code(
        "A message has waited for more than five minutes.",
        "`brokerd dialog status` says for what, `brokerd route explain` where it should go.",
    ),
    "D40": Code(
        "A destination is left alone for some time after failed attempts or a lost connection.",
        "See whether the daemon there runs and the network passes; `brokerd destination retry`.",
    ),
    "D41": Code("The settings are wrong.", "`brokerd config check FILE` names each place."),
    "D42": Code(
        "A store cannot be used, or a start of the daemon would be refused.",
        "The text says why; `brokerd store verify` examines a file.",
    ),
    "D43": Code("The disk is full, or nearly.", "Make room; the daemon goes on by itself."),
    "D44": Code(
        "Conversation groups are parked, or wait for their next attempt.",
        "See the error, mend the program, restart the daemon if its readers run in it, "
        "then release, edit, discard or end the group.",
    ),
    "D45": Code(
        "Messages wait in a queue and nothing receives them.",
        "Start the program that reads it, or its readers; `brokerd queue show` says why none runs.",
    ),
    "D46": Code("Periodic work of the daemon fails.", "Its log says why; `brokerd periodic ls`."),
    "D47": Code(
        "A clock is wrong: it has jumped, or differs from that of a peer or of this machine.",
        "Set the clock that is wrong; after a jump that is right: `brokerd clock confirm`.",
    ),
    "D48": Code(
        "The daemon does not answer, is not ready, or is not for this user.",
        "The text says which, and what to do.",
    ),
    "D49": Code(
        "Dialogs are over and nobody has ended them for more than dialog.lingering_after.",
        "Have programs end both sides; `brokerd broker clean-up` removes what is left.",
    ),
    "D50": Code(
        "Messages that arrived were dropped for want of memory; they are sent again.",
        "Raise dispatcher.mem_hard, or add readers.",
    ),
    "D51": Code("The disk is slow.", "See what else uses it, and whether it fails."),
    "D52": Code(
        "A user that was granted something does not exist.",
        "Make the user, or revoke the grant.",
    ),
    "D53": Code(
        "Nine tenths of the files and sockets that the daemon may open are open.",
        "Raise the limit: ulimit -n, or LimitNOFILE= of its unit.",
    ),
    "D54": Code(
        "A dialog that was watched had errors.",
        "The text has the last one; `brokerd dialog show` has the rest.",
    ),
    "D55": Code(
        "Two instances deliver for the same broker.",
        "Give the copy an identifier of its own: `brokerd broker new-id`.",
    ),
    "D58": Code(
        "Bodies cannot be checked, so none is taken whose type asks for it.",
        "The event log says why the process for checks does not start.",
    ),
    "D60": Code(
        "Other machines can reach a listener.",
        "Listen at loopback, or keep strangers off that network.",
    ),
    "D61": Code(
        "A file or directory of the instance is not its own alone.",
        "The finding has the command that mends it.",
    ),
    "D62": Code(
        "Connections were refused, because a limit was reached.",
        "Where all are welcome raise the limit that the finding names.",
    ),
    "D63": Code(
        "An administrator accepted the loss of messages; this is shown until it is dealt with.",
        "See what peers and programs still have, then remove the file that the finding names.",
    ),
    "D70": Code("Everybody has a permission.", "If that is not meant, revoke it from public."),
    "D74": Code(
        "A queue is at its limit and takes no more messages.",
        "Have its messages received, or raise max_messages or max_bytes.",
    ),
    "D75": Code(
        "A user or peer has as many dialogs as it may have.",
        "End dialogs that are over, or raise the limit in the settings.",
    ),
    "D76": Code(
        "Dialogs have been silent for so long that they will be ended.",
        "End them, send on them, or raise dialog.idle_after.",
    ),
    "D77": Code(
        "Brokers ended dialogs with an error in the last hour, or refused messages.",
        "The text has the error, and the finding what helps against it.",
    ),
    "D78": Code(
        "Messages for a destination are held up: refused for now, or not acknowledged.",
        "The finding says by whom; `brokerd doctor` at the other side names the cause there.",
    ),
    "D80": Code(
        "Logins of other instances were refused in the last hour.",
        "If it is a peer of yours, do what the reason says; strangers are kept out.",
    ),
    "D81": Code(
        "The stores are on a database server, with the number of machines that have each message.",
        "Where commits wait, start the standby; with one machine only, give the server a standby.",
    ),
    "D82": Code(
        "Another server of store.url takes changes, which nobody sees, or was promoted.",
        "Stop the server that is not to have the stores, or make it a standby of the other one.",
    ),
    "D79": Code(
        "Settings or objects let others in, or let messages leave in clear.",
        "If this is not meant, change what the text names; if it is, nothing has to be done.",
    ),
}
"""Meaning and cure of each code."""
