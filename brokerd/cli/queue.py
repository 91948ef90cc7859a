"""`brokerd queue`: a queue as an object, its depth, its readers, its messages (VIEW-4).

Never:  removes a message, but for `purge`, which tells the other sides; `brokerd receive` does.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from brokerd.cli import object_commands
from brokerd.cli.bodies import as_map, print_message
from brokerd.cli.options import SECONDS, daemon_options, json_option
from brokerd.cli.output import print_json, print_line
from brokerd.cli.session import ask
from brokerd.cli.view_commands import Choice, Shown, listing, present, since, until
from brokerd.client.admin_answers import Drained, Purged
from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.clock import Instant, SystemClock, show_instant
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import QueueNotFound, UsageError
from brokerd.ids import show
from brokerd.protocol.admin_verbs import DEFAULT_GRACE
from brokerd.units import counted

GROUPS_SHOWN: Final = 20
"""Largest number of groups with rollbacks that `brokerd queue show` names."""
DECISIONS_SHOWN: Final = 20
"""Number of latest decisions that `brokerd queue show` prints; --json has all that are kept."""
_STATUS = {0: "received, retained", 1: "ready", 2: "not complete", 3: "sent, retained"}


command = object_commands.queue
"""The commands that every object has (create, alter, drop), and those of queues alone."""
command.add_command(
    listing(
        "service_queues",
        "List the queues of a broker: their depth, and whether they are on.",
        Shown("name", "queue"),
        Shown("is_receive_enabled", "receive"),
        Shown("is_enqueue_enabled", "enqueue"),
        Shown("ready_count", "ready"),
        Shown("parked_count", "parked"),
        Shown("retained_count", "retained"),
        Shown("incomplete_count", "incomplete"),
        Shown("oldest_ready_at", "oldest", since),
        Shown("activation_procedure", "handler"),
        Shown("max_readers", "max readers"),
        Shown("status_reason", "reason"),
        Shown("monitor_absent_reason", "no monitor because"),
        choices=(Choice("name", "name", "Only the queue of this name."),),
    )
)


@command.command(name="show")
@click.argument("name")
@daemon_options
@json_option
def show_one(*, name: str, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Show a queue as a file would declare it, and its present state."""
    declared = object_commands.declared("queue", name, **options)
    standing = ask(lambda session: _standing(session, name), **options)
    if as_json:
        print_json({**declared, **msgspec.to_builtins(standing)})
        return
    object_commands.present(declared)
    if standing.now is not None:
        present("now", standing.now)
    if standing.monitor is not None:
        present("monitor", standing.monitor)
    if standing.groups:
        print_line("groups that were rolled back (all of them: brokerd group ls --parked)")
    for one in standing.groups:
        print_line(f"  {group_line(one, SystemClock().utc())}")
    if standing.decisions:
        print_line("decisions")
    for one in standing.decisions[-DECISIONS_SHOWN:]:
        print_line(f"  {decision_line(one)}")


class Standing(msgspec.Struct, frozen=True):
    """The present state of a queue."""

    now: dict[str, Any] | None
    """The queue's row of the view `service_queues`."""
    monitor: dict[str, Any] | None
    groups: list[dict[str, Any]]
    """Groups that are parked, wait for their next attempt, or were rolled back since a commit."""
    decisions: list[dict[str, Any]]
    """The decisions about the queue's readers (VIEW-15)."""


async def _standing(session: Session, name: str) -> Standing:
    of_queue = {"queue_id": name, "broker_name": session.welcome.broker}
    rows = await session.view("service_queues", where={"name": name})
    monitors = await session.view("queue_monitors", where=of_queue)
    groups = await session.view("parked_groups", GROUPS_SHOWN, where={"queue": name})
    decisions = await session.view("activation_decisions", where=of_queue)
    return Standing(rows[0] if rows else None, monitors[0] if monitors else None, groups, decisions)


