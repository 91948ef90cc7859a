"""Left: the work that an instance still has to do, as text, for verdicts and assertions.

Reads:  the live state of an instance whose stores are written without threads.
Never:  awaits, or changes anything.
"""

from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import TypeVar

from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.instance.instance import Instance
from brokerd.routing.reasons import MEANING
from brokerd.storage.verifying import Finding, verify

T = TypeVar("T")


def waiting(instance: Instance, broker: Broker) -> list[str]:
    """Return a line for each queue with messages, and for each dialog with unsent messages.

    The line of a dialog has the reason why its messages wait."""
    found = [
        f"{state.name} holds {state.ready_count} messages, {state.taken} are taken"
        for state in broker.queues.values()
        if state.ready_count or state.taken
    ]
    for live in broker.endpoints.all():
        out = live.outgoing
        if out is not None and not out.held and (out.pending or out.unpublished):
            why, detail = instance.parts.transmitter.status(out)
            found.append(f"{show(live)} has {out.pending} unsent: {why} {detail}".rstrip())
    return found


def unexplained(instance: Instance, broker: Broker) -> list[str]:
    """Return a line for each dialog with unsent messages and an unpublished status (REL-22)."""
    found = []
    for live in broker.endpoints.all():
        out = live.outgoing
        if out is not None and out.pending:
            key, _ = instance.parts.transmitter.status(out)
            if key not in MEANING:
                found.append(f"{show(live)} has {out.pending} unsent, and the status {key!r}")
    return found


def open_dialogs(broker: Broker) -> list[str]:
    """Return a line for each state other than closed (CD), with the number of its endpoints."""
    states = run_now(broker.store.endpoints.count_by_state())
    return [f"{count} endpoints are {name}" for name, count in states.items() if name != "CD"]


def held(instance: Instance, broker: Broker) -> list[str]:
    """Return a line for each lock and for fragments in memory; none may remain after a run
    (CHK-9)."""
    found = [
        f"{group.holder.describe()} holds a group"
        for group in broker.groups.values()
        if group.holder
    ]
    if instance.parts.dispatcher.buffered:
        found.append(f"the dispatcher holds {instance.parts.dispatcher.buffered} fragments")
    return found


def in_file(path: Path, *, may_be_over: bool) -> list[str]:
    """Return the problems of a store that is not being written (HK-10).

    `may_be_over`: accept rows left over from ended dialogs, as a running instance still deletes
    them; else they are a problem, because they stay until the next start (REL-36)."""
    return problems(verify(path), path.name, may_be_over=may_be_over)


def problems(findings: Iterable[Finding], name: str, *, may_be_over: bool) -> list[str]:
    """Return a line for each finding of a store of this name; `may_be_over` as in `in_file`."""
    return [
        f"{name}: {one.table or 'store'}: {one.where}: {one.problem}"
        for one in findings
        if not (one.is_left_over and may_be_over)
    ]


def show(live: Live) -> str:
    """Return a short description of an endpoint."""
    endpoint = live.endpoint
    side = "initiator" if endpoint.is_initiator else "target"
    return f"{side} of {endpoint.conversation_id.hex()[:8]} ({endpoint.state})"


def run_now(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine that never suspends, such as a read without threads; return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("it waits for something")
