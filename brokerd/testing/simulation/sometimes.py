"""Sometimes: what must have happened at least once in a batch of seeds (HK-7).

A simulation that has stopped to meet what it is there for is clean for the wrong reason. Each name
is a count of `Result.counts`; the words say what the run has then seen.
"""

from collections.abc import Mapping
from typing import Final

SOMETIMES: Final = {
    "acks looked at as they left": "an acknowledgement was held against what was durable (CHK-8)",
    "asked for a route: late": "a route was made after the request for it was answered",
    "asked for a route: refusing": "a request for a route ended with an error",
    "asked for a route: repeating": "a route was made twice",
    "asked for a route: route made": "a missing route was asked for and made",
    "asked for a route: silent": "a request for a route was never ended",
    "asked for a route: slow": "one was answered late",
    "asked for a route: wrong": "an answer made no route, or one to the wrong place",
    "boots with a log to recover": "a store recovered what was committed",
    "boxcars dropped": "a frame got lost between two instances",
    "boxcars duplicated": "a frame arrived twice",
    "boxcars reordered": "a frame overtook another",
    "broker.dynamic_routing/answered": "a request for a route was ended as it should be",
    "broker.mirrored_route/operational": "a sender knew who is principal, and both answered",
    "broker.store/mirror at west": "a principal that came back found itself to be the mirror",
    "broker.store/opened at mate": "a mirror took over the store of a principal that was gone",
    "broker.store/opened at west": "and it went back",
    "client crashes": "a client died, in a transaction or not",
    "crash: kill -9": "an instance died at any moment",
    "crash: start.recover": "an instance died while it started",
    "crash: store error": "a store's file failed, and the instance stopped",
    "crash: store.after_commit": "it died between a commit and what the commit allows: answer, ack",
    "crash: store.before_commit": "it died with a flush written and not committed",
    "crash: store.begin": "it died before a flush",
    "dialogs moved": "a dialog came into the group of another",
    "dropped: peer_queue_disabled": "a queue that was off refused an arrival",
    "duplicates suppressed": "a repeat was noticed",
    "duplicates suppressed after a restart": "it was noticed by a boot that had not seen the first",
    "fault: cut": "a link was cut both ways",
    "fault: half_open": "one side of a connection was gone, unknown to the other",
    "fault: one_way_cut": "a link was cut one way",
    "fault: queue_off": "a queue was switched off and on",
    "fault: restart": "an instance stopped in an orderly way",
    "fault: failover": "a principal was gone for longer than its mirror looks away",
    "fragments looked at as they left": "so was a fragment",
    "fragments forwarded": "an instance in between passed something on",
    "fragments retransmitted": "what was not acknowledged was sent again",
    "large messages sent": "a body was of more than 5 KiB",
    "lifetimes over": "a dialog was ended by its lifetime",
    "messages sent to several dialogs": "one send went to two dialogs",
    "nights": "hours passed with little to do",
    "no way for a while": "a dialog waited as its route was dropped or had expired",
    "rolled back on purpose": "a transaction was rolled back",
    "routes: drop": "a route was dropped and made anew while it was used",
    "routes: expire": "a route expired and was revived",
    "routes: second": "there were two routes to one service for a while",
    "routes: turn": "a route came to lead another way",
    "second home reached": "a service with two homes was reached at the other one",
    "store errors": "a flush was refused by the file",
    "timers due while down": "a timer came from a boot that was down when it fell due",
    "timers received": "a timer fell due",
    "undone to a savepoint": "a part of a transaction was undone",
    "unknown commit: committed": "a commit whose answer was lost had been done",
    "unknown commit: not committed": "a commit that was lost had not been done",
    "unknown commit: repeated": "a send whose answer was lost was asked again, by its token",
    "wire: ack.after_write": "an instance died as an acknowledgement had left it",
    "wire: ack.before_write": "or before",
    "wire: ack.delayed": "an acknowledgement came late",
    "wire: ack.dropped": "an acknowledgement got lost",
    "wire: ack.first_lost": "it was the first of its dialog",
    "wire: transmit.after_write": "an instance died as a message had left it",
    "wire: transmit.before_write": "or before",
}


def never(counts: Mapping[str, int]) -> list[str]:
    """Names of the list that these runs have not seen."""
    return [name for name in SOMETIMES if not counts.get(name)]
