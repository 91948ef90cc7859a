"""Sometimes: what must have happened at least once in a batch of seeds (HK-7).

A simulation that has stopped to meet what it is there for is clean for the wrong reason. Each name
is a count of `Result.counts`; the words say what the run has then seen.
"""

from collections.abc import Mapping
from typing import Final

SOMETIMES: Final = {
    "acks looked at as they left": "an acknowledgement was held against what was durable (CHK-8)",
    "boots with a log to recover": "a store recovered what was committed",
    "boxcars dropped": "a frame got lost between two instances",
    "boxcars duplicated": "a frame arrived twice",
    "boxcars reordered": "a frame overtook another",
    "client crashes": "a client died, in a transaction or not",
    "crash: kill -9": "an instance died at any moment",
    "crash: start.recover": "an instance died while it started",
    "crash: store error": "a store's file failed, and the instance stopped",
    "crash: store.after_commit": "it died between a commit and what the commit allows: answer, ack",
    "crash: store.before_commit": "it died with a flush written and not committed",
    "crash: store.begin": "it died before a flush",
    "dropped: peer_queue_disabled": "a queue that was off refused an arrival",
    "duplicates suppressed": "a repeat was noticed",
    "duplicates suppressed after a restart": "it was noticed by a boot that had not seen the first",
    "fault: cut": "a link was cut both ways",
    "fault: half_open": "one side of a connection was gone, unknown to the other",
    "fault: one_way_cut": "a link was cut one way",
    "fault: queue_off": "a queue was switched off and on",
    "fault: restart": "an instance stopped in an orderly way",
    "fragments looked at as they left": "so was a fragment",
    "fragments forwarded": "an instance in between passed something on",
    "fragments retransmitted": "what was not acknowledged was sent again",
    "lifetimes over": "a dialog was ended by its lifetime",
    "nights": "hours passed with little to do",
    "rolled back on purpose": "a transaction was rolled back",
    "store errors": "a flush was refused by the file",
    "unknown commit: committed": "a commit whose answer was lost had been done",
    "unknown commit: not committed": "a commit that was lost had not been done",
    "unknown commit: repeated": "a send whose answer was lost was asked again, by its token",
}


def never(counts: Mapping[str, int]) -> list[str]:
    """Names of the list that these runs have not seen."""
    return [name for name in SOMETIMES if not counts.get(name)]
