"""`brokerd group`: conversation groups, the holders of their locks, parked ones (VIEW-2, PBT-3)."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO

import click

from brokerd.cli.options import daemon_options
from brokerd.cli.output import print_line, warn
from brokerd.cli.session import ask
from brokerd.cli.short_ids import GROUP
from brokerd.cli.view_commands import Choice, Shown, listing, noun, showing, since, until
from brokerd.client.admin_answers import Edited
from brokerd.client.session import Session
from brokerd.errors import UsageError
from brokerd.ids import show
from brokerd.units import counted

_ALL = listing(
    "conversation_groups",
    "List conversation groups with an open dialog.",
    Shown("conversation_group_id", "group"),
    Shown("service_id", "service"),
    Shown("ready_messages", "ready"),
    Shown("effective_priority", "priority"),
    Shown("locked_by_session", "locked by"),
    Shown("locked_since", "since", since),
    Shown("parked_at", "parked", since),
    Shown("park_reason", "reason"),
    choices=(Choice("service", "service_id", "Only groups of this service."),),
)
_PARKED = listing(
    "parked_groups",
    "List groups that are parked, wait for their next attempt, or were rolled back.",
    Shown("conversation_group_id", "group"),
    Shown("queue", "queue"),
    Shown("state", "state"),
    Shown("rollback_streak", "rollbacks"),
    Shown("messages", "messages"),
    Shown("parked_at", "parked", since),
    Shown("retry_at", "next attempt", until),
    Shown("park_reason", "reason"),
    Shown("last_error", "last error"),
)


def _ls() -> click.Command:
    """Return the command `ls`, which lists the view of parked groups with `--parked`."""
    only = click.Option(
        ["--parked"], is_flag=True, help="List parked groups and groups to be retried."
    )

    def run(*, parked: bool, **given: Any) -> None:  # noqa: ANN401  # options as click gives them
        chosen = _PARKED if parked else _ALL
        names = {one.name for one in chosen.params}
        assert chosen.callback is not None, "both were made with one"
        chosen.callback(**{name: value for name, value in given.items() if name in names})

    return click.Command("ls", callback=run, params=[only, *_ALL.params], help=_ALL.help)


command = noun(
    "group",
    "Conversation groups: the holders of their locks, their messages, parked groups.",
    _ls(),
    showing(
        "conversation_groups", "Show all columns of a group.", "GROUP", "conversation_group_id"
    ),
)


_argument = click.argument("group", type=GROUP)
_reason = click.option("--reason", default="", help="The reason, for the log.")
Do = Callable[[Session], Awaitable[Any]]


def _run(do: Do, address: str | None, config: Path | None, broker: str) -> Any:  # noqa: ANN401
    async def act(session: Session) -> Any:  # noqa: ANN401
        return await do(session)

    return ask(act, address=address, config=config, broker=broker)


@command.command(name="release")
@click.argument("groups", type=GROUP, nargs=-1, required=True, metavar="GROUP...")
@_reason
@daemon_options
def release(*, groups: tuple[bytes, ...], reason: str, **options: Any) -> None:  # noqa: ANN401
    """Let each GROUP be received again, and reset its count of rollbacks."""

    async def act(session: Session) -> None:
        for group in groups:
            await session.admin.release_group(group, reason)
            print_line(f"released {show(group)}")

    _run(act, **options)


@command.command(name="discard")
@_argument
@click.option("--all", "everything", is_flag=True, help="Discard all messages, not only the first.")
@_reason
@daemon_options
def discard(
    *,
    group: bytes,
    everything: bool,
    reason: str,
    **options: Any,  # noqa: ANN401
) -> None:
    """Delete the first message of GROUP permanently, and let the group be received again."""
    count = _run(
        lambda session: session.admin.discard_group(group, reason, everything=everything),
        **options,
    )
    print_line(f"discarded {counted(count, 'message')} of {show(group)}")


@command.command(name="end")
@_argument
@click.option("--error", type=click.IntRange(1), required=True, help="Number of the error.")
@click.option("--description", required=True, help="Text of the error.")
@daemon_options
def end(
    *,
    group: bytes,
    error: int,
    description: str,
    **options: Any,  # noqa: ANN401
) -> None:
    """End every dialog of GROUP with an error; the messages that wait in it are deleted."""
    count = _run(lambda session: session.admin.end_group(group, error, description), **options)
    print_line(f"ended {counted(count, 'dialog')} of {show(group)}")


@command.command(name="edit")
@_argument
@click.option("--body", help="The new body, as text.")
@click.option("--file", "source", type=click.File("rb"), help="File with the body, - for input.")
@click.option("--as-it-is", is_flag=True, help="Let a non-JSON body replace a JSON body.")
@_reason
@daemon_options
def edit(
    *,
    group: bytes,
    body: str | None,
    source: BinaryIO | None,
    as_it_is: bool,
    reason: str,
    **options: Any,  # noqa: ANN401
) -> None:
    """Give the first message of GROUP another body, and let the group be received again.

    The body must fulfil the message type. A type without a schema requires little, and an App ends
    the dialog of a body that it cannot read.
    """
    if (body is None) == (source is None):
        raise UsageError("give the new body: --body TEXT or --file FILE")
    packed = body.encode() if body is not None else source.read() if source is not None else None
    done: Edited = _run(
        lambda session: session.admin.edit_group(group, packed, reason, as_it_is=as_it_is),
        **options,
    )
    print_line(f"message {done.message_id} of {show(group)} has another body")
    if not done.is_checked:
        warn(
            f"message type {done.message_type} has no schema (validation {done.validation}): "
            "that its reader can read the body was not checked"
        )
