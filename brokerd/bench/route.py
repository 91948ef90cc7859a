"""`brokerd bench route`: the number of dialogs per second that a large routing table classifies.

Reads:  nothing.      Calls: routing, in this process, since it is pure.
Never:  asserts a speed.
"""

from collections.abc import Callable, Iterator
from itertools import count, islice
from random import Random
from time import perf_counter

from brokerd.bench.measuring import Options, Say, describe_settings
from brokerd.clock import SystemClock
from brokerd.ids import BrokerId, RandomIds
from brokerd.model import AUTO_CREATED_LOCAL, Route
from brokerd.routing.choice import Balancer
from brokerd.routing.classify import (
    DialogKey,
    InstanceFacts,
    LocalBroker,
    OutgoingDecision,
    Remote,
    Tables,
    classify_outgoing,
)
from brokerd.routing.table import RoutingTable
from brokerd.units import counted

ROUTES_A_SERVICE = 4
"""Routes per service: two to one broker, one to another, and one that names no broker."""
_OF_STORES = {"durability", "flushes", "sqlite"}
"""Settings of benchmarks with stores, which this benchmark does not have."""
_AT_ONCE = 10_000
"""Number of dialogs between two moments at which an interruption is handled."""


class RouteOptions(Options, frozen=True, kw_only=True):
    """The size of the table, and the number of look-ups."""

    routes: int = 10_000
    """Number of routes, in addition to the route to this instance that each table has."""
    dialogs: int = 100_000
    """Number of dialogs to classify."""


async def route(options: RouteOptions, say: Say) -> dict[str, object]:
    """Classify dialogs to all services of the table in a random order."""
    ids, services = RandomIds(), -(-options.routes // ROUTES_A_SERVICE)
    rng = Random(1)  # noqa: S311  # the same each time
    home, one, other = (BrokerId(ids.fresh()) for _ in range(3))
    routes = [AUTO_CREATED_LOCAL, *islice(_routes(one, other), options.routes)]
    began = perf_counter()
    tables = Tables(RoutingTable(routes), RoutingTable([AUTO_CREATED_LOCAL]))
    built = perf_counter() - began
    say(f"{counted(options.routes, 'route')}, {counted(options.dialogs, 'dialog')}")
    facts = InstanceFacts([LocalBroker(home, "main", frozenset())])
    classify, clock = _classifier(tables, facts), SystemClock()
    remote, seconds = 0, 0.0
    for done in range(0, options.dialogs, _AT_ONCE):
        await clock.sleep_until(clock.monotonic())  # an interruption is handled here
        keys = [
            DialogKey(
                f"urn:service:{rng.randrange(services)}",
                rng.choice((None, one, other)),
                home,
                from_initiator=True,
            )
            for _ in range(min(_AT_ONCE, options.dialogs - done))
        ]
        began = perf_counter()
        remote += sum([isinstance(classify(key), Remote) for key in keys])
        seconds += perf_counter() - began
    return {
        "benchmark": "route",
        "settings": {
            name: value
            for name, value in describe_settings(options).items()
            if name not in _OF_STORES
        },
        "table_seconds": round(built, 4),
        "dialogs": options.dialogs,
        "with_a_route": remote,
        "seconds": round(seconds, 4),
        "rate": round(options.dialogs / seconds, 1),
    }


def _routes(one: BrokerId, other: BrokerId) -> Iterator[Route]:
    """Yield routes to one service after the other, endlessly."""
    for number in count():
        for at, broker_id in enumerate((one, one, other, None)):
            address = f"TCP://host{number}-{at}:4022"
            yield Route(f"r{number}-{at}", address, f"urn:service:{number}", broker_id)


def _classifier(tables: Tables, facts: InstanceFacts) -> Callable[[DialogKey], OutgoingDecision]:
    now = SystemClock().utc()
    balancer = Balancer(rng=Random(2))  # noqa: S311  # the same each time

    def classify(key: DialogKey) -> OutgoingDecision:
        return classify_outgoing(key, tables, facts, now=now, balancer=balancer)

    return classify
