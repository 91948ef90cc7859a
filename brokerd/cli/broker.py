"""`brokerd broker`: the brokers of an instance, their delivery and identity (VIEW-10, MAN)."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from shlex import quote
from typing import Any

import click

from brokerd.cli import object_keys
from brokerd.cli.hand_over import hand_over
from brokerd.cli.object_commands import change, settings_of
from brokerd.cli.options import ADDRESS_VARIABLE, instance_options, json_option
from brokerd.cli.output import print_json, print_line
from brokerd.cli.session import ask
from brokerd.cli.view_commands import Shown, duration, listing, noun, showing, until
from brokerd.client.admin_answers import BrokerState, CleanedUp
from brokerd.client.session import Session
from brokerd.clock import SystemClock
from brokerd.config.loading import load
from brokerd.errors import DaemonUnreachable, InUse, UsageError
from brokerd.ids import RandomIds
from brokerd.model import MSDB
from brokerd.units import counted

_Operation = Callable[..., Awaitable[BrokerState]]


def _operation(name: str, verb: str, text: str, *, done: str) -> click.Command:
    """Return a command for an operation on a whole broker, whose name is the argument."""

    def run(
        *,
        broker: str,
        force: bool,
        wait: str,
        address: str | None,
        config: Path | None,
        as_json: bool,
    ) -> None:
        async def operate(session: Session) -> BrokerState:
            operation: _Operation = getattr(session.admin, verb)
            return await operation(broker, force=force, wait=duration(wait))

        state = ask(operate, address=address, config=config, broker=MSDB)
        if as_json:
            print_json(state)
            return
        print_line(f"broker {state.name} {state.broker_id}: {done}{_by_state(state.endpoints)}")

    run = click.option(
        "--wait", metavar="DURATION", default="60s", show_default=True,
        help="Longest wait for open transactions.",
    )(run)  # fmt: skip
    run = click.option("--force", is_flag=True, help="Roll open transactions back.")(run)
    return click.command(name=name, help=text)(_for_broker(run))


def _for_broker(run: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("broker")(instance_options(json_option(run)))


@click.command(name="clean-up")
@click.option("--state", "states", multiple=True, help="Only endpoints in this state.")
@click.option("--older-than", metavar="DURATION", help="Only if longer in its state: 2h, 7d.")
@click.option("--service", help="Only endpoints of this local service.")
@click.option("--far-service", help="Only endpoints with this far service.")
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=1000,
    show_default=True,
    help="Number of endpoints to check in one step.",
)
@click.option("--dry-run", is_flag=True, help="Count the endpoints without removing them.")
@click.option("--reason", required=True, help="The reason, for the log.")
@_for_broker
def _clean_up(
    *,
    broker: str,
    states: tuple[str, ...],
    older_than: str | None,
    service: str | None,
    far_service: str | None,
    batch: int,
    dry_run: bool,
    reason: str,
    address: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Remove dialog endpoints of BROKER, without notice to their peers.

    Dangerous: their unsent messages are lost, and peers repeat unacknowledged messages.
    """

    async def clean(session: Session) -> CleanedUp:
        return await session.admin.clean_up_endpoints(
            reason,
            broker,
            states=states,
            older_than=None if older_than is None else duration(older_than),
            service=service,
            far_service=far_service,
            batch=batch,
            dry_run=dry_run,
        )

    result = ask(clean, address=address, config=config, broker=MSDB)
    if as_json:
        print_json(result)
        return
    matched = counted(_sum(result.matched), "endpoint fits", "endpoints fit")
    print_line(matched + _by_state(result.matched))
    if not dry_run:
        print_line(f"{_sum(result.removed)} removed{_by_state(result.removed)}")
    if result.locked:
        print_line(f"{_sum(result.locked)} left, because they are locked{_by_state(result.locked)}")


def _sum(counts: dict[str, int]) -> int:
    return sum(counts.values())


def _by_state(counts: dict[str, int]) -> str:
    shown = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return f" ({shown})" if shown else ""


@click.command(name="forget")
@_for_broker
def _forget(*, broker: str, address: str | None, config: Path | None, as_json: bool) -> None:
    """Forget BROKER, whose file is permanently gone, so that its name can be used again.

    Peers that have dialogs with it are not notified. Refused while the file exists. If no daemon
    runs, and --address names none, the command itself changes the files that the settings name.
    """

    async def forget(session: Session) -> str:
        return await session.admin.forget_broker(broker)

    try:
        broker_id = ask(forget, address=address, config=config, broker=MSDB)
    except DaemonUnreachable:
        if address or (config is None and os.environ.get(ADDRESS_VARIABLE)):
            raise
        broker_id = _forget_here(broker, config)
    if as_json:
        print_json({"name": broker, "broker_id": broker_id})
        return
    print_line(f"broker {broker} {broker_id}: forgotten; its name is free")


def _forget_here(broker: str, config: Path | None) -> str:
    """Forget a broker without a daemon, which may refuse to start until this is done (MAN-18)."""
    from brokerd.maintenance.known_brokers import forget_without_daemon  # noqa: PLC0415  # rarely needed

    settings = load(config).settings
    if settings.is_on_server:
        raise InUse(
            f"the stores are in {settings.shown_server}: a broker of theirs is forgotten by the "
            "daemon, which starts without it",
            hint=f"start the daemon, then: brokerd broker forget {quote(broker)}",
        )
    path_of = settings.store_path
    return forget_without_daemon(broker, path_of, ids=RandomIds(), clock=SystemClock())


@click.command(name="alter")
@click.argument("broker")
@click.argument("settings", nargs=-1, metavar="KEY=VALUE...")
@instance_options
@json_option
def _alter(*, broker: str, settings: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401
    """Alter options of BROKER; KEY= without a value restores the default."""
    said = settings_of("broker", settings)
    if not said:
        raise UsageError("nothing is said to alter", hint="say KEY=VALUE; --help has the keys")
    change(lambda session: session.alter("broker", broker, **said), broker=broker, **options)


_alter.help = f"{_alter.help}\n\n{object_keys.help_of('broker')}"


command = noun(
    "broker",
    "Brokers of the instance: delivery, identity, clean-up, forgetting and handing over.",
    listing(
        "brokers",
        "List the brokers of the instance.",
        Shown("name", "broker"),
        Shown("broker_id", "id"),
        Shown("role", "role"),
        Shown("epoch", "epoch"),
        Shown("is_broker_enabled", "delivery"),
        Shown("disabled_reason", "off because"),
        Shown("start_failure", "start failure"),
        Shown("next_start_attempt", "next attempt in", until),
    ),
    showing("brokers", "Show all columns of a broker.", "NAME", "name"),
    _alter,
    _operation("enable", "enable", "Switch delivery of BROKER on.", done="delivery is on"),
    _operation(
        "disable",
        "disable",
        "Switch delivery of BROKER off: sends wait, receives and ends continue.",
        done="delivery is off",
    ),
    _operation(
        "error-conversations",
        "error_conversations",
        "End every dialog of BROKER with an error, after a restore to an earlier point.",
        done="all dialogs are in error",
    ),
    _operation(
        "new-id",
        "new_broker",
        "Remove every dialog of BROKER, a copy, and give it a new identifier.",
        done="has this identifier now; all dialogs are removed",
    ),
    _clean_up,
    _forget,
    hand_over,
)
