"""`brokerd dialog`: dialog endpoints (VIEW-1); why one of them waits, its timer, its end."""

from pathlib import Path

import click
import msgspec

from brokerd.cli import dialog_timeline
from brokerd.cli.options import AFTER, daemon_options, given_place, json_option
from brokerd.cli.output import print_json, print_line, print_rows
from brokerd.cli.session import ask
from brokerd.cli.short_ids import GROUP, HANDLE
from brokerd.cli.view_commands import Choice, Shown, listing, noun, showing, since
from brokerd.client.messages import Resent
from brokerd.client.session import Session
from brokerd.clock import show_instant
from brokerd.errors import ErrorNeedsCodeAndText, UsageError
from brokerd.ids import show
from brokerd.telemetry.status import TransmissionStatus
from brokerd.units import counted

_STATES = "Only endpoints in this state (SO, SI, CO, DI, DO, ER, CD); repeatable."

command = noun(
    "dialog",
    "Dialogs: their endpoints and states; why a dialog waits; ending it.",
    listing(
        "conversation_endpoints",
        "List dialog endpoints. --older-than: longer than this in their present state.",
        Shown("conversation_handle", "handle"),
        Shown("state", "state"),
        Shown("state_since", "since", since),
        Shown("is_initiator", "initiator"),
        Shown("service_id", "service"),
        Shown("far_service", "far service"),
        Shown("service_contract_id", "contract"),
        Shown("send_sequence", "sent"),
        Shown("receive_sequence", "received"),
        Shown("unread_count", "unread"),
        Shown("pending_send_count", "pending"),
        Shown("error_code", "error"),
        choices=(
            Choice("state", "state", _STATES, many=True),
            Choice("service", "service_id", "Only endpoints of this local service."),
            Choice("far-service", "far_service", "Only endpoints with this far service."),
            Choice("group", "conversation_group_id", "Only endpoints of this conversation group."),
        ),
        aged=True,
    ),
    showing(
        "conversation_endpoints",
        "Show all columns of the endpoints with this handle or conversation id.",
        "HANDLE|CONVERSATION",
        "conversation_handle",
        "conversation_id",
    ),
)


command.add_command(dialog_timeline.command)
handle_argument = click.argument("handle", type=HANDLE)


@command.command(name="status")
@handle_argument
@daemon_options
@json_option
def status(
    *, handle: bytes, address: str | None, config: Path | None, broker: str, as_json: bool
) -> int:
    """Show the state of a dialog's transmission, and why it is held up.

    HANDLE is printed by `brokerd send` and listed by `brokerd dialog ls`; its first four digits or
    more are enough. `brokerd dialog timeline` shows what has happened, at both sides.
    """

    async def fetch(session: Session) -> TransmissionStatus:
        return await session.transmission_status(handle)

    found = ask(fetch, address=address, config=config, broker=broker)
    if as_json:
        print_json({"conversation_handle": show(handle), **msgspec.to_builtins(found)})
        return 0
    if not found.status_key:
        print_line("nothing waits to be sent or acknowledged")
        return 0
    print_line(f"{found.status_key}: {found.transmission_status}")
    tried = "sent" if found.destination is not None else "tried"
    print_line(f"  {found.pending} unacknowledged, {tried} {counted(found.attempts, 'time')}")
    if found.destination is not None:
        print_line(f"  to {found.destination}")
    if found.status_since is not None:
        print_line(f"  since {show_instant(found.status_since)}")
    if found.next_attempt_at is not None:
        print_line(f"  next attempt {show_instant(found.next_attempt_at)}")
    print_line(f"  what helps: brokerd doctor {given_place()}".rstrip())
    return 0


