"""`brokerd ping`: follows the path to a service and back, and shows each step (NBT-7)."""

from typing import Any

import click

from brokerd.cli.options import SECONDS, daemon_options, json_option
from brokerd.cli.output import print_json, print_line
from brokerd.cli.session import ask
from brokerd.cli.short_ids import BROKER_ID
from brokerd.client.admin_answers import PingAnswer, PingStep
from brokerd.client.session import Session
from brokerd.process.exit_statuses import FAILED, OK
from brokerd.routing.reasons import status_text

_NAME_ONE = "name the service that talks to it with --from, as the way back may be another one"


@click.command(name="ping")
@click.argument("service")
@click.option("--from", "from_service", metavar="SERVICE", help="The service that gets replies.")
@click.option(
    "--broker-id", type=BROKER_ID, help="The broker that the sender names with the service."
)
@click.option("--wait", type=SECONDS, default="10s", show_default=True, help="Longest wait.")
@daemon_options
@json_option
def command(
    *,
    service: str,
    from_service: str | None,
    broker_id: bytes | None,
    wait: float,
    as_json: bool,
    **daemon: Any,  # noqa: ANN401  # as click gives them
) -> int:
    """Follow the path to SERVICE and back, and show the decision of each instance on the path.

    The ping takes the path of a first message, and of its reply; no dialog is begun and nothing is
    queued. Exit status 1 if it does not come back.
    """

    async def ping(session: Session) -> PingAnswer:
        return await session.admin.ping(
            service, from_service=from_service, broker_id=broker_id, wait=wait
        )

    found = ask(ping, **daemon)
    if as_json:
        print_json(found)
    else:
        for step in found.steps:
            print_line(_line(step))
        print_line(verdict(found))
        if from_service is None and not found.is_complete and found.steps[-1].leg == "back":
            print_line(
                f"the way out is well; replies were to go to {found.from_service!r}: {_NAME_ONE}"
            )
    return OK if found.is_complete else FAILED


def _line(step: PingStep) -> str:
    by = f"broker {step.broker!r}" if step.broker else "routes of the instance"
    to = f" to {step.where}" if step.where else ""
    route = f", by route {step.route!r}" if step.route else ""
    found = f" (step {step.step})" if step.step else ""
    why = "".join(f": {text}" for text in (step.reason, step.detail) if text)
    return f"{step.leg:>4}  {step.instance}, {by}: {step.outcome}{to}{route}{found}{why}"


def verdict(found: PingAnswer) -> str:
    """Return one line that says whether a ping came back, or where it stopped."""
    if found.is_complete:
        return f"{found.service!r} and back to {found.from_service!r} in {found.seconds:.3f} s"
    last = found.steps[-1]
    if last.reason:
        return f"it stops at {last.instance}: {status_text(last.reason)}"
    if last.detail:
        return f"it stops at {last.instance}: {last.detail}"
    return f"nothing was heard of it within {found.seconds:.1f} s, after {last.instance}"
