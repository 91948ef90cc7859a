"""`brokerd dialog timeline`: both sides of a dialog, joined (MON-52).

Calls:  the verb `dialog_timeline`, `admin.timeline` with its answer.
Never:  changes anything, or shows the content of a message.
"""

from pathlib import Path
from typing import Final

import click
import msgspec

from brokerd.admin.timeline import Joined, join
from brokerd.cli.options import SECONDS, daemon_options, json_option
from brokerd.cli.output import ago, print_json, print_line, table
from brokerd.cli.session import ask
from brokerd.cli.short_ids import HANDLE
from brokerd.client.session import Session
from brokerd.client.timelines import DialogSides
from brokerd.clock import Instant, show_instant
from brokerd.protocol.inquiry import SideReport
from brokerd.routing.reasons import status_text

_MARKS: Final = {"bad": "STUCK", "warn": "waits", "": "note", "good": "note"}
_CLOCK: Final = slice(11, 23)
"""The part of an instant as text that is the time of day, in milliseconds."""


@click.command(name="timeline")
@click.argument("handle", type=HANDLE)
@click.option("--wait", type=SECONDS, default="3s", show_default=True,
              help="Time that the other instance may take to answer.")  # fmt: skip
@daemon_options
@json_option
def command(
    *,
    handle: bytes,
    wait: float,
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> int:
    """Show both sides of a dialog: what has happened, and what it waits for.

    The other side is asked, also if another instance has it, along the way of the dialog's
    messages. It tells states, numbers and times, no contents.
    """

    async def fetch(session: Session) -> DialogSides:
        return await session.admin.timeline(handle, wait=wait)

    found = ask(fetch, address=address, config=config, broker=broker)
    joined = join(found.near, found.far, found.seconds)
    if as_json:
        print_json({**msgspec.to_builtins(found), **msgspec.to_builtins(joined)})
        return 0
    _print(found, joined)
    return 0


def _print(found: DialogSides, joined: Joined) -> None:
    near = "initiator" if found.near.is_initiator else "target"
    far = "target" if found.near.is_initiator else "initiator"
    print_line(f"dialog {found.conversation_handle}, conversation {found.conversation_id}")
    print_line(f"  {near:9} {found.service}: {_side(found.near, found.near.now)}")
    print_line(f"  {far:9} {found.far_service}: {_side(found.far, found.near.now, found)}")
    for tone, text in joined.hangs:
        print_line(f"{_MARKS[tone]:5} {text}")
    if not joined.hangs:
        print_line("nothing waits at either side that is known")
    columns = ("from", "sent", "acknowledged", "arrived", "unread", "received", "discarded")
    flows = [
        [one.sender, *(_dash(getattr(one, name)) for name in columns[1:])] for one in joined.flows
    ]
    table("messages", columns, flows)
    if joined.ahead:
        print_line(f"the other clock is {joined.ahead / 1_000_000:+.1f} s ahead; times are by ours")
    moments = [(show_instant(one.at)[_CLOCK], one.side, one.text) for one in joined.moments]
    table("timeline", ("at (UTC)", "side", "what"), moments)
    if found.steps:
        steps = [
            (one.leg, one.instance, one.route, one.where, _obstacle(one.reason, one.detail))
            for one in found.steps
        ]
        table("way", ("leg", "instance", "route", "to", "obstacle"), steps)


def _side(one: SideReport | None, now: int, found: DialogSides | None = None) -> str:
    if one is None:
        last = found.steps[-1] if found is not None and found.steps else None
        why = _obstacle(last.reason, last.detail) if last is not None else ""
        return f"not reached: {why or 'it did not answer'}"
    if not one.is_known:
        return f"not there, at instance {one.instance}"
    text = f"{one.state} since {ago(Instant(one.state_since), Instant(now))}"
    text += f", at instance {one.instance}"
    return f"{text}, {one.status_key}" if one.status_key else text


def _obstacle(reason: str, detail: str) -> str:
    return status_text(reason, detail) if reason else detail


def _dash(value: int | None) -> str:
    return "-" if value is None else str(value)
