"""`brokerd call`: sends a message in a new dialog, waits for the reply, prints it, ends the dialog.

Calls:  `cli.send`, which does all of it in two transactions.
Never:  ends a dialog without a reply: the message is stored, and its reply can still be received.
"""

import sys
from pathlib import Path
from typing import BinaryIO

import click

from brokerd.cli import undelivered
from brokerd.cli.bodies import as_map
from brokerd.cli.options import SECONDS, daemon_options, given_place, json_option
from brokerd.cli.output import print_json, print_line, quoted, warn
from brokerd.cli.send import (
    Letter,
    body_of,
    header_option,
    headers_of,
    send_and_wait,
    services_hint,
    unknown,
)
from brokerd.cli.session import ask
from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.errors import OutcomeUnknown, ServiceNotFound, UsageError
from brokerd.ids import Handle, show
from brokerd.process.exit_statuses import FAILED, OK

DEFAULT_WAIT = 30.0


@click.command(name="call")
@click.argument("service")
@click.argument("body", required=False)
@click.option("--file", "source", type=click.File("rb"), help="File with the body, - for input.")
@click.option(
    "--from", "from_service", help="The local service that asks.  [default: the only one]"
)
@click.option("--contract", help="Contract of the dialog.  [default: DEFAULT]")
@click.option("--type", "message_type", help="Message type.  [default: DEFAULT]")
@click.option(
    "--wait",
    type=SECONDS,
    default=f"{DEFAULT_WAIT:g}s",
    show_default=True,
    help="Longest wait for a reply.",
)
@header_option
@daemon_options
@json_option
def command(
    *,
    service: str,
    body: str | None,
    source: BinaryIO | None,
    from_service: str | None,
    contract: str | None,
    message_type: str | None,
    wait: float,
    headers: tuple[str, ...],
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> int:
    """Ask SERVICE: send BODY in a new dialog, wait for the reply, print it and end the dialog.

    Standard output has the body of the reply and nothing else. The exit status is 1 if no reply
    came in time: the message is stored all the same, so do not repeat it; its dialog stays open,
    and the reply can be received later. If the reply is an error, the error is printed.
    """
    packed = body_of(body, source)

    async def call(session: Session) -> tuple[Handle, list[Message], list[str]]:
        own = from_service or await _only_service(session)
        letter = Letter(
            from_service=own,
            to_service=service,
            on=(),
            contract=contract,
            message_type=message_type,
            body=packed,
            headers=headers_of(headers),
            lifetime=None,
            related=None,
            group=None,
            broker_id=None,
            encryption=None,
            end=True,
        )
        try:
            (handle,), replies = await send_and_wait(
                session, letter, queue=None, wait=wait, keep=True
            )
        except OutcomeUnknown as error:
            raise unknown() from error
        except ServiceNotFound as error:
            hint = await services_hint(session, own)
            raise ServiceNotFound(error.message, hint=hint) from error
        reasons = [] if replies else await undelivered.of_dialog(session, show(handle))
        return handle, replies, reasons

    handle, replies, reasons = ask(call, address=address, config=config, broker=broker)
    if not replies:
        return _unanswered(handle, reasons, wait)
    (reply,) = replies
    if reply.error is not None:
        raise reply.error
    if as_json:
        print_json(as_map(reply))
    else:
        _print_body(reply)
    return OK


async def _only_service(session: Session) -> str:
    """Return the service of the broker that begins the dialog, if there is no choice."""
    names = sorted(str(row["name"]) for row in await session.view("services"))
    if len(names) == 1:
        return names[0]
    raise UsageError(
        "say with --from which service asks",
        hint=f"the broker has {', '.join(map(quoted, names)) or 'none: brokerd service create'}",
    )


def _unanswered(handle: Handle, reasons: list[str], wait: float) -> int:
    look = f"brokerd dialog status {show(handle)} {given_place()}".strip()
    why = "; ".join(reasons) or f"the message is stored: {look}"
    warn(f"no reply within {wait:g} s; {why}")
    warn("its dialog stays open, and the reply can be received later: do not send it again")
    return FAILED


def _print_body(reply: Message) -> None:
    if reply.body is None:
        return
    if sys.stdout.isatty():
        print_line(reply.body.decode(errors="replace"))
    else:
        sys.stdout.buffer.write(reply.body)
