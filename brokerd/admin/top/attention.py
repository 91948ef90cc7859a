"""Attention: the lines that ask for it, and the findings that explain each line (MON-110).

PURE.   The status of an instance in, lines and findings out.
Reads:  the status that it is given.      Calls: telemetry.status, doctor.checks.
Never:  judges: `concerns` of the status says what asks for attention, the doctor what helps.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from shlex import quote
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from brokerd.admin.doctor.checks import examine
from brokerd.admin.doctor.findings import Finding, error
from brokerd.admin.doctor.seen import Seen
from brokerd.telemetry.status import (
    DestinationStatus,
    FailedDialogs,
    InstanceStatus,
    QueueStatus,
    concerns,
    is_over,
)

_IN_THE_TABLE: Final = re.compile(r", \d+ messages? in it|; brokerd group ls --parked$")
"""Words about a queue that its line in the table, or its page, says already."""


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """One concern of the status."""

    text: str
    """The sentence of `brokerd status`."""
    short: str
    """The text, cause first, without words that the table says."""
    about: str
    """The object, as a title."""
    sort: str = ""
    """`queue`, `destination`, `dialogs`, or empty."""
    broker: str = ""
    name: str = ""
    """Name of the queue, or address of the destination as the table has it."""
    services: tuple[str, ...] = ()
    """The services that it concerns."""

    def concerns(self, sort: str, broker: str, name: str, services: Collection[str] = ()) -> bool:
        """Return whether it is about a queue or destination, or about messages for it.

        `services`: those of the queue, as far as they are known."""
        if self.sort == sort:
            return (self.broker, self.name) == (broker, name)
        word = rf"(?<![\w/.-]){re.escape(name)}(?![\w/-])"
        return not {name, *services}.isdisjoint(self.services) or (
            bool(self.sort) and self.broker in ("", broker) and bool(re.search(word, self.text))
        )


class Cause(NamedTuple):
    """The explanation of a line, on its page."""

    text: str
    """The text of the line, cause first; empty = the findings say it."""
    whole: str
    """The sentence of the status."""
    findings: Sequence[Finding]


class _Part(NamedTuple):
    """One object of a status, alone in a status of its own."""

    of: InstanceStatus
    item: QueueStatus | DestinationStatus | FailedDialogs | None = None


def destination_name(to: DestinationStatus) -> str:
    """Return the name under which the table has a destination."""
    return to.address or f"(none: {to.service or to.broker})"


def attention(status: InstanceStatus) -> list[Attention]:
    """Return the concerns of a status, worst first."""
    return [line for line, _ in _lines(status)]


def causes(
    status: InstanceStatus, lines: Sequence[Attention], queue: tuple[str, str] | None = None
) -> list[Cause]:
    """Return what explains lines of `attention(status)`, each object once.

    `queue`: broker and name of a queue whose other findings, such as groups between two attempts,
    are added."""
    found: list[Cause] = []
    told: list[_Part] = []
    for line, part in _lines(status):
        if line in lines and part not in told:
            told.append(part)
            explained = _examined(part)
            if " parked" in line.text:  # a queue may be off or full as well: its own cause first
                explained.sort(key=lambda one: one.code != "D44")
            found.append(Cause(_cause_first(line), line.text, explained))
    for part in _parts(status):
        one = part.item
        if isinstance(one, QueueStatus) and (one.broker, one.name) == queue and part not in told:
            found += [Cause("", "", more) for more in (_examined(part),) if more]
    return found


def failing(status: InstanceStatus, address: str) -> list[Cause]:
    """Return what explains a destination with which connecting fails while no message waits."""
    rows = [
        {
            "address": to.address,
            "state": to.state,
            "suppressed_until": to.next_attempt_at,
            "consecutive_failures": to.failures,
            "last_error": to.text or to.detail or to.status_key,
            "status_key": to.status_key,
            "pending_messages": to.messages,
        }
        for to in status.destinations
        if to.address == address
    ]
    bare = InstanceStatus(instance=status.instance, now=status.now)
    explained = list(examine(Seen(status=bare, now=status.now, destinations=rows)))
    return [Cause("", "", explained)] if explained else []


def _cause_first(line: Attention) -> str:
    """Return the text for the page, which also counts the messages that wait."""
    if line.sort != "destination":
        return line.short
    head, _, why = line.text.partition(": ")
    return f"{why} ({head})"


def _lines(status: InstanceStatus) -> Iterator[tuple[Attention, _Part]]:
    is_one = len({one.broker for one in status.queues}) <= 1
    for part in _parts(status):
        for text in concerns(part.of):
            yield _line(part, text, without_broker=is_one), part


def _parts(status: InstanceStatus) -> Iterator[_Part]:
    """Yield the objects of a status in the order of `concerns`."""
    bare = InstanceStatus(
        instance=status.instance, now=status.now, min_free=status.min_free, broker=status.broker
    )
    yield from (_Part(replace(bare, stores=(one,))) for one in status.stores)
    yield _Part(replace(bare, state=status.state))
    yield _Part(replace(bare, server=status.server))
    yield _Part(replace(bare, clock=status.clock))
    yield _Part(replace(bare, listen_error=status.listen_error))
    yield _Part(replace(bare, endpoint_state=status.endpoint_state))
    yield from (_Part(replace(bare, duplicates=(one,))) for one in status.duplicates)
    yield from (_Part(replace(bare, clocks_apart=(one,))) for one in status.clocks_apart)
    for queue in status.queues:
        yield _Part(replace(bare, queues=(queue,)), queue)
    destinations = [_Part(replace(bare, destinations=(to,)), to) for to in status.destinations]
    yield from (part for part in destinations if not is_over(part.of.destinations[0]))
    for failed in status.failed_dialogs:
        yield _Part(replace(bare, failed_dialogs=(failed,)), failed)
    yield from (part for part in destinations if is_over(part.of.destinations[0]))
    yield from (_Part(replace(bare, file_problems=(one,))) for one in status.file_problems)
    yield _Part(replace(bare, no_master_key=status.no_master_key))
    yield from (_Part(replace(bare, certificates=(one,))) for one in status.certificates)
    yield from (_Part(replace(bare, warnings=(one,))) for one in status.warnings)
    yield from (_Part(replace(bare, unknown_users=(one,))) for one in status.unknown_users)


def _line(part: _Part, text: str, *, without_broker: bool) -> Attention:
    one = part.item
    if isinstance(one, QueueStatus):
        short = _IN_THE_TABLE.sub("", text, count=1)
        if short.endswith(" parked") and one.last_error:
            short += f": {one.last_error}"
        if without_broker:
            short = short.replace(f" of broker {one.broker}", "", 1)
        about = f"queue {one.name} of broker {one.broker}"
        return Attention(
            text=text, short=short, about=about, sort="queue", broker=one.broker, name=one.name
        )
    if isinstance(one, DestinationStatus):
        head, _, why = text.partition(": ")
        where = head.partition(" for ")[2] or destination_name(one)
        return Attention(
            text=text, short=f"{why} ({where})", about=f"destination {destination_name(one)}",
            sort="destination", broker=one.broker, name=destination_name(one),
            services=(one.service,) if one.service else (),
        )  # fmt: skip
    if isinstance(one, FailedDialogs):
        cause = f"error {one.code}: {one.reason}" if one.code else one.reason
        return Attention(
            text=text, short=f"{cause} ({text.removesuffix(f': {cause}')})",
            about=f"dialogs of broker {one.broker}" if one.broker else "dialogs", sort="dialogs",
            broker=one.broker,
            services=tuple(name for name in (one.service, one.far_service) if name),
        )  # fmt: skip
    return Attention(text=text, short=text, about=f"instance {part.of.instance}")


def _examined(part: _Part) -> list[Finding]:
    """Return what the doctor finds in one part."""
    endpoint = None
    if part.of.listen_error or part.of.endpoint_state:
        state = part.of.endpoint_state or "started"
        endpoint = {"state": state, "listen_error": part.of.listen_error}
    found = list(examine(Seen(status=part.of, now=part.of.now, endpoint=endpoint)))
    if isinstance(part.item, QueueStatus) and part.item.parked:
        parked = next(one for one in reversed(concerns(part.of)) if " parked" in one)
        text = _line(part, parked, without_broker=False).short
        about = f"queue {part.item.name} of broker {part.item.broker}"
        mend = "this names the groups; brokerd doctor has the commands that release them:"
        command = f"brokerd group ls --parked --broker {quote(part.item.broker)}"
        found.append(error("D44", about, text.partition(": ")[2], mend, command))
    return found
