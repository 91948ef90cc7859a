"""`brokerd send`: one message in a dialog of its own, and perhaps its reply."""

from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from brokerd.cli.bodies import as_map, print_message
from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, say, warn
from brokerd.cli.session import ask
from brokerd.client.messages import ABSENT, Body, Message
from brokerd.client.session import Session
from brokerd.errors import BrokerError, ServiceNotFound, UsageError
from brokerd.ids import Handle, show
from brokerd.tomlfile import did_you_mean


@click.command(name="send")
@click.option("--from", "from_service", required=True, help="The local service that sends.")
@click.option("--to", "to_service", required=True, help="The service to talk to, here or far.")
@click.option("--contract", help="Contract of the dialog.  [default: DEFAULT]")
@click.option("--type", "message_type", help="Message type.  [default: DEFAULT]")
@click.option("--body", help="The body, as text.")
@click.option("--file", "source", type=click.File("rb"), help="The body from a file, - for input.")
@click.option("--lifetime", type=click.IntRange(1), help="Seconds the dialog may last.")
@click.option("--wait", type=click.FloatRange(0), help="Wait so many seconds for a reply.")
@click.option("--queue", help="Queue of the sending service; found out if not given.")
@click.option("--end", is_flag=True, help="End this side of the dialog afterwards.")
@daemon_options
@json_option
def command(
    *,
    from_service: str,
    to_service: str,
    contract: str | None,
    message_type: str | None,
    body: str | None,
    source: BinaryIO | None,
    lifetime: int | None,
    wait: float | None,
    queue: str | None,
    end: bool,
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> int:
    """Begin a dialog, send one message, and return when it is stored durably.

    With --wait the first reply is taken from the queue and printed; exit status 1 if none came.
    """
    letter = _Letter(
        from_service=from_service,
        to_service=to_service,
        contract=contract,
        message_type=message_type,
        body=_body(body, source),
        lifetime=lifetime,
        end=end,
    )

    async def send(session: Session) -> tuple[Handle, list[Message]]:
        try:
            if wait is None:
                return await _send(session, letter), []
            return await _send_and_wait(session, letter, queue=queue, wait=wait)
        except ServiceNotFound as error:
            raise ServiceNotFound(
                error.message, hint=await _services_hint(session, from_service)
            ) from error

    handle, replies = ask(send, address=address, config=config, broker=broker)
    if as_json:
        print_json({"conversation_handle": show(handle), "replies": [as_map(m) for m in replies]})
    else:
        say(f"sent; conversation handle {show(handle)}{', ended' if end else ''}")
        for reply in replies:
            print_message(reply)
    if wait is not None and not replies:
        warn(f"no reply within {wait:g} s; the message is stored, see: brokerd status")
        return 1
    return 0


class _Letter(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be sent, in a dialog of its own."""

    from_service: str
    to_service: str
    contract: str | None
    message_type: str | None
    body: Body
    lifetime: int | None
    end: bool


async def _send(session: Session, letter: _Letter, *, stay: bool = False) -> Handle:
    """Begin, send and, unless to `stay`, end as asked: one transaction."""
    async with session.transaction() as tx:
        handle = await tx.begin_dialog(
            letter.from_service, letter.to_service, letter.contract, letter.lifetime
        )
        await tx.send(handle, letter.body, letter.message_type)
        if letter.end and not stay:
            await tx.end(handle)
    return handle


async def _send_and_wait(
    session: Session, letter: _Letter, *, queue: str | None, wait: float
) -> tuple[Handle, list[Message]]:
    queue = queue or await _queue_of(session, letter.from_service)
    handle = await _send(session, letter, stay=True)
    try:
        async with session.transaction() as tx:
            replies = await tx.receive(queue, 1, conversation=handle, wait=wait)
            if letter.end:
                await tx.end(handle)
    except BrokerError as error:
        warn(f"sent; conversation handle {show(handle)}. Do not send it again: {error.message}")
        raise
    return handle, replies


def _body(text: str | None, source: BinaryIO | None) -> Body:
    if text is not None and source is not None:
        raise UsageError("give --body or --file, not both")
    if source is not None:
        return source.read()
    return ABSENT if text is None else text.encode()


async def _queue_of(session: Session, service: str) -> str:
    """The queue that replies to a service arrive in."""
    for row in await session.view("services"):
        if isinstance(row, dict) and row.get("name") == service:
            return str(row["service_queue_id"])
    raise ServiceNotFound(f"service {service!r} is not in this broker")


async def _services_hint(session: Session, wanted: str) -> str:
    rows = await session.view("services")
    names = sorted(str(row["name"]) for row in rows if isinstance(row, dict))
    nearest = did_you_mean(wanted, names)
    return f"--from names a service of this broker: {', '.join(names) or 'it has none'}{nearest}"
