"""`brokerd status`: the verdict first, then queues, unsent messages, dialogs and stores."""

from pathlib import Path

import click
import msgspec

from brokerd.cli.options import daemon_options, given_place, json_option
from brokerd.cli.output import ago, print_json, print_line, print_verdict, table
from brokerd.cli.session import ask
from brokerd.client.session import Session
from brokerd.config.exposure import describe
from brokerd.process import exit_statuses
from brokerd.protocol.transitions import State
from brokerd.telemetry.status import (
    DestinationStatus,
    InstanceStatus,
    QueueStatus,
    StoreStatus,
    concerns,
)
from brokerd.units import counted, show_size


@click.command(name="status")
@daemon_options
@json_option
@click.option("--check", is_flag=True, help="Exit with 2 if something asks for action.")
def command(
    *, address: str | None, config: Path | None, broker: str, as_json: bool, check: bool
) -> int:
    """Show the state of the instance on one screen: the verdict, and what waits for what."""

    async def fetch(session: Session) -> dict[str, object]:
        return await session.status()

    answer = ask(fetch, address=address, config=config, broker=broker, of_instance=True)
    status = msgspec.convert(answer, InstanceStatus, strict=False)
    worries = concerns(status)
    if as_json:
        print_json({"verdict": worries or ["all is well"], **answer})
    else:
        show(status, worries)
    return exit_statuses.LOOK if check and worries else exit_statuses.OK


def show(status: InstanceStatus, worries: list[str]) -> None:
    """Print the whole screen."""
    if worries:
        print_line(f"ATTENTION: {len(worries)} to look at", colour="red")
    else:
        print_line("OK: all is well", colour="green")
    for worry in worries:
        print_verdict("  - ", "", worry, indent=4)
    if worries:
        print_line(f"  the commands that help: brokerd doctor {given_place()}".rstrip())
    print_line()
    print_verdict("", "", _who(status), indent=2)
    print_verdict(
        "  ", "", f"clients {status.clients}, peers {status.peers}, {_listening(status)}", indent=4
    )
    _places(status)
    for one in status.file_problems:
        print_verdict("  ", "", f"{one.path} {one.problem}; {one.mend}", indent=4)
    for door in status.doors:
        if door.refused:
            print_verdict(
                "  ", "", f"connections of {door.kind} refused: {_counts(door.refused)}", indent=4
            )
    print_line()
    table(
        "queues",
        ("broker", "queue", "status", "ready", "parked", "oldest", "readers", "handler", "reason"),
        [_queue(queue, status) for queue in status.queues],
    )
    table(
        "waiting to be acknowledged, by destination",
        ("destination", "messages", "state", "since", "reason"),
        [_destination(to, status) for to in status.destinations],
    )
    table(
        "dialogs",
        ("state", "means", "endpoints"),
        [(state, _meaning(state), many) for state, many in sorted(status.dialogs.items())],
    )
    _stores(status)


def _places(status: InstanceStatus) -> None:
    """Print where the stores are, if not in files, and what is open to others."""
    if (server := status.server) is not None:
        text = f"stores in {server.place}, PostgreSQL {server.version}: {server.redundancy}"
        print_verdict("  ", "", text, indent=4)
    for listener in status.open_listeners:
        print_verdict("  ", "", f"open to other machines: {describe(listener)}", indent=4)
    for opening in status.openings:
        print_verdict("  ", "", f"open: {opening}", indent=4)
    for grant in status.open_to_public:
        print_verdict(
            "  ", "", f"open to everybody: {grant.permission} on {grant.securable}", indent=4
        )


def _stores(status: InstanceStatus) -> None:
    """Print the table of stores."""
    if status.server is not None:
        table(
            "stores",
            ("broker", "state", "size", "schema"),
            [(s.broker, s.state, _about(s.size_bytes), s.schema) for s in status.stores],
        )
        return
    table(
        "stores",
        ("broker", "state", "size", "log", "free"),
        [_store(store) for store in status.stores],
    )


def _who(status: InstanceStatus) -> str:
    up = f", up {ago(status.started_at, status.now)}" if status.started_at is not None else ""
    version = f" {status.version}" if status.version else ""
    return f"instance {status.instance}{version}, broker {status.broker} {status.broker_id}{up}"


def _counts(by_reason: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(by_reason.items()))


def _meaning(state: str) -> str:
    """Return the state of a dialog in words; a dash for one of a newer daemon."""
    try:
        return State(state).name.lower().replace("_", " ")
    except ValueError:
        return "-"


def _listening(status: InstanceStatus) -> str:
    if status.listening:
        return f"listening at {', '.join(status.listening)}"
    return "not listening for peers"


def _queue(queue: QueueStatus, status: InstanceStatus) -> tuple[object, ...]:
    readers = f"{queue.readers}/{queue.max_readers}" if queue.handler else "-"
    oldest = ago(queue.oldest_ready_at, status.now)
    handler = queue.handler or "-"
    return (
        queue.broker,
        queue.name,
        "full" if queue.full and queue.status == "on" else queue.status,
        queue.ready,
        queue.parked or "-",
        oldest,
        readers,
        handler,
        queue.reason or queue.full or _retrying(queue) or queue.off_because,
    )


def _retrying(queue: QueueStatus) -> str:
    """Return why groups wait for their next attempt, if the queue has no other fault."""
    if not queue.retrying:
        return ""
    count = counted(queue.retrying, "group waits", "groups wait")
    return f"{count} for the next attempt: {queue.last_error or 'no cause was given'}"


def _destination(to: DestinationStatus, status: InstanceStatus) -> tuple[object, ...]:
    reason = " ".join(word for word in (to.status_key, to.detail) if word)
    return (to.address or "-", to.messages, to.state, ago(to.since, status.now), reason)


def _store(store: StoreStatus) -> tuple[object, ...]:
    free = "-" if store.free_bytes is None else _about(store.free_bytes)
    return (store.broker, store.state, _about(store.size_bytes), _about(store.wal_bytes), free)


def _about(size: int) -> str:
    """Return a size as a short text, rounded up to whole units."""
    for unit in (1 << 30, 1 << 20, 1 << 10):
        if size >= 10 * unit:
            return show_size(-(-size // unit) * unit)
    return show_size(size)
