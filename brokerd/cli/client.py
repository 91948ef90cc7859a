"""`brokerd client`: programs on other machines, known by their certificates (SEC-4)."""

from pathlib import Path
from typing import Final

import click

from brokerd.cli.output import print_json, print_line
from brokerd.cli.principals import (
    add_command,
    described,
    full_name,
    list_command,
    of_instance,
    revoke_command,
    show_command,
)
from brokerd.cli.session import ask
from brokerd.cli.view_commands import noun
from brokerd.client.credentials import InstalledPrincipal
from brokerd.client.session import Session
from brokerd.clock import SystemClock
from brokerd.errors import UsageError
from brokerd.model import MSDB
from brokerd.security.certificates import DAYS, make_certificate
from brokerd.security.credentials import Kind, principal_name
from brokerd.security.pem import PRIVATE_KEY, to_pem
from brokerd.storage.files.private_files import make_private_directory, write_private

SERVER: Final = "server.pem"
"""Name of the file with the certificates of the instance that the program connects to."""
_LONGEST: Final = 3650


@click.command(name="new")
@click.argument("name")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Directory for the files; it is made with mode 0700 if it is not there.",
)
@click.option(
    "--days",
    type=click.IntRange(1, _LONGEST),
    default=DAYS,
    show_default=True,
    help="Days for which the certificate is valid.",
)
@of_instance
def _new(
    *, name: str, out: Path, days: int, address: str | None, config: Path | None, as_json: bool
) -> None:
    """Make a key and a certificate for a program, and install the certificate.

    Writes NAME.key, NAME.pem and server.pem, for its user only; the program connects with them. The
    key is made here and never sent: copy the files to the program's machine, then remove them
    here. A program has no rights before they are granted.
    """
    short = name.removeprefix(f"{Kind.CLIENT}:")
    principal_name(Kind.CLIENT, short)
    certificate, private = make_certificate(short, now=SystemClock().utc(), days=days)
    files = {
        f"{short}.key": to_pem(PRIVATE_KEY, private).encode(),
        f"{short}.pem": certificate.pem.encode(),
    }
    taken = [one for one in (*files, SERVER) if (out / one).exists()]
    if taken:
        raise UsageError(
            f"{out / taken[0]} is there already", hint="give another directory, or move it away"
        )

    async def install(session: Session) -> tuple[InstalledPrincipal, bytes]:
        known = await session.admin.own_certificates()
        server = "".join(one.pem for one in known if one.purpose == "transport")
        done = await session.admin.install_principal(
            full_name(Kind.CLIENT, short), certificates=[certificate.pem.encode()]
        )
        return done, server.encode()

    made: list[Path] = []
    try:
        make_private_directory(out)
        for file, content in files.items():
            made.append(_write(out / file, content))
        done, server = ask(install, address=address, config=config, broker=MSDB)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    made.append(_write(out / SERVER, server))
    if as_json:
        print_json({"name": done.name, "files": [str(one) for one in made]})
        return
    print_line(f"{done.name} {'added' if done.is_new else 'has a further certificate'}")
    for row in done.installed:
        print_line(f"  {described(row)}")
    for path in made:
        print_line(f"  {path}")


def _write(path: Path, content: bytes) -> Path:
    try:
        write_private(path, content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


command = noun(
    "client",
    "Programs that connect from other machines, known by their certificates.",
    list_command(Kind.CLIENT, "List the client programs and their certificates."),
    show_command(Kind.CLIENT, "Show a client program and its certificates."),
    add_command(
        Kind.CLIENT,
        "Add a client program by a certificate that it has made itself, or install a further one.",
    ),
    _new,
    revoke_command(
        Kind.CLIENT,
        "Remove a client program with its certificates and grants. Its connections end at once.",
    ),
)
