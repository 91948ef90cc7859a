"""What is left: what an instance still has to do, in words, for verdicts and assertions.

Reads:  the live state of an instance whose stores are written in line.
Never:  waits, or changes anything.
"""

from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.instance.instance import Instance
from brokerd.routing.reasons import MEANING
from brokerd.storage.verifying import verify

T = TypeVar("T")


def waiting(instance: Instance, broker: Broker) -> list[str]:
    """Messages that wait to be received, and messages that wait to be sent, with the reason."""
    found = [
        f"{state.name} holds {state.ready_count} messages, {state.taken} are taken"
        for state in broker.queues.values()
        if state.ready_count or state.taken
    ]
    for live in broker.endpoints.all():
        out = live.outgoing
        if out is not None and not out.held and (out.pending or out.unpublished):
            why, detail = instance.transmitter.status(out)
            found.append(f"{show(live)} has {out.pending} unsent: {why} {detail}".rstrip())
    return found


def unexplained(instance: Instance, broker: Broker) -> list[str]:
    """Dialogs with messages to send whose status is none of the published keys (REL-22)."""
    found = []
    for live in broker.endpoints.all():
        out = live.outgoing
        if out is not None and out.pending:
            key, _ = instance.transmitter.status(out)
            if key not in MEANING:
                found.append(f"{show(live)} has {out.pending} unsent, and the status {key!r}")
    return found


def open_dialogs(broker: Broker) -> list[str]:
    """Dialog endpoints that are not over, by state."""
    states = run_now(broker.store.count_by_state())
    return [f"{count} endpoints are {name}" for name, count in states.items() if name != "CD"]


def held(instance: Instance, broker: Broker) -> list[str]:
    """What is held in memory although nothing is under way (CHK-9)."""
    found = [
        f"{group.holder.describe()} holds a group"
        for group in broker.groups.values()
        if group.holder
    ]
    if instance.dispatcher.buffered:
        found.append(f"the dispatcher holds {instance.dispatcher.buffered} fragments")
    return found


def in_file(path: Path, *, may_be_over: bool) -> list[str]:
    """What is wrong with a store that nobody writes to just now (HK-10).

    `may_be_over`: rows of dialogs that are over may be there, since they are being deleted; else
    they belong to nobody, and are never deleted before the next start (REL-36)."""
    return [
        f"{path.name}: {one.table or 'file'}: {one.where}: {one.problem}"
        for one in verify(path)
        if not (one.is_left_over and may_be_over)
    ]


def show(live: Live) -> str:
    """An endpoint in short."""
    endpoint = live.endpoint
    side = "initiator" if endpoint.is_initiator else "target"
    return f"{side} of {endpoint.conversation_id.hex()[:8]} ({endpoint.state})"


def run_now(work: Coroutine[object, object, T]) -> T:
    """Run to its end a coroutine that never waits: stores in line do not."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("it waits for something")
