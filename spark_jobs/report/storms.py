"""Storms in the network, refusals, and what was dropped: counters that are large parts. Pure.

Reads:  counters of instances and brokers.
Never:  reports a small part, or few: some loss and repetition is how the protocol works.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_jobs.report.data import Data
from spark_jobs.report.status import Point, Status, about, pasted
from spark_jobs.report.words import counted, number

LEAST = 100
"""Number of items in a day below which nothing is reported."""

STORM_PART = 0.1
DROPPED_PART = 0.01
"""Parts of the fragments from which repetitions, and drops, are reported."""


@dataclass(frozen=True, slots=True)
class _Storm:
    """A counter of an instance that is compared with another: `of` is the whole."""

    counter: str
    of: str
    part: float
    text: str
    advice: str
    command: str


_STORMS = (
    _Storm(
        "retransmitted",
        "transport_fragments_sent",
        STORM_PART,
        "{instance} sent {count} again, {part:.0%} of what it sent.",
        "See which peer acknowledges late: its disk, its processor, or the network between.",
        "brokerd destination ls",
    ),
    _Storm(
        "duplicates",
        "fragments_received",
        STORM_PART,
        "{instance} received {count} that it had already, {part:.0%} of what it received.",
        "See whether its acknowledgements reach the senders, and how long its commits take.",
        "brokerd connection ls",
    ),
    _Storm(
        "dropped_",
        "fragments_received",
        DROPPED_PART,
        "{instance} dropped {count} that arrived, {part:.0%} of them, most of them because of "
        "{why}.",
        "See the reason; the senders repeat what they may.",
        "brokerd doctor",
    ),
    _Storm(
        "forward_dropped_",
        "forward_received",
        DROPPED_PART,
        "{instance} did not pass on {count}, {part:.0%} of what it was to pass on, most of them "
        "because of {why}.",
        "See the reason: no route, no memory, or too many hops.",
        "brokerd forwarder show",
    ),
)


@about("peers")
def storms(data: Data) -> Iterator[Point]:
    """Yield repetitions, drops and refusals that are many (BI-L24, BI-L25)."""
    machines: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    dialogs: dict[tuple[str, str], int] = defaultdict(int)
    for one in data.counters:
        if one.scope == "instance" and not one.broker:
            machines[one.instance][one.counter] += one.total
        elif (one.scope, one.counter) == ("instance", "dialogs_refused"):
            dialogs[one.instance, one.broker] += one.total
    for instance, own in sorted(machines.items()):
        yield from _of_instance(instance, own)
    for (instance, broker), total in sorted(dialogs.items()):
        yield Point(
            Status.LOOK,
            f"Broker {broker} of {instance} refused {counted(total, 'dialog')}: a user or a peer "
            "has too many.",
            "See whose dialogs are not ended.",
            pasted("brokerd", "dialog", "ls", "--older-than", "1d", "--broker", broker),
        )


def _of_instance(instance: str, own: Mapping[str, int]) -> Iterator[Point]:
    for storm in _STORMS:
        reasons = {
            counter.removeprefix(storm.counter): total
            for counter, total in own.items()
            if counter == storm.counter
            or (storm.counter.endswith("_") and counter.startswith(storm.counter))
        }
        count, whole = sum(reasons.values()), own.get(storm.of, 0)
        if count >= LEAST and count > whole * storm.part:
            text = storm.text.format(
                instance=instance,
                count=counted(count, "fragment"),
                part=count / max(whole, count),
                why=max(reasons, key=lambda one: reasons[one]),
            )
            yield Point(Status.LOOK, text, storm.advice, storm.command)
    refused = sum(total for counter, total in own.items() if counter.startswith("refused_"))
    if refused >= LEAST:
        yield Point(
            Status.LOOK,
            f"{instance} refused {number(refused)} connections because of a limit.",
            "See who connects so often, or raise the limit.",
            "brokerd connection ls",
        )
