"""`brokerd certificate`: what proves this instance to others, and its replacement (SEC-9)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

from brokerd.cli.check_copy import check_copy
from brokerd.cli.options import SECONDS
from brokerd.cli.output import print_json, print_line, warn
from brokerd.cli.principals import described, of_instance
from brokerd.cli.session import ask
from brokerd.cli.view_commands import Choice, Shown, fingerprint, listing, noun, plain, showing
from brokerd.client.credentials import BOTH, CertificateRow, OwnCertificate, Purpose
from brokerd.client.session import Session
from brokerd.errors import ObjectNotFound, UsageError
from brokerd.model import MSDB


def _of_purpose(run: Callable[..., None]) -> Callable[..., None]:
    """Add the option that chooses one of the two purposes."""
    return click.option(
        "--only",
        type=click.Choice(["transport", "dialog"]),
        help="Only the certificate for this purpose.  [default: both]",
    )(run)


def _chosen(only: Literal["transport", "dialog"] | None) -> tuple[Purpose, ...]:
    return BOTH if only is None else (only,)


@click.command(name="export")
@click.option(
    "--next",
    "is_next",
    is_flag=True,
    help="Only certificates that are not used yet, as `renew` has made them.",
)
@_of_purpose
@of_instance
def _export(
    *,
    is_next: bool,
    only: Literal["transport", "dialog"] | None,
    address: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Print the certificates of this instance, for others to install.

    On another machine: brokerd peer add NAME --certificate FILE. Certificates are no secrets, but
    bring them on a way on which nobody can exchange them, or compare the ids: brokerd certificate
    check-copy FILE on both machines.
    """

    async def fetch(session: Session) -> list[OwnCertificate]:
        return await session.admin.own_certificates()

    known = ask(fetch, address=address, config=config, broker=MSDB)
    found = [
        one for one in known if one.purpose in _chosen(only) and not (is_next and one.is_in_use)
    ]
    if not found:
        raise ObjectNotFound(
            "there is no next certificate" if is_next else "this instance has no certificate",
            hint="make one: brokerd certificate renew",
        )
    if as_json:
        print_json({"rows": found, "next": None})
        return
    for one in found:
        click.echo(one.pem, nl=False)


