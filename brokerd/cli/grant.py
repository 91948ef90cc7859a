"""`brokerd grant`, `revoke` and `who-can`: who may do what (SEC-50, CLP-140 to CLP-142)."""

from typing import Any, Final

import click

from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, print_line, table, warn
from brokerd.cli.session import ask
from brokerd.client.grants import Granted, GrantRow, WhoCanAnswer
from brokerd.client.session import Session
from brokerd.clock import show_instant
from brokerd.errors import UsageError

_FORM: Final = """
\b
connect on endpoint        log in as a peer
send on SERVICE            begin dialogs with the service
receive on BROKER/QUEUE    receive, and act for the services of the queue
control on BROKER          administer the broker; msdb is the instance
execute on BROKER          beside control: name programs that the daemon runs

WHO is a user of the machine, client:NAME, peer:NAME or public. In names of objects * and ? are
wildcards; quote them.
"""
_WORDS: Final = "PERMISSION on OBJECT to WHO"


@click.command(name="grant")
@click.argument("words", nargs=-1, metavar=_WORDS)
@daemon_options
@json_option
def grant(*, words: tuple[str, ...], as_json: bool, **place: Any) -> None:  # noqa: ANN401
    """Grant a permission, effective at once.

    It is kept in the instance until it is revoked. With the first grant to a user, a client or
    public, all clients but those of the daemon's own user and root have only what is granted.
    """
    text = _text(words)

    async def run(session: Session) -> Granted:
        return await session.admin.grant(text)

    done = ask(run, of_instance=True, **place)
    if as_json:
        print_json(done)
        return
    if done.is_new:
        print_line(f"granted: {done}")
    else:
        print_line(f"{done} was granted already ({done.origin})")
    _print_notes(done.notes)


@click.command(name="revoke")
@click.argument("words", nargs=-1, metavar=_WORDS)
@daemon_options
@json_option
def revoke(*, words: tuple[str, ...], as_json: bool, **place: Any) -> None:  # noqa: ANN401
    """Take a permission back, from open connections too.

    Open transactions of clients that lose the permission are rolled back. What the settings file
    grants is changed there.
    """
    text = _text(words)

    async def run(session: Session) -> Granted:
        return await session.admin.revoke(text)

    done = ask(run, of_instance=True, **place)
    if as_json:
        print_json(done)
        return
    print_line(f"revoked: {done}")
    _print_notes(done.notes)


@click.command(name="who-can")
@click.argument("words", nargs=-1, metavar="[PERMISSION on OBJECT]")
@click.option("--principal", metavar="WHO", help="Show what this principal may do.")
@daemon_options
@json_option
def who_can(
    *,
    words: tuple[str, ...],
    principal: str | None,
    as_json: bool,
    **place: Any,  # noqa: ANN401
) -> None:
    """Show who has a permission on an object, or what a principal may do; else all grants."""
    permission, on = _question(words)
    if permission is not None and principal is not None:
        raise UsageError(
            "an object and a principal are two questions",
            hint="ask: brokerd who-can send on SERVICE, or: brokerd who-can --principal WHO",
        )

    async def run(session: Session) -> WhoCanAnswer:
        return await session.admin.who_can(permission, on, principal=principal)

    answer = ask(run, of_instance=True, **place)
    if as_json:
        print_json({"rows": answer.grants, "next": None, "notes": answer.notes})
        return
    if answer.grants:
        table("grants", _COLUMNS, [_cells(one) for one in answer.grants])
    else:
        print_line("no grant")
    _print_notes(answer.notes)


for _command in (grant, revoke):
    _command.help = f"{_command.help}\n{_FORM}"

_COLUMNS: Final = ("permission", "on", "to", "origin", "granted", "by")


def _cells(one: GrantRow) -> tuple[str, ...]:
    at = "-" if one.granted_at is None else show_instant(one.granted_at)
    by = one.granted_by or "-"
    return one.permission, one.securable, one.principal, one.origin, at, by


def _print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        warn(f"note: {note}")


def _text(words: tuple[str, ...]) -> str:
    """Return a grant given as one argument, or as one argument for each word."""
    if not words:
        raise UsageError(
            "it is not said what to grant", hint='such as: "send on urn:orders to peer:west"'
        )
    return " ".join(words)


def _question(words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return permission and object of a question such as `send on SERVICE`; None = all."""
    said = " ".join(words).split()
    match said:
        case []:
            return None, None
        case [permission, on, name] if on.lower() == "on":
            return permission, name
        case _:
            raise UsageError(
                f"{' '.join(said)!r} is no question",
                hint="ask: brokerd who-can send on SERVICE; with --principal WHO for a principal",
            )
