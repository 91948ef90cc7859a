"""Bugs planted on purpose, each of which the simulation must find (reliability section 8, PLANT).

    python -m tests.simulation.planted            # each with the seed that is known to find it
    python -m tests.simulation.planted --search 40 [NAME…]   # look for a seed that does

A planted bug replaces one function of the engine for the time of a run. `SEEDS` says which seed
found it; where the plan of seeds changes, `--search` finds another.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from brokerd.broker.broker import Broker
from brokerd.broker.changeset import Changeset
from brokerd.broker.transaction import Transaction
from brokerd.delivery.incoming import unsealing
from brokerd.delivery.incoming.arrival_writer import ArrivalWriter
from brokerd.delivery.incoming.buffer import Arrivals
from brokerd.delivery.incoming.open_changesets import OpenChangesets
from brokerd.delivery.outgoing.transmission_status import transmission_status
from brokerd.delivery.peers import dialog_security
from brokerd.maintenance.mirroring import Mirroring
from brokerd.protocol.items import HEADER_FIELDS, dialog_header
from brokerd.protocol.wire import pack
from brokerd.routing.reasons import Reason
from brokerd.storage.rows import deferred_removals
from brokerd.storage.rows.tokens import Tokens
from tests.engine.simulation.runs import simulator

Planted = Callable[[], Any]
PLANTED: dict[str, Planted] = {}


def planted(function: Planted) -> Planted:
    """Take a bug into the list."""
    PLANTED[function.__name__] = function
    return function


@planted
def ack_before_commit() -> Any:
    """What a round stores is acknowledged as it joins the commit pipeline."""
    real = OpenChangesets.finish

    def finish(self: OpenChangesets, broker_id: Any, *, urgent: bool, then: Any = None) -> None:
        real(self, broker_id, urgent=urgent)
        if then is not None:
            then()

    return patch.object(OpenChangesets, "finish", finish)


@planted
def end_acknowledged_before_it_is_durable() -> Any:
    """An Error gone through in memory lets what was stored before be acknowledged whole.

    `unit/delivery/incoming/test_arrival_writer.py` has the case itself."""
    real = ArrivalWriter.stored

    def stored(self: ArrivalWriter, one: Any, live: Any, run: Any, *, over: bool) -> None:
        real(self, one, live, run, over=True)

    return patch.object(ArrivalWriter, "stored", stored)


@planted
def token_not_stored() -> Any:
    """Commit tokens are kept in memory alone."""
    return patch.object(Tokens, "flush", lambda *_args: [])


@planted
def token_not_asked() -> Any:
    """A commit that is repeated is done again."""
    return patch.object(Tokens, "outcome", lambda *_args: "not_committed")


@planted
@contextmanager
def seal_covers_what_changes() -> Iterator[None]:
    """The seal of a fragment covers its acknowledgement, which differs when it is sent again."""

    def covered(fields: tuple[Any, ...], key_id: bytes) -> bytes:
        return dialog_header(fields, key_id) + pack(fields[HEADER_FIELDS])

    with (
        patch.object(dialog_security, "dialog_header", covered),
        patch.object(unsealing, "dialog_header", covered),
    ):
        yield


@planted
def removals_forgotten_at_start() -> Any:
    """What was received and not yet deleted comes back with the next boot."""
    return patch.object(deferred_removals, "apply_all", lambda _connection: None)


@planted
def early_fragment_lost() -> Any:
    """A fragment that comes before its turn is neither kept nor counted."""
    return patch.object(Arrivals, "keep_early", lambda *_args: True)


@planted
def first_fragment_twice() -> Any:
    """The check for repeats is off by one."""
    real = Arrivals.place

    def place(self: Arrivals, item: Any) -> int:
        found = real(self, item)
        return 0 if found == -1 else found

    return patch.object(Arrivals, "place", place)


@planted
@contextmanager
def two_principals() -> Iterator[None]:
    """The lock of a store holds nobody off, and nobody checks whether its epoch has risen."""

    async def check(_self: Mirroring) -> None:
        return

    unlocked = patch("fcntl.flock", lambda *_args: None)
    with unlocked, patch.object(Mirroring, "_check_epochs", check):
        yield


@planted
def timers_forgotten_at_start() -> Any:
    """Who starts again looks at no timer until one is set."""
    real = Broker.recover

    async def recover(self: Broker) -> None:
        await real(self)
        self.timers.any = False

    return patch.object(Broker, "recover", recover)


@planted
def savepoint_undoes_no_send() -> Any:
    """Going back to a savepoint leaves what was sent since."""
    real = Transaction.roll_back_to

    def roll_back_to(self: Transaction, number: int) -> None:
        kept = list(self._intents)
        real(self, number)
        self._intents[:] = kept

    return patch.object(Transaction, "roll_back_to", roll_back_to)


@planted
def rows_outlive_their_dialog() -> Any:
    """The acknowledgement of an end closes the endpoint, and leaves its rows (REL-36)."""
    withdraw = Changeset._withdraw

    def but_settled(self: Changeset, live: Any, *, is_settled: bool) -> None:
        if is_settled:
            live.outgoing.window.clear()
        else:
            withdraw(self, live, is_settled=is_settled)

    return patch.object(Changeset, "_withdraw", but_settled)


@planted
def status_is_blank_while_an_ack_is_awaited() -> Any:
    """What was sent and not acknowledged says nothing of why it waits."""

    def status(*said: Any, **more: Any) -> tuple[str, str]:
        key, detail = transmission_status(*said, **more)
        return ("" if key == Reason.AWAITING_ACK else key), detail

    return patch("brokerd.delivery.outgoing.transmitter.transmission_status", status)


RARE = ("end_acknowledged_before_it_is_durable",)
"""Those that hundreds of seeds in a row do not meet."""
SEEDS = {
    "seal_covers_what_changes": 1019,
    "status_is_blank_while_an_ack_is_awaited": 1000,
    "rows_outlive_their_dialog": 1000,
    "removals_forgotten_at_start": 1302,
    "savepoint_undoes_no_send": 1002,
    "timers_forgotten_at_start": 1012,
    "two_principals": 1016,
    "ack_before_commit": 1000,
    "early_fragment_lost": 1000,
    "first_fragment_twice": 1003,
    "token_not_asked": 1002,
    "token_not_stored": 1002,
}


@contextmanager
def with_bug(name: str) -> Iterator[None]:
    """Run with one of them."""
    with PLANTED[name]():
        yield


def finds(name: str, seeds: Iterator[int] | range | list[int]) -> tuple[int, str] | None:
    """The first of the seeds that finds the bug, and what it says."""
    with simulator() as simulated, with_bug(name):
        for seed in seeds:
            result = simulated.run(seed)
            if result.problems:
                return seed, result.problems[0].splitlines()[0]
    return None


def main() -> int:
    """Find them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--search", type=int, metavar="SEEDS", help="look through so many seeds")
    parser.add_argument("names", nargs="*", default=list(SEEDS))
    options = parser.parse_args()
    missed = 0
    for name in options.names:
        seeds = range(1000, 1000 + options.search) if options.search else [SEEDS[name]]
        found = finds(name, seeds)
        missed += found is None
        told = "NOT FOUND" if found is None else f"seed {found[0]}: {found[1][:150]}"
        sys.stdout.write(f"{name}: {told}\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
