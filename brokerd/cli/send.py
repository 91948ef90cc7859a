"""`brokerd send`: sends one message in a new dialog or on existing ones; may await a reply.

Calls:  the session's verbs, in one transaction; another one for the reply.
Never:  sends before it has made every check that is possible without sending.
"""

from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from brokerd.cli import undelivered
from brokerd.cli.bodies import as_map, print_message
from brokerd.cli.options import SECONDS, daemon_options, given_place, json_option
from brokerd.cli.output import print_json, print_line, warn
from brokerd.cli.session import ask
from brokerd.cli.short_ids import GROUP, HANDLE
from brokerd.client.messages import ABSENT, CURRENT_DATABASE, Body, Message
from brokerd.client.session import Session
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import (
    BrokerError,
    ConversationNotFound,
    OutcomeUnknown,
    QueueNotFound,
    ServiceNotFound,
    UsageError,
)
from brokerd.ids import Handle, parse, show
from brokerd.process.exit_statuses import FAILED, OK

header_option = click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; repeatable."
)


@click.command(name="send")
@click.option("--from", "from_service", help="The local service that sends.")
@click.option("--to", "to_service", help="The service to send to, local or far.")
@click.option("--on", "on", type=HANDLE, multiple=True, help="Send on this dialog; repeatable.")
@click.option("--contract", help="Contract of the dialog.  [default: DEFAULT]")
@click.option("--type", "message_type", help="Message type.  [default: DEFAULT]")
@click.option("--body", help="The body, as text.")
@click.option("--file", "source", type=click.File("rb"), help="File with the body, - for input.")
@header_option
@click.option("--lifetime", type=int, help="Seconds the dialog may last.")
@click.option("--related", type=HANDLE, help="Begin the dialog in the group of this one.")
@click.option("--group", type=GROUP, help="Begin the dialog in this group.")
@click.option("--broker-id", help=f"Broker of the service: a GUID, or {CURRENT_DATABASE}.")
@click.option("--encryption", type=click.Choice(["on", "off"]), help="[default: the broker's]")
@click.option("--wait", type=SECONDS, help="Longest wait for a reply.")
@click.option("--queue", help="Queue of the sending service; looked up by default.")
@click.option("--end", is_flag=True, help="Then end this side of the dialog.")
@daemon_options
@json_option
def command(
    *,
    from_service: str | None,
    to_service: str | None,
    on: tuple[bytes, ...],
    contract: str | None,
    message_type: str | None,
    body: str | None,
    source: BinaryIO | None,
    headers: tuple[str, ...],
    lifetime: int | None,
    related: bytes | None,
    group: bytes | None,
    broker_id: str | None,
    encryption: str | None,
    wait: float | None,
    queue: str | None,
    end: bool,
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> int:
    """Send one message, and return when it is stored durably: --from and --to begin a dialog.

    With --on HANDLE the message is sent on an open dialog; if --on is repeated, on all of these
    dialogs or on none. With --wait the first reply is received from the queue and printed; exit
    status 1 if no reply came, or if it is an error. Nothing is sent if any option is wrong.
    """
    begins = (from_service, to_service, contract, lifetime, related, group, broker_id, encryption)
    if on and any(one is not None for one in begins):
        raise UsageError(
            "--on sends on dialogs that are there",
            hint="leave out what begins one: --from, --to, --contract and their like",
        )
    if not on and (from_service is None or to_service is None):
        raise click.UsageError("give --from and --to, or --on with the handle of a dialog")
    _check_wait(on, wait, queue)
    letter = Letter(
        from_service=from_service or "",
        to_service=to_service or "",
        on=on,
        contract=contract,
        message_type=message_type,
        body=body_of(body, source),
        headers=headers_of(headers),
        lifetime=lifetime,
        related=related,
        group=group,
        broker_id=_broker_id(broker_id),
        encryption=None if encryption is None else encryption == "on",
        end=end,
    )

    async def send(
        session: Session,
    ) -> tuple[list[Handle], list[str], list[Message], list[str]]:
        try:
            if wait is None:
                handles = await _send(session, letter)
                return handles, await _conversations(session, handles), [], []
            handles, replies = await send_and_wait(session, letter, queue=queue, wait=wait)
            reasons = [] if replies else await undelivered.of_dialog(session, show(handles[0]))
        except OutcomeUnknown as error:
            raise unknown() from error
        except ServiceNotFound as error:
            raise ServiceNotFound(
                error.message, hint=await services_hint(session, letter.from_service)
            ) from error

        ids = [show(one.conversation_id) for one in replies]
        return handles, ids or await _conversations(session, handles), replies, reasons

    handles, ids, replies, reasons = ask(send, address=address, config=config, broker=broker)
    _print_sent(handles, ids, replies, end=end, as_json=as_json)
    return 0 if wait is None else _exit_status(handles[0], replies, reasons, wait)


def unknown() -> OutcomeUnknown:
    """Return the error for a daemon that went away while it stored the message."""
    return OutcomeUnknown(
        "the daemon is away or silent: it is not known whether the message is stored",
        hint="before sending it again look whether its dialog is there: brokerd dialog ls",
    )


def _check_wait(on: tuple[bytes, ...], wait: float | None, queue: str | None) -> None:
    if len(on) > 1 and wait is not None:
        raise UsageError(
            "--wait is for the reply on one dialog, and --on names several",
            hint="leave --wait out; receive the replies with: brokerd receive QUEUE --ack",
        )
    if queue is not None and wait is None:
        raise UsageError("--queue is where the reply of --wait comes", hint="say --wait as well")


def _print_sent(
    handles: list[Handle], ids: list[str], replies: list[Message], *, end: bool, as_json: bool
) -> None:
    named = [show(handle) for handle in handles]
    if as_json:
        about = {"conversation_handle": named[0], "conversation_handles": named}
        print_json(
            {**about, "conversation_ids": ids, "replies": [as_map(reply) for reply in replies]}
        )
        return
    of = f", conversation id {', '.join(ids)}" if ids else ""
    print_line(f"sent; conversation handle {', '.join(named)}{of}{', ended' if end else ''}")
    for reply in replies:
        print_message(reply)


def _exit_status(handle: Handle, replies: list[Message], reasons: list[str], wait: float) -> int:
    """Return the exit status for the replies; raise the error if the reply is an Error."""
    if not replies:
        look = f"brokerd dialog status {show(handle)} {given_place()}".strip()
        why = "; ".join(reasons) or f"the message is stored: {look}"
        warn(f"no reply within {wait:g} s; {why}")
        return FAILED
    (reply,) = replies
    if reply.error is not None:
        raise reply.error
    return OK


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """The message to send, in a new dialog or on the dialogs in `on`."""

    from_service: str
    to_service: str
    on: tuple[bytes, ...]
    contract: str | None
    message_type: str | None
    body: Body
    headers: dict[str, str]
    lifetime: int | None
    related: bytes | None
    group: bytes | None
    broker_id: bytes | str | None
    encryption: bool | None
    end: bool


async def _send(session: Session, letter: Letter, *, stay: bool = False) -> list[Handle]:
    """In one transaction: begin a dialog unless the letter names some, send, and end the dialogs.

    Dialogs are not ended with `stay`, or if the letter does not request the end."""
    async with session.transaction() as tx:
        handles = [Handle(one) for one in letter.on]
        if not handles:
            begun = await tx.begin_dialog(
                letter.from_service,
                letter.to_service,
                letter.contract,
                letter.lifetime,
                broker_id=letter.broker_id,
                related_conversation=letter.related,
                related_group=letter.group,
                encryption=letter.encryption,
            )
            handles = [begun]
        to: bytes | list[bytes] = handles[0] if len(handles) == 1 else [*handles]
        await tx.send(to, letter.body, letter.message_type, headers=letter.headers)
        for handle in handles if letter.end and not stay else ():
            await tx.end(handle)
    return handles


async def _conversations(session: Session, handles: list[Handle]) -> list[str]:
    """Return the ids of the conversations, in the order of the handles; none if they are gone."""
    named = [show(one) for one in handles]
    try:
        rows = await session.view("conversation_endpoints", where={"conversation_handle": named})
    except BrokerError:  # the messages are stored: nothing may look like a failure now
        return []
    found = {str(row["conversation_handle"]): str(row["conversation_id"]) for row in rows}
    return [found[one] for one in named if one in found]


async def send_and_wait(
    session: Session, letter: Letter, *, queue: str | None, wait: float, keep: bool = False
) -> tuple[list[Handle], list[Message]]:
    """Send, and receive the first reply on the dialog; end it then if the letter says so.

    `keep`: a dialog without a reply stays open, so that the reply can be received later.
    """
    own = await _queue_of(session, await _service_of(session, letter))
    if queue not in (None, own):
        raise QueueNotFound(
            f"the reply does not come to queue {queue!r}",
            hint=f"it comes to {own!r}, the queue of the service: leave --queue out",
        )
    (handle,) = handles = await _send(session, letter, stay=True)
    try:
        async with session.transaction() as tx:
            replies = await tx.receive(own, 1, conversation=handle, wait=wait)
            if letter.end and (replies or not keep):
                await tx.end(handle)
    except BrokerError as error:
        warn(f"sent; conversation handle {show(handle)}. Do not send it again: {error.message}")
        raise
    return handles, replies


def body_of(text: str | None, source: BinaryIO | None) -> Body:
    """Return the body that --body or --file gives."""
    if text is not None and source is not None:
        raise UsageError("give --body or --file, not both")
    if source is not None:
        return source.read()
    return ABSENT if text is None else text.encode()


def headers_of(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or name in found:
            problem = f"{name!r} is given twice" if equals else f"{one!r} has no ="
            raise UsageError(f"--header {problem}", hint="give NAME=VALUE, each name once")
        found[name] = value
    return found


def _broker_id(text: str | None) -> bytes | str | None:
    if text is None or text.upper() == CURRENT_DATABASE:
        return text
    try:
        return parse(text)
    except ValueError:
        raise UsageError(
            f"--broker-id {text!r} is neither a GUID nor {CURRENT_DATABASE}",
            hint="brokerd broker ls shows those of an instance",
        ) from None


async def _service_of(session: Session, letter: Letter) -> str:
    """Return the sending service, whose queue gets the replies."""
    if not letter.on:
        return letter.from_service
    handle = show(letter.on[0])
    for row in await session.view("conversation_endpoints", where={"conversation_handle": handle}):
        return str(row["service_id"])
    raise ConversationNotFound(f"no conversation {handle} is open here")


async def _queue_of(session: Session, service: str) -> str:
    """Return the queue in which replies to a service arrive."""
    for row in await session.view("services"):
        if row.get("name") == service:
            return str(row["service_queue_id"])
    raise ServiceNotFound(f"service {service!r} is not in this broker")


async def services_hint(session: Session, wanted: str) -> str:
    """Return a hint with the services that --from may name."""
    rows = await session.view("services")
    names = sorted(str(row["name"]) for row in rows)
    nearest = did_you_mean(wanted, names)
    return f"--from names a service of this broker: {', '.join(names) or 'it has none'}{nearest}"
