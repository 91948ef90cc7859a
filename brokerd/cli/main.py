"""The command `brokerd`: finds the subcommand, runs it, and prints any error on one screen.

Calls:  one module for each command, imported when it is used, so that `--help` is quick.
Never:  shows a traceback for an error that brokerd raises on purpose, or decides an exit status:
        `exit_statuses` does, whose table is at the end of every help text.
To add a command: a row in `COMMANDS`; the command is offered once its module exists.
"""

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import click

from brokerd.cli.examples import EXAMPLES
from brokerd.errors import BrokerError, TooManyOpenFiles
from brokerd.process.exit_statuses import (
    CONFIG,
    HELP,
    INTERNAL_ERROR,
    INTERRUPTED,
    IO_ERROR,
    OK,
    USAGE,
    exit_status,
)
from brokerd.units import printable


class _Entry(NamedTuple):
    """One command: its module, and the line that `--help` shows without importing the module."""

    name: str
    module: str
    help: str
    attribute: str = "command"


COMMANDS: Final = (
    _Entry("demo", "brokerd.cli.demo", "Watch two daemons converse and survive kills."),
    _Entry("init", "brokerd.cli.init", "Write a first configuration."),
    _Entry("serve", "brokerd.cli.serve", "Run the daemon."),
    _Entry("config", "brokerd.cli.config", "Check a configuration, or show effective settings."),
    _Entry("apply", "brokerd.cli.apply", "Make a broker match a file of declared objects."),
    _Entry("import", "brokerd.cli.import_", "Read T-SQL of Service Broker, write its successors."),
    _Entry(
        "message-type",
        "brokerd.cli.object_commands",
        "Message types, one at a time.",
        "message_type",
    ),
    _Entry("contract", "brokerd.cli.object_commands", "Contracts, one at a time.", "contract"),
    _Entry("queue", "brokerd.cli.queue", "Queues, one at a time, and their messages."),
    _Entry("service", "brokerd.cli.object_commands", "Services, one at a time.", "service"),
    _Entry("priority", "brokerd.cli.object_commands", "Priorities, one at a time.", "priority"),
    _Entry("route", "brokerd.cli.route", "Routes, one at a time; explain the choice of a route."),
    _Entry(
        "instance-route",
        "brokerd.cli.object_commands",
        "Routes for messages from other instances.",
        "instance_route",
    ),
    _Entry(
        "binding",
        "brokerd.cli.object_commands",
        "Remote service bindings: which peer's key secures dialogs to a service.",
        "binding",
    ),
    _Entry("event", "brokerd.cli.event", "Event notifications: send events to services."),
    _Entry("doctor", "brokerd.cli.doctor", "Find faults, and the commands that fix them."),
    _Entry("status", "brokerd.cli.status", "Show the state of the instance on one screen."),
    _Entry("page", "brokerd.cli.page", "Print an address for a browser that shows the daemon."),
    _Entry("explain", "brokerd.cli.explain", "Explain a code: of a finding, setting or error."),
    _Entry("top", "brokerd.cli.top", "Watch queues and destinations live, worst first."),
    _Entry("send", "brokerd.cli.send", "Send a message in a dialog of its own."),
    _Entry("call", "brokerd.cli.call", "Send a message, wait for the reply and print it."),
    _Entry("receive", "brokerd.cli.receive", "Receive the next messages of a queue."),
    _Entry("worker", "brokerd.cli.worker", "Run handlers in a process of their own."),
    _Entry("activator", "brokerd.cli.activator", "Start programs where queues need readers."),
    _Entry("dialog", "brokerd.cli.dialog", "Dialogs: their state, why they wait, ending one."),
    _Entry("group", "brokerd.cli.group", "Conversation groups: their locks, parked groups."),
    _Entry("transmission", "brokerd.cli.transmission", "Messages that wait for peers, and why."),
    _Entry("grant", "brokerd.cli.grant", "Grant a permission.", "grant"),
    _Entry("revoke", "brokerd.cli.grant", "Take a permission back.", "revoke"),
    _Entry("who-can", "brokerd.cli.grant", "Show who may do what.", "who_can"),
    _Entry("audit", "brokerd.cli.audit", "Show who logged in, was refused, or changed what."),
    _Entry("endpoint", "brokerd.cli.endpoint", "The address for peers: start, stop or change it."),
    _Entry("clock", "brokerd.cli.clock", "Accept a jump of the machine's clock."),
    _Entry("peer", "brokerd.cli.peer", "Other instances: pair with one, add or revoke one."),
    _Entry("client", "brokerd.cli.client", "Programs that connect from other machines."),
    _Entry("certificate", "brokerd.cli.certificate", "Certificates: show, export, renew."),
    _Entry("destination", "brokerd.cli.destination", "Addresses of peers, their faults, retrying."),
    _Entry("ping", "brokerd.cli.ping", "Follow the path to a service and back; show each step."),
    _Entry("connection", "brokerd.cli.connection", "Connections to other instances."),
    _Entry("forwarder", "brokerd.cli.forwarder", "Messages that pass through to other instances."),
    _Entry("monitor", "brokerd.cli.monitor", "Queue monitors: why readers start or do not."),
    _Entry("task", "brokerd.cli.task", "Readers that activation has started."),
    _Entry("periodic", "brokerd.cli.periodic", "Periodic work of the daemon."),
    _Entry("broker", "brokerd.cli.broker", "Brokers: delivery on and off, identity, clean-up."),
    _Entry("store", "brokerd.cli.store", "Stores: backup and verification."),
    _Entry("log", "brokerd.cli.log", "The event log: latest lines, those of one dialog, new ones."),
    _Entry("bench", "brokerd.cli.bench", "Measure message rates and latencies."),
    _Entry("ship", "brokerd.cli.ship", "Copy the metrics log to the landing of the report."),
    _Entry("report", "brokerd.cli.report", "Make the nightly report from the metrics log."),
    _Entry("completion", "brokerd.cli.completion", "Print the completion script of a shell."),
)
"""All commands; in its module each is a click command, in the attribute that the entry names."""

