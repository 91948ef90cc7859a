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

    While a jump of more than an hour is held, nothing expires or fires by it; `brokerd status` says
    so. Confirm it if the clock is right now: what has expired by then ends at once.
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


command = noun("clock", "Whether the daemon follows the clock of its machine.", _confirm)