@click.command(name="renew")
@_of_purpose
@of_instance
def _renew(
    *,
    only: Literal["transport", "dialog"] | None,
    address: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Make the next certificates of this instance, each with a new key, and send them to the peers.

    They are not used before `brokerd certificate switch`, so that every peer and client can install
    them first. Peers install them by themselves as soon as they are connected; clients take the
    file that `brokerd certificate export --next` prints. Where there is neither, they are used at
    once.
    """

    async def make(session: Session) -> list[OwnCertificate]:
        made = {one.certificate_id for one in await session.admin.make_certificates(_chosen(only))}
        known = await session.admin.own_certificates(wait=_FOR_PEERS)
        return [one for one in known if one.certificate_id in made]

    made = ask(make, address=address, config=config, broker=MSDB)
    if as_json:
        print_json({"rows": made, "next": None})
        return
    for one in made:
        print_line(f"{described(one)}: {'in use' if one.is_in_use else 'made, not used yet'}")
    if all(one.is_in_use for one in made):
        return
    lacking = {name: why for one in made for name, why in one.lacking.items()}
    for name, why in lacking.items():
        warn(f"{name} has not installed them yet: {why}")
    if not lacking:
        print_line("all peers have installed them")
    print_line(
        "clients need what `brokerd certificate export --next` prints; then: "
        "brokerd certificate switch"
    )


@click.command(name="switch")
@click.option(
    "--wait",
    type=SECONDS,
    default="10s",
    show_default=True,
    help="Longest wait for peers to install them.",
)
@click.option("--anyway", is_flag=True, help="Switch although peers have not installed them.")
@_of_purpose
@of_instance
def _switch(
    *,
    wait: float,
    anyway: bool,
    only: Literal["transport", "dialog"] | None,
    address: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Use the next certificates of this instance from now on.

    Peers that have not installed them are named, and nothing is switched; with --anyway they cannot
    connect any more, nor begin secured dialogs, before they are given the certificates by hand.
    Open connections stay.
    """

    async def switch(session: Session) -> list[OwnCertificate]:
        return await session.admin.switch_certificates(_chosen(only), wait=wait, anyway=anyway)

    used = ask(switch, address=address, config=config, broker=MSDB)
    if as_json:
        print_json({"rows": used, "next": None})
        return
    for one in used:
        print_line(f"{described(one)}: in use")


@click.command(name="drop")
@click.argument("certificate_id", metavar="ID")
@of_instance
def _drop(*, certificate_id: str, address: str | None, config: Path | None, as_json: bool) -> None:
    """Remove a certificate, for example the old one of a peer after it has switched.

    ID may be abbreviated. One that this instance uses now is not removed; without an old one for
    dialogs, what was encrypted for it and is repeated cannot be read any more.
    """
    beginning = certificate_id.lower()
    if len(beginning) < _SHORTEST or not set(beginning) <= set("0123456789abcdef"):
        raise UsageError(
            f"{certificate_id!r} is no id of a certificate",
            hint=f"give at least its first {_SHORTEST} digits: brokerd certificate ls",
        )

    async def drop(session: Session) -> CertificateRow:
        rows = await session.view("certificates")
        ids = [str(one["certificate_id"]) for one in rows]
        found = [one for one in ids if one.startswith(beginning)]
        if len(found) > 1:
            raise UsageError(f"{certificate_id} begins {len(found)} ids: give more digits")
        if not found:
            raise ObjectNotFound(
                f"no certificate {certificate_id} is installed here",
                hint="brokerd certificate ls lists what there is",
            )
        return await session.admin.drop_certificate(bytes.fromhex(found[0]))

    gone = ask(drop, address=address, config=config, broker=MSDB)
    if as_json:
        print_json(gone)
    else:
        print_line(f"{described(gone)}: removed")


@click.command(name="replace-key")
@click.option("--yes", is_flag=True, help="Do it, though nothing brings the lost key back.")
@of_instance
def _replace_key(*, yes: bool, address: str | None, config: Path | None, as_json: bool) -> None:
    """Give the lost master key up, and make another with new certificates.

    For an instance whose file master.key is gone and in no backup. What the lost key encrypted
    stays unreadable: peers and clients have to install the new certificates, and secured dialogs
    wait until they are ended.
    """
    if not yes:
        raise UsageError(
            "the former certificates and the keys of open secured dialogs are then lost for good",
            hint="put master.key back from a backup; if there is none, add --yes",
        )

    async def replace(session: Session) -> list[OwnCertificate]:
        return await session.admin.replace_master_key()

    made = ask(replace, address=address, config=config, broker=MSDB)
    if as_json:
        print_json({"rows": made, "next": None})
        return
    for one in made:
        print_line(f"{described(one)}: in use")
    print_line(
        "install at all peers and clients what `brokerd certificate export` prints; end the "
        "dialogs that wait with no_master_key: brokerd transmission ls"
    )


@click.command(name="rotate-key")
@of_instance
def _rotate_key(*, address: str | None, config: Path | None, as_json: bool) -> None:
    """Make another master key, and encrypt by it what the present one encrypts.

    Private keys follow at once, the keys of open dialogs at the next start of the daemon. The
    former key stays in master.key, so that backups of before can be read; back the file up anew.
    Whoever has read the former key and a store also has the private keys: make new certificates,
    too (brokerd certificate renew).
    """

    async def rotate(session: Session) -> list[str]:
        return await session.admin.rotate_master_key()

    left = ask(rotate, address=address, config=config, broker=MSDB)
    if as_json:
        print_json({"brokers": left})
        return
    print_line("master.key has another key: back it up anew, apart from the stores")
    if left:
        print_line(f"the keys of open dialogs follow at the next start: {', '.join(left)}")


_SHORTEST = 8
_FOR_PEERS = 2.0
"""Seconds for which peers that are connected may take to install a certificate."""


def _owner(value: object, _now: Any) -> str:  # noqa: ANN401  # unused
    return "this instance" if value is None else str(value)


command = noun(
    "certificate",
    "Certificates of this instance, its peers and clients.",
    listing(
        "certificates",
        "List all certificates: owner, purpose, id and remaining days.",
        Shown("principal_name", "owner", _owner),
        Shown("purpose", "purpose"),
        Shown("certificate_id", "id", fingerprint),
        Shown("subject", "subject"),
        Shown("days_left", "days left"),
        Shown("is_in_use", "in use", plain),
        Shown("why_not_valid", "not valid because"),
        choices=(Choice("owner", "principal_name", "Only certificates of peer:NAME.", many=True),),
    ),
    showing("certificates", "Show all columns of a certificate.", "ID", "certificate_id"),
    _export,
    check_copy,
    _renew,
    _switch,
    _drop,
    _rotate_key,
    _replace_key,
)
