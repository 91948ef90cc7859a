"""`brokerd clock`: confirms a jump of the machine's clock to the daemon (REL-24)."""

from datetime import timedelta
from typing import Any

import click

from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, print_line
from brokerd.cli.session import ask
from brokerd.cli.view_commands import noun
from brokerd.client.session import Session
from brokerd.units import show_duration


@click.command(name="confirm")
@daemon_options
@json_option
def _confirm(*, as_json: bool, **place: Any) -> None:  # noqa: ANN401
    """Follow a jump of the machine's clock now, instead of after ten minutes.

    While the daemon holds back a jump of more than an hour, nothing expires or fires because of it;
    `brokerd status` reports the jump. Confirm it if the clock is right now: everything that has
    expired by the new time then ends at once.
    """

    async def confirm(session: Session) -> timedelta:
        return await session.admin.confirm_clock()

    by = ask(confirm, **place)
    if as_json:
        print_json({"seconds": round(by.total_seconds())})
    else:
        print_line(
            f"time was moved {show_duration(abs(by))} {'ahead' if by > timedelta() else 'back'}"
        )


command = noun("clock", "The daemon's clock: accept a jump of the machine's clock.", _confirm)