def group_line(row: Mapping[str, Any], now: Instant) -> str:
    """Return a line of text on why a group is not received (VIEW-14)."""
    how = {
        "parked": f"parked: {row['park_reason']}",
        "waiting": f"next attempt in {until(row['retry_at'], now)}",
    }.get(row["state"], "is received again")
    attempts = row["rollback_streak"]
    count = counted(attempts, "rollback")
    error = f", last error: {row['last_error']}" if row["last_error"] else ""
    return f"{row['conversation_group_id']}  {how}, {count}{error}"


def decision_line(row: Mapping[str, Any]) -> str:
    """Return a line of text about one decision of a queue monitor (VIEW-15)."""
    times = row["times"]
    again = f" ({times} times, last {show_instant(row['last_at'])})" if times > 1 else ""
    return f"{show_instant(row['at'])}  {row['text']}{again}"


@command.command(name="drain")
@click.argument("name")
@click.option(
    "--grace",
    type=SECONDS,
    default=f"{DEFAULT_GRACE:g}s",
    show_default=True,
    help="Longest time for readers to end by themselves.",
)
@daemon_options
@json_option
def drain(*, name: str, grace: float, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Switch the activation of queue NAME off and let its readers end.

    Waiting receives return no message, processes get SIGTERM. A reader that does not end in time
    has its transaction rolled back, which does not count for poison. No message is lost, and the
    queue stays on. Afterwards: brokerd queue alter NAME activation.status=on
    """
    done = ask(lambda session: session.admin.drain_queue(name, grace=grace), **options)
    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    print_line(_drained(name, done))


def _drained(name: str, done: Drained) -> str:
    """Return a sentence on what was done, or why nothing had to be done."""
    if done.ended or done.stopped or done.left:
        left = f"; {done.left} cannot be ended without the daemon" if done.left else ""
        return (
            f"queue {name} is drained: {counted(done.ended, 'reader')} ended, "
            f"{counted(done.stopped, 'was', 'were')} ended{left}"
        )
    why = {
        "none": "it has no activation, and programs that read it by themselves read on",
        "off": "its activation was off already, and none of its readers runs",
    }.get(done.activation, "none ran; its activation is off now")
    return f"queue {name} has no readers to drain: {why}"


@command.command(name="cure")
@click.argument("name")
@click.option("--error", type=click.IntRange(1), required=True, help="Number of the error.")
@click.option("--description", required=True, help="Text of the error.")
@daemon_options
def cure(*, name: str, error: int, description: str, **options: Any) -> None:  # noqa: ANN401
    """End the dialog for which queue NAME was switched off, and switch the queue on.

    The dialog's messages are deleted. Inspect them first: brokerd queue show, brokerd queue
    browse.
    """
    ended = ask(lambda session: session.admin.cure_queue(name, error, description), **options)
    print_line(f"ended conversation {ended} with error {error}; queue {name} is on")


@command.command(name="purge")
@click.argument("name")
@click.option(
    "--error", "code", type=click.IntRange(1), default=1, show_default=True, help="Error number."
)
@click.option("--description", help="Error text.  [default: the queue NAME was purged]")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say how many messages there are.")
@daemon_options
@json_option
def purge(
    *,
    name: str,
    code: int,
    description: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> int:
    """Delete the messages of queue NAME, and end their dialogs with an error.

    No message is lost in silence: the other side of each dialog gets the error. On this side the
    dialogs are gone, and handlers see neither an end nor an error. Messages of groups that a reader
    has at the moment are left, and so are messages that are not complete. The queue may be off.
    """
    before = ask(lambda session: _depth(session, name), **options)
    if not as_json:
        print_line(f"queue {name} has {_depth_line(before)}")
    if dry_run or not before["messages"]:
        if as_json:
            print_json(before)
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nothing was purged: nobody can be asked", hint="say --yes")
        click.confirm(f"end their dialogs with error {code}?", abort=True, err=True)
    text = description or f"the queue {name} was purged"
    done = ask(lambda session: _purge(session, name, code, text), **options)
    if as_json:
        counts = {"dialogs": done.dialogs, "purged": done.messages, "locked": done.locked}
        print_json({**before, **counts})
        return 0
    left = f"; {counted(done.locked, 'dialog')} left, which readers have" if done.locked else ""
    print_line(
        f"ended {counted(done.dialogs, 'dialog')} with error {code}, with "
        f"{counted(done.messages, 'message')}{left}"
    )
    return 0


async def _depth(session: Session, name: str) -> dict[str, int]:
    rows = await session.view("service_queues", where={"name": name})
    if not rows:
        names = [str(row["name"]) for row in await session.view("service_queues")]
        broker = session.welcome.broker
        near = did_you_mean(name, names)
        raise QueueNotFound(f"queue {name!r} is not in broker {broker!r}{near}")
    ready, parked = (int(rows[0][column] or 0) for column in ("ready_count", "parked_count"))
    return {"messages": ready + parked, "ready": ready, "parked": parked}


def _depth_line(depth: Mapping[str, int]) -> str:
    parked = f", {depth['parked']} of them parked" if depth["parked"] else ""
    return f"{counted(depth['messages'], 'message')}{parked}"


async def _purge(session: Session, name: str, code: int, text: str) -> Purged:
    """Purge batch by batch to the end of the queue; show the progress on a terminal."""
    total, after = Purged(), None
    while True:
        part = await session.admin.purge_queue(name, code, text, after=after)
        total = Purged(
            dialogs=total.dialogs + part.dialogs,
            messages=total.messages + part.messages,
            locked=total.locked + part.locked,
        )
        if part.next is None:
            return total
        after = part.next
        if sys.stderr.isatty():
            click.echo(f"\r{counted(total.messages, 'message')} purged", nl=False, err=True)


@command.command(name="browse")
@click.argument("queue")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Largest number of messages to show.",
)
@click.option("--all", "everything", is_flag=True, help="Show all messages, however many.")
@click.option("--no-bodies", is_flag=True, help="Show everything but the bodies.")
@daemon_options
@json_option
def browse(
    *,
    queue: str,
    limit: int,
    everything: bool,
    no_bodies: bool,
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> int:
    """Show the messages in QUEUE, by order of arrival: all groups and every status.

    No message is removed or locked, and no reader has to wait. With --json each message is a line
    of its own, so that a queue of any length can be read.
    """
    most = None if everything else limit

    async def walk(session: Session) -> int:
        present = _present_json if as_json else _present
        shown = 0
        async for message in session.browse(queue, bodies=not no_bodies):
            if shown == most:
                if not as_json:
                    print_line(f"and more in {queue}; see them with --max or --all")
                return shown
            present(message)
            shown += 1
        if not as_json:
            print_line(f"{counted(shown, 'message')} in {queue}")
        return shown

    ask(walk, address=address, config=config, broker=broker)
    return 0


def _present(message: Message) -> None:
    about = f"order {message.queuing_order}  {_STATUS[message.status]}"
    print_line(f"{about}  level {message.priority}  group {show(message.group_id)}")
    print_message(message)


def _present_json(message: Message) -> None:
    print_json(columns(message), indent=0)


def columns(message: Message) -> dict[str, object]:
    """Return all columns of a message (RCV-27 to RCV-43), under Service Broker's names."""
    common = as_map(message)
    rest: dict[str, object] = {
        "status": message.status,
        "priority": message.priority,
        "queuing_order": message.queuing_order,
        "message_sequence_number": message.sequence,
        "service_name": message.service,
        "service_id": message.service,
        "service_contract_name": message.contract,
        "service_contract_id": message.contract,
        "message_type_name": message.message_type,
        "message_type_id": message.message_type,
        "validation": message.validation,
        "message_id": show(message.message_id),
        "timer_name": message.timer_name,
        "message_body": common["body"],
        "headers": common["headers"],
    }
    kept = ("conversation_handle", "conversation_id", "conversation_group_id", "enqueued_at")
    return rest | {name: common[name] for name in (*kept, "delivery_count", "body_encoding")}
