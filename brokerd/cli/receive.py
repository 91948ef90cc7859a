"""`brokerd receive`: the next messages of a queue, shown and put back, or taken."""

from pathlib import Path

import click

from brokerd.cli.bodies import as_map, print_message
from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, say
from brokerd.cli.session import ask
from brokerd.client.messages import Message
from brokerd.client.session import Session


@click.command(name="receive")
@click.argument("queue")
@click.option("--max", "limit", type=click.IntRange(1), default=10, show_default=True)
@click.option("--wait", type=click.FloatRange(0), default=0.0, help="Wait so many seconds.")
@click.option(
    "--ack/--peek",
    "acknowledge",
    default=False,
    help="Take the messages for good, or put them back after showing them.  [default: --peek]",
)
@daemon_options
@json_option
def command(
    *,
    queue: str,
    limit: int,
    wait: float,
    acknowledge: bool,
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> int:
    """Receive the next messages of QUEUE, all of one conversation group.

    They are shown and stay in the queue, unless --ack is given. Exit status 1 if there are none.
    """

    def present(messages: list[Message]) -> None:
        if as_json:
            print_json([as_map(message) for message in messages])
            return
        for message in messages:
            print_message(message)

    async def receive(session: Session) -> list[Message]:
        tx = session.transaction()
        try:
            messages = await tx.receive(queue, limit, wait=wait or None)
            present(messages)  # before the commit: what was not shown is not lost
            if acknowledge:
                await tx.commit()
        finally:
            tx.rollback()
        return messages

    messages = ask(receive, address=address, config=config, broker=broker)
    if not as_json:
        say(_summary(queue, len(messages), acknowledged=acknowledge))
    return 0 if messages else 1


def _summary(queue: str, count: int, *, acknowledged: bool) -> str:
    if not count:
        return f"no message is ready in {queue}"
    what = "1 message" if count == 1 else f"{count} messages"
    if acknowledged:
        return f"{what} taken from {queue}"
    return f"{what}, still in {queue}; take with: brokerd receive {queue} --ack"
