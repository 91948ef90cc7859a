"""A copy in a process of its own, which kills itself at a point: killed.py SOURCE TARGET POINT."""

import os
import signal
import sys
from random import Random

from brokerd.clock import SystemClock
from brokerd.ids import SeededIds
from brokerd.storage.copying.moving import Mover, Pair
from brokerd.storage.copying.places import place_of
from brokerd.storage.postgresql.opening import ServerOptions


def main(source: str, target: str, point: str) -> None:
    def die(reached: str) -> None:
        if reached.startswith(point):
            os.kill(os.getpid(), signal.SIGKILL)

    mover = Mover(
        ids=SeededIds(Random(9)),
        clock=SystemClock(),
        server=ServerOptions(require_durable=False),
        progress=lambda what, _done, _whole: die(what.partition(": ")[2]),
        fault=die,
    )
    mover.move([Pair(place_of(source), lambda facts: place_of(target, broker=facts.broker))])


if __name__ == "__main__":
    main(*sys.argv[1:])