GROUPS: Final = {
    "Start here": (
        "demo",
        "init",
        "serve",
        "config",
        "apply",
        "status",
        "doctor",
        "top",
        "page",
        "explain",
        "completion",
    ),
    "Send and receive": ("send", "call", "receive", "worker", "activator"),
    "Declared objects": (
        "message-type",
        "contract",
        "queue",
        "service",
        "priority",
        "route",
        "instance-route",
        "binding",
        "event",
        "import",
    ),
    "Dialogs and their messages": ("dialog", "group", "transmission"),
    "Who may connect": ("peer", "client", "certificate"),
    "Between instances": ("endpoint", "destination", "connection", "forwarder", "ping"),
    "Who may do what": ("grant", "revoke", "who-can", "audit"),
    "Inside the daemon": ("log", "broker", "store", "monitor", "task", "periodic", "clock"),
    "Measure and report": ("bench", "ship", "report"),
}
"""The sections of `brokerd --help`; each command is in one."""


class _Commands(click.Group):
    """A group of commands, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in COMMANDS if find_spec(entry.module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for entry in COMMANDS:
            if entry.name == cmd_name and find_spec(entry.module):
                command = getattr(_imported(entry.module), entry.attribute)
                assert isinstance(command, click.Command)
                _complete_help(command, cmd_name)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # it does not know those not imported yet
            known = self.list_commands(ctx)
            name = error.command_name
            raise click.exceptions.NoSuchCommand(name, possibilities=known, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = self.list_commands(ctx)
        help_of = {entry.name: entry.help for entry in COMMANDS if entry.name in known}
        width = max(map(len, help_of))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), help_of[name]) for name in names if name in help_of]
                )


def _imported(module: str) -> ModuleType:
    """Return a module of a command.

    Raises:
        click.ClickException: it needs a module that only Python on a POSIX system has.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if os.name == "posix":
            raise
        raise click.ClickException(
            f"this command needs a POSIX system, such as Linux: {sys.platform} has no "
            f"{error.name}; programs do run here, and connect to a daemon elsewhere"
        ) from error


def _complete_help(command: click.Command, path: str) -> None:
    """Append examples and exit statuses to the help of a command, and of all commands below it.

    Set the summaries of the commands below it, too, because click would truncate them."""
    examples = EXAMPLES.get(path, ())
    command.epilog = HELP
    if examples:
        command.epilog = "\b\nExamples:\n" + "".join(f"  {one}\n" for one in examples) + f"\n{HELP}"
    if isinstance(command, click.Group):
        for below in command.commands.values():
            summary, _, _ = cleandoc(below.help or "").partition("\n\n")
            below.short_help = below.short_help or " ".join(summary.split())
            _complete_help(below, f"{path} {below.name}")


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"brokerd {installed_version()}")
        ctx.exit()


@click.command(
    cls=_Commands,
    epilog=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli(debug: bool) -> None:
    """Dialogs between services that survive crashes: exactly once, in order, both ways."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # A broken invariant must end the process before it can be stored, by an assertion (HK-10).
    if not __debug__:
        what = "brokerd relies on its assertions, which -O takes away"
        return _refused(what, "start Python without -O and without PYTHONOPTIMIZE", CONFIG)
    try:
        result = cli.main(args=words, prog_name="brokerd", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return OK
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it; the rest of the buffer is dropped.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if words[:1] == ["--debug"]:
            raise
        return _explain(error)
    return result if isinstance(result, int) else OK


def _explain(error: Exception) -> int:
    """Print an error on one screen; return its exit status."""
    match error:
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "brokerd"
            message = error.format_message().replace("\n\t", " ")  # click lists choices like this
            return _refused(message, f"{path} --help", USAGE)
        case click.ClickException():
            return _refused(error.format_message(), "", USAGE)
        case BrokerError():
            return _refused(error.message, error.hint, exit_status(error))
        case OSError() if error.errno in (errno.EMFILE, errno.ENFILE):
            return _explain(TooManyOpenFiles(str(error)))
        case OSError():
            name = f"{error.filename}: " if error.filename else ""
            hint = "see whether it is there and may be used, and whether the disk has room"
            return _refused(f"{name}{error.strerror or error}", hint, IO_ERROR)
        case _:
            return _unexpected(error)


def installed_version() -> str:
    """Return the version of brokerd, as installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # loads a lot

    try:
        return version("brokerd")
    except PackageNotFoundError:
        return "(not installed)"


def _refused(message: str, hint: str, status: int) -> int:
    first, *details = message.splitlines() or ["failed"]
    lines = [f"brokerd: {first}", *(f"  {line}" for line in details)]
    if hint:
        lines.append(f"  fix: {hint}")
    click.echo("\n".join(printable(line) for line in lines), err=True)
    return status


def _unexpected(error: Exception) -> int:
    """Print a line about an unexpected error, write its traceback to a file; return the status."""
    what = f"unexpected {type(error).__name__}: {error}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="brokerd-", suffix=".traceback", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
        where = f"the traceback is in {Path(file.name)}; or run it again as: brokerd --debug ..."
    except OSError:
        where = "run it again as: brokerd --debug ..."
    return _refused(what.replace("\n", " "), where, INTERNAL_ERROR)
