"""`brokerd receive`: receives and shows a queue's next messages; `queue browse` only shows."""

from pathlib import Path

import click

from brokerd.cli import undelivered
from brokerd.cli.bodies import as_map, print_message
from brokerd.cli.options import SECONDS, daemon_options, json_option
from brokerd.cli.output import print_line, print_rows, quoted, warn
from brokerd.cli.session import ask
from brokerd.cli.short_ids import GROUP, HANDLE
from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.errors import UsageError
from brokerd.units import counted


@click.command(name="receive")
@click.argument("queue")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Largest number of messages to receive.",
)
@click.option("--wait", type=SECONDS, default=0.0, help="Longest wait.")
@click.option("--conversation", type=HANDLE, help="Only messages of the dialog with this handle.")
@click.option("--group", type=GROUP, help="Only messages of this conversation group.")
@click.option("--ack", "acknowledge", is_flag=True, help="Confirm that the messages are removed.")
@daemon_options
@json_option
def command(
    *,
    queue: str,
    limit: int,
    wait: float,
    conversation: bytes | None,
    group: bytes | None,
    acknowledge: bool,
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> int:
    """Receive the next messages of QUEUE, all of one conversation group, and show them.

    The messages are removed from the queue, which --ack has to confirm. Exit status 1 if there are
    none; then the unacknowledged messages from the queue's services are shown, with the reason. To
    see the messages of a queue without removing them: brokerd queue browse QUEUE.
    """
    if not acknowledge:
        raise UsageError(
            "this takes messages for good, which --ack has to say",
            hint=f"say --ack; to look only: brokerd queue browse {quoted(queue)}",
        )

    def present(messages: list[Message]) -> None:
        if as_json:
            print_rows([as_map(message) for message in messages])
            return
        for message in messages:
            print_message(message)

    async def receive(session: Session) -> tuple[list[Message], list[str]]:
        tx = session.transaction()
        try:
            messages = await tx.receive(
                queue, limit, conversation=conversation, group=group, wait=wait or None
            )
            present(messages)  # before the commit: messages that were not shown are not lost
            await tx.commit()
        finally:
            tx.rollback(counts=False)
        return messages, [] if messages else await undelivered.of_queue(session, queue)

    messages, reasons = ask(receive, address=address, config=config, broker=broker)
    if not as_json:
        print_line(_summary(queue, len(messages)))
    for reason in reasons:  # messages that an answer may still be waiting for
        warn(f"sent from {queue}: {reason}")
    return 0 if messages else 1


def _summary(queue: str, count: int) -> str:
    if not count:
        return f"no message is ready in {queue}"
    return f"{counted(count, 'message')} taken from {queue}"