@command.command(name="end")
@click.argument("handles", type=HANDLE, nargs=-1, required=True, metavar="HANDLE...")
@click.option("--error", type=int, help="End with an error of this number, above 0.")
@click.option("--description", help="Text of the error; required with --error.")
@click.option("--cleanup", is_flag=True, help="Remove this side in any state; loses messages.")
@click.option("--reason", help="The reason, for the log; with --cleanup.")
@click.option("--tell-peer", is_flag=True, help="With --cleanup: notify the other side.")
@daemon_options
def end(
    *,
    handles: tuple[bytes, ...],
    error: int | None,
    description: str | None,
    cleanup: bool,
    reason: str | None,
    tell_peer: bool,
    address: str | None,
    config: Path | None,
    broker: str,
) -> int:
    """End this side of a dialog, or of several.

    With --cleanup this side is removed at once, in any state. Its messages that were not sent or
    not read are lost, and the other side is not notified. The other side keeps repeating its own
    unacknowledged messages until the dialog's lifetime is over. Use --cleanup for a dialog whose
    other side does not exist or is permanently gone, and give a --reason for the log.
    """
    if cleanup and reason is None:
        raise UsageError("--cleanup loses messages", hint="say why, for the log: --reason WHY")
    if not cleanup and (reason is not None or tell_peer):
        lone = "--reason" if reason is not None else "--tell-peer"
        hint = "add --cleanup; to notify the other side of an error: --error N --description WHY"
        raise UsageError(f"{lone} is for --cleanup only", hint=hint)
    if cleanup and (error is not None or description is not None):
        hint = "with --cleanup the other side is told nothing, or with --tell-peer that it is gone"
        raise UsageError("give --cleanup or --error, not both", hint=hint)
    if (error is None) != (description is None):
        raise ErrorNeedsCodeAndText(
            f"conversation {show(handles[0])} cannot end with "
            f"{'a number and no text' if description is None else 'a text and no number'}"
        )

    async def finish(session: Session) -> None:
        for handle in handles:
            if reason is not None:
                await session.admin.clean_up(handle, reason, tell_peer=tell_peer)
            else:
                await session.end(handle, error, description)
            print_line(f"{'removed' if cleanup else 'ended'} {show(handle)}")

    ask(finish, address=address, config=config, broker=broker)
    return 0


@command.command(name="timer")
@handle_argument
@click.argument("seconds", type=AFTER, required=False)
@click.option("--name", help="The name of the timer, if it has one.")
@click.option("--cancel", is_flag=True, help="Cancel the timer.")
@daemon_options
def timer(
    *,
    handle: bytes,
    seconds: float | None,
    name: str | None,
    cancel: bool,
    address: str | None,
    config: Path | None,
    broker: str,
) -> int:
    """Set a timer: a DialogTimer message arrives at this side of the dialog after SECONDS."""
    if cancel == (seconds is not None):
        raise UsageError(
            "a timer is set or cancelled", hint="give the SECONDS until it is due, or --cancel"
        )

    async def set_it(session: Session) -> None:
        await session.set_timer(handle, seconds, name)

    ask(set_it, address=address, config=config, broker=broker)
    print_line("cancelled" if cancel else f"set to {seconds:g} s from now")
    return 0


@command.command(name="move")
@handle_argument
@click.argument("group", type=GROUP)
@daemon_options
def move(
    *, handle: bytes, group: bytes, address: str | None, config: Path | None, broker: str
) -> int:
    """Put a dialog into another conversation GROUP of its service, with all its messages."""

    async def work(session: Session) -> None:
        await session.move(handle, group)

    ask(work, address=address, config=config, broker=broker)
    print_line(f"moved {show(handle)} into group {show(group)}")
    return 0


@command.command(name="resend")
@click.argument("old", type=HANDLE)
@click.argument("new", type=HANDLE)
@daemon_options
@json_option
def resend(
    *,
    old: bytes,
    new: bytes,
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> int:
    """Send on the dialog NEW the messages that OLD retains since it was ended or failed.

    Messages that may have arrived already are marked; OLD keeps its messages until it is ended.
    """

    async def work(session: Session) -> list[Resent]:
        return await session.resend_pending(old, new)

    sent = ask(work, address=address, config=config, broker=broker)
    if as_json:
        rows = [{**msgspec.structs.asdict(one), "message_id": show(one.message_id)} for one in sent]
        print_rows(rows)
        return 0
    for one in sent:
        known = "  may have arrived already" if one.may_have_arrived else ""
        print_line(
            f"{one.message_type}  sequence {one.sequence}  message {show(one.message_id)}{known}"
        )
    print_line(f"{counted(len(sent), 'message')} sent again on {show(new)}")
    return 0
