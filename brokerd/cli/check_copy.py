"""`brokerd certificate check-copy`: whether a copied file has the certificates it should (SEC-96).

Reads:  the file, and the certificates that are installed here.      Calls: the daemon.
Never:  installs anything, or sends the file anywhere.
"""

from pathlib import Path
from typing import Final

import click

from brokerd.cli.output import print_json, print_line
from brokerd.cli.principals import of_instance, read_file
from brokerd.cli.session import ask
from brokerd.cli.view_commands import Row
from brokerd.client.credentials import CertificateRow
from brokerd.client.session import Session
from brokerd.clock import Instant, SystemClock, show_instant
from brokerd.errors import UsageError
from brokerd.model import MSDB
from brokerd.process import exit_statuses
from brokerd.security.certificate_files import read_certificates
from brokerd.security.certificates import show_id, why_not_valid

_SHORTEST: Final = 32
"""Fewest digits of an id that are compared: 128 bits, as many as a pairing code has."""
_THIS: Final = "this instance"


class Copied(CertificateRow, frozen=True):
    """A certificate of the file."""

    why_not_valid: str = ""
    """Why it cannot be used now; "" = it can."""
    installed_for: str | None = None
    """The owner for whom it is installed here; None = it is not installed."""
    is_in_use: bool = False
    """Whether it is a certificate of this instance that is in use."""
    is_named: bool | None = None
    """Whether one of the given ids is its own; None = no id was given."""


@click.command(name="check-copy")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--id",
    "ids",
    multiple=True,
    metavar="ID",
    help=f"An id shown on the other machine, at least its first {_SHORTEST} digits; repeatable.",
)
@of_instance
def check_copy(
    *, file: Path, ids: tuple[str, ...], address: str | None, config: Path | None, as_json: bool
) -> int:
    """Show the whole ids of the certificates in a file, and whether they are installed here.

    Run it with the file on the machine that has exported it, and with the copy on the other one:
    the copy is right if all ids are the same. Read them out by telephone, or compare them here with
    --id, once for each certificate. The exit status is 2 if an id is missing or another one, or if
    a certificate is not valid now.
    """
    wanted = [_digits(one) for one in ids]
    content = read_file(file)

    async def fetch(session: Session) -> list[Row]:
        return await session.view("certificates")

    installed = ask(fetch, address=address, config=config, broker=MSDB)
    found = copied(content, installed, wanted, SystemClock().utc())
    shown = [one.certificate_id for one in found]
    strange = [one for one in wanted if not any(full.startswith(one) for full in shown)]
    if as_json:
        print_json({"rows": found, "next": None, "ids_not_in_file": strange})
    else:
        for one in found:
            _print(one)
        for beginning in strange:
            print_line(f"no certificate in the file has the id {beginning}", colour="red")
    is_right = not strange and all(
        not one.why_not_valid and one.is_named is not False for one in found
    )
    return exit_statuses.OK if is_right else exit_statuses.LOOK


def copied(content: bytes, installed: list[Row], ids: list[str], now: Instant) -> list[Copied]:
    """Return the certificates of a file, each with its owner here and the verdict of the ids."""
    known = {one["certificate_id"]: one for one in installed}
    found: list[Copied] = []
    for purpose, certificate in read_certificates(content):
        certificate_id = show_id(certificate.id)
        here = known.get(certificate_id)
        found.append(
            Copied(
                certificate_id=certificate_id,
                purpose=purpose.value,
                subject=certificate.subject,
                start_date=certificate.not_before,
                expiry_date=certificate.not_after,
                why_not_valid=why_not_valid(certificate, now),
                installed_for=None if here is None else here["principal_name"] or _THIS,
                is_in_use=here is not None and bool(here["is_in_use"]),
                is_named=any(map(certificate_id.startswith, ids)) if ids else None,
            )
        )
    return found


def _digits(text: str) -> str:
    """Return an id in the form in which ids are shown; spaces and colons do not matter."""
    digits = "".join(text.split()).replace(":", "").lower()
    if len(digits) < _SHORTEST or not set(digits) <= set("0123456789abcdef"):
        raise UsageError(
            f"{text!r} is no id of a certificate",
            hint=f"give at least its first {_SHORTEST} digits: brokerd certificate check-copy FILE "
            "on the other machine shows them",
        )
    return digits


def _print(one: Copied) -> None:
    print_line(f"{one.purpose} certificate of {one.subject or '-'!r}")
    print_line(f"  id         {one.certificate_id}")
    print_line(f"  valid      {show_instant(one.start_date)} to {show_instant(one.expiry_date)}")
    if one.why_not_valid:
        print_line(f"  not valid  {one.why_not_valid}", colour="red")
    print_line(f"  installed  {_where(one)}")
    if one.is_named is not None:
        verdict = "the same" if one.is_named else "not among the given ids: this is another one"
        print_line(f"  compared   {verdict}", colour="green" if one.is_named else "red")


def _where(one: Copied) -> str:
    if one.installed_for is None:
        return "not here"
    if one.installed_for == _THIS:
        return f"of {_THIS}, {'in use' if one.is_in_use else 'not in use'}"
    return f"here, for {one.installed_for}"
