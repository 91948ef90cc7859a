"""Notes: the findings of one classification, in order, for `route explain`.

PURE.   Written by table, choice and classify as they decide; formatted by explain (CLP-98).
Never:  written when a message is sent: `notes` is None then, and costs one comparison per finding.
"""

import enum
from collections.abc import Iterable
from typing import Protocol

import msgspec


class Finding(enum.Enum):
    """A kind of finding: the label of the step, and a sentence about the applied rule.

    A sentence may name the `service` and the `broker` of the routing key, the number of routes
    (`count`), and the details of the note by their position.
    """

    # Find (RTE-8 to RTE-15).
    EXPIRED = "expired", "route {0!r} has expired (RTE-3)"
    NAME_AND_BROKER = "1", "routes with name {service!r} and broker {broker}: {count}"
    NAME_ALONE = "2", "routes with name {service!r} and no broker: {count}"
    NAME_AND_SOME_BROKER = "3", "routes with name {service!r} and some broker: {count}"
    REQUEST_EXEMPT = "4", "{service!r} is here, so no route is asked for (bcn.exempt_local)"
    REQUESTED = "4", "the dynamic routing service is asked; until then it waits"
    NEITHER = "5", "routes with neither name nor broker: {count}"
    SERVICE_HERE = "6", "a broker here has {service!r}: as if a LOCAL route existed"
    SERVICE_NOT_HERE = "6", "no broker here has {service!r}"
    NEAR = "near", "{0}"
    NOTHING = "7", "nothing matches: it is delayed, and tried again"
    # Choose (RTE-19 to RTE-29).
    KEPT = "kept", "the dialog keeps the route it had (RTE-29)"
    NEXT_BROKER = "3", "of {0} brokers the next in turn is {1}"
    MIRRORED = "A", "a mirrored route comes before all others"
    LOCAL = "B", "LOCAL, and the service is here"
    LOCAL_UNUSABLE = "B", "LOCAL, but no broker here has {service!r}: passed over"
    BARRED = "C", "another instance has that broker as well: passed over"
    AVOIDED = "C", "suppressed, so another is preferred (routing.prefer_online)"
    NETWORK = "C", "a network address"
    NEXT_ADDRESS = "C", "{count} network addresses, of which {0!r} is next"
    TRANSPORT = "D", "TRANSPORT: the address is in the service name"
    # Locate (RTE-30 to RTE-34, RTE-52).
    LOCATED = "locate", "the service is in broker {0!r}"
    REFUSES = "locate", "broker {0!r} is named and has no {service!r}: it refuses (DLP-41)"
    BROKER_NOT_HERE = "locate", "{0}"
    NOTHING_ELSE = "locate", "nothing else is left (RTE-28)"
    NO_ADDRESS = "address", "{0!r} of route {1!r} leads to no address"
    DUPLICATE = "duplicate", "{0}"
    PRINCIPAL = "mirror", "{0} is the principal (RTE-52)"
    NO_PRINCIPAL = "mirror", "neither is known as principal: {0} (RTE-54)"
    # Without a table.
    DELIVERY_OFF = "home", "delivery is off in the broker that holds the dialog"
    TURNED_ROUND = "self", "{0} is this instance, so it counts as arriving (RTE-41)"
    ROUND_AGAIN = "self", "{0} is this instance: round again, one hop poorer"
    REPLY_HERE = "reply", "a reply goes to the broker it names, which is here (RTE-7)"
    REPLY_OFF = "reply", "the broker it names is here, and its delivery is off"
    REPLY_NOT_HERE = "reply", "the broker it names is not here"
    FORWARDING_OFF = "forward", "forwarding is off here (RTE-24)"
    NO_HOP = "hops", "no hop is left for another forwarding (FWD-6)"

    @property
    def step(self) -> str:
        """Label of the step."""
        return self.value[0]

    @property
    def sentence(self) -> str:
        """Sentence for operators, to be formatted."""
        return self.value[1]


class Noted(msgspec.Struct, frozen=True):
    """One finding, with its details."""

    finding: Finding
    details: tuple[str | int, ...] = ()
    routes: tuple[str, ...] = ()
    """Names of the routes that the finding is about."""


class _Named(Protocol):
    @property
    def route(self) -> str:
        """Name of the route."""
        ...


class Notes:
    """The findings so far."""

    def __init__(self) -> None:
        self.all: list[Noted] = []

    def add(self, finding: Finding, *details: str | int, routes: Iterable[_Named] = ()) -> None:
        """Append a finding."""
        self.all.append(Noted(finding, details, tuple(one.route for one in routes)))
