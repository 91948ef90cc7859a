"""Commands that peers and clients share: `add`, `show`, `revoke`, and their lists (SEC-4).

Calls:  the daemon.
Never:  reads or sends a private key.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from brokerd.cli.options import instance_options, json_option
from brokerd.cli.output import print_json, print_line, table
from brokerd.cli.session import ask
from brokerd.cli.view_commands import Row, present
from brokerd.client.credentials import CertificateRow, InstalledPrincipal, RevokedPrincipal
from brokerd.client.session import Session
from brokerd.clock import SystemClock, show_instant
from brokerd.errors import ObjectNotFound, UsageError
from brokerd.model import MSDB
from brokerd.security.certificate_files import MOST_BYTES, read_certificates
from brokerd.security.credentials import Kind
from brokerd.units import counted


def of_instance(run: Any) -> Any:  # noqa: ANN401  # as click decorates
    """Add the options of a command on the whole instance: `address`, `config` and `as_json`."""
    return instance_options(json_option(run))


def full_name(kind: Kind, name: str) -> str:
    """Return the name of a principal with its kind, which may be there already."""
    return name if name.startswith(f"{kind}:") else f"{kind}:{name}"


def read_file(path: Path) -> bytes:
    """Return the content of a file of certificates; `-` is standard input.

    It is parsed here first, so that a private key given by mistake is not sent anywhere.

    Raises:
        UsageError: it cannot be read, or is too large.
        InvalidArgument: there is no certificate in it, or a private key.
    """
    try:
        with click.open_file(str(path), "rb") as file:
            content: bytes = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path} is larger than {MOST_BYTES} bytes: it is no certificate")
    read_certificates(content)
    return content


def list_command(kind: Kind, text: str) -> click.Command:
    """Return the command `ls` of a kind of principal."""

    @click.command(name="ls", help=text)
    @of_instance
    def run(*, address: str | None, config: Path | None, as_json: bool) -> None:
        async def fetch(session: Session) -> tuple[list[Row], list[Row]]:
            found = await session.view("principals", where={"type": kind.value})
            return found, await session.view("certificates")

        principals, certificates = ask(fetch, address=address, config=config, broker=MSDB)
        if as_json:
            print_json({"rows": principals, "next": None})
            return
        now = SystemClock().utc()
        table(
            f"{kind}s",
            ("name", "certificates", "first expires in", "addresses", "instance", "added by"),
            [
                (
                    one["name"].partition(":")[2],
                    one["certificates"],
                    _first_end(one["name"], certificates, now),
                    ", ".join(one["addresses"]) or "-",
                    one["instance_id"] or "-",
                    one["created_by"] or "-",
                )
                for one in principals
            ],
        )

    return run


def _first_end(name: str, certificates: Sequence[Row], now: int) -> str:
    """Return the days until a principal cannot be recognised, or dialogs with it not begin."""
    last: dict[str, int] = {}
    for one in certificates:
        if one["principal_name"] == name:
            last[one["purpose"]] = max(one["expiry_date"], last.get(one["purpose"], 0))
    if not last:
        return "-"
    days = (min(last.values()) - now) // (24 * 3600 * 1_000_000)
    return "expired" if days < 0 else counted(days, "day")


def show_command(kind: Kind, text: str) -> click.Command:
    """Return the command `show` of a kind of principal."""

    @click.command(name="show", help=text)
    @click.argument("name")
    @of_instance
    def run(*, name: str, address: str | None, config: Path | None, as_json: bool) -> None:
        full = full_name(kind, name)

        async def fetch(session: Session) -> tuple[list[Row], list[Row]]:
            return (
                await session.view("principals", where={"name": full}),
                await session.view("certificates", where={"principal_name": full}),
            )

        found, certificates = ask(fetch, address=address, config=config, broker=MSDB)
        if not found:
            raise ObjectNotFound(
                f"there is no {kind} {name!r}", hint=f"brokerd {kind} ls lists what there is"
            )
        if as_json:
            print_json({**found[0], "certificates": certificates})
            return
        present("principals", found[0])
        for one in certificates:
            present("certificates", one)

    return run


def add_command(kind: Kind, text: str) -> click.Command:
    """Return the command `add` of a kind of principal."""

    def run(
        *,
        name: str,
        certificates: tuple[Path, ...],
        at: tuple[str, ...] = (),
        address: str | None,
        config: Path | None,
        as_json: bool,
    ) -> None:
        contents = [read_file(path) for path in certificates]

        async def install(session: Session) -> InstalledPrincipal:
            return await session.admin.install_principal(
                full_name(kind, name), certificates=contents, addresses=list(at) if at else None
            )

        report(ask(install, address=address, config=config, broker=MSDB), as_json=as_json)

    if kind is Kind.PEER:
        run = click.option(
            "--at",
            multiple=True,
            metavar="TCP://HOST:PORT",
            help="An address that only this peer may serve; repeatable.",
        )(run)
    run = click.option(
        "--certificate",
        "certificates",
        multiple=True,
        type=click.Path(path_type=Path, allow_dash=True),
        metavar="FILE",
        help="A file with certificates of it, as `certificate export` prints them; repeatable.",
    )(run)
    return click.command(name="add", help=text)(click.argument("name")(of_instance(run)))


def report(done: InstalledPrincipal, *, as_json: bool) -> None:
    """Print what was installed for a principal."""
    if as_json:
        print_json(done)
        return
    what = counted(len(done.installed), "certificate") + " installed"
    print_line(f"{done.name} {'added' if done.is_new else 'known'}, {what}")
    for one in done.installed:
        print_line(f"  {described(one)}")
    for note in done.notes:
        print_line(f"  note: {note}")
    if done.addresses:
        print_line(f"  only it may serve {', '.join(done.addresses)}")
    if done.is_new:
        kind = done.name.partition(":")[0]
        right = "connect on endpoint" if kind == Kind.PEER else "send on SERVICE"
        print_line(f'  it has no rights yet: brokerd grant "{right} to {done.name}"')


def described(one: CertificateRow) -> str:
    """Return one line about a certificate."""
    until = show_instant(one.expiry_date)[:10]
    return f"{one.purpose} {one.certificate_id[:16]} of {one.subject or '-'!r}, until {until}"


def revoke_command(kind: Kind, text: str) -> click.Command:
    """Return the command `revoke` of a kind of principal."""

    @click.command(name="revoke", help=text)
    @click.argument("name")
    @of_instance
    def run(*, name: str, address: str | None, config: Path | None, as_json: bool) -> None:
        async def revoke(session: Session) -> RevokedPrincipal:
            return await session.admin.revoke_principal(full_name(kind, name))

        gone = ask(revoke, address=address, config=config, broker=MSDB)
        if as_json:
            print_json(gone)
            return
        what = counted(len(gone.certificates), "certificate")
        print_line(f"{gone.name} removed, with {what} and its grants; its connections are closed")

    return run
