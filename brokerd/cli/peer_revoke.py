"""`brokerd peer revoke`: remove a peer, and say which objects lead to it, or drop them (SEC-84).

Calls:  the verbs for principals and objects, on each broker of the instance.
Never:  drops a route or a binding unasked: their dialogs wait, and go on if the peer is paired
        again; without a binding they would end with an error.
Fails:  where a broker cannot be changed, after the peer is removed; it names what is left.
"""

from pathlib import Path
from typing import Any, Final

import click
import msgspec

from brokerd.cli.options import daemon_address, instance_options, json_option
from brokerd.cli.output import print_json, print_line, quoted, warn
from brokerd.cli.principals import full_name
from brokerd.cli.session import ask
from brokerd.client.credentials import RevokedPrincipal
from brokerd.client.session import Session, connect
from brokerd.errors import BrokerError
from brokerd.model import MSDB
from brokerd.security.credentials import Kind
from brokerd.units import counted

_NOUNS: Final = {
    "route": "route",
    "remote_service_binding": "binding",
    "instance_route": "instance-route",
}
"""The noun of the command line for each kind of object that may lead to a peer."""


class Leading(msgspec.Struct, frozen=True):
    """An object that leads to the revoked peer."""

    broker: str
    kind: str
    name: str
    is_dropped: bool = False

    @property
    def text(self) -> str:
        """The object in words, with its broker."""
        return f"{_NOUNS[self.kind]} {self.name} of broker {self.broker}"

    @property
    def drop_command(self) -> str:
        """The command that drops the object."""
        of = "" if self.kind == "instance_route" else f" --broker {quoted(self.broker)}"
        return f"brokerd {_NOUNS[self.kind]} drop {quoted(self.name)}{of}"


class Revoked(RevokedPrincipal, frozen=True):
    """A peer that was removed, and the objects that lead to it, for `--json`."""

    objects: tuple[Leading, ...] = ()


@click.command(name="revoke")
@click.argument("name")
@click.option(
    "--with-routes",
    is_flag=True,
    help="Also drop the routes to its addresses and the bindings for it. Dialogs that wait for it "
    "find no way then; new ones that have to be encrypted end with an error.",
)
@instance_options
@json_option
def command(
    *,
    name: str,
    with_routes: bool,
    address: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Remove a peer with its certificates and grants; say which routes and bindings lead to it.

    Its connections end at once; dialogs with it wait.
    """
    where = daemon_address(address, config)

    async def revoke(session: Session) -> Revoked:
        full = full_name(Kind.PEER, name)
        known = await session.view("principals", where={"name": full})
        found = await _leading_to(session, where, known[0]) if known else ()
        gone = await session.admin.revoke_principal(full)
        if with_routes:
            found = tuple([await _drop(where, one) for one in found])
        return Revoked(gone.name, gone.certificates, found)

    done = ask(revoke, address=address, config=config, broker=MSDB)
    if as_json:
        print_json(done)
        return
    what = counted(len(done.certificates), "certificate")
    print_line(f"{done.name} removed, with {what} and its grants; its connections are closed")
    for one in done.objects:
        print_line(f"  {one.text}: {'dropped' if one.is_dropped else 'leads nowhere now'}")
    left = [one for one in done.objects if not one.is_dropped]
    if left:
        print_line("  if it is not to be paired again, drop them:")
    for one in left:
        print_line(f"    {one.drop_command}")


async def _leading_to(session: Session, where: str, peer: dict[str, Any]) -> tuple[Leading, ...]:
    """Return the routes to the addresses of a peer and the bindings for it, of all brokers."""
    found = [
        Leading(MSDB, "instance_route", str(one["name"]))
        for one in await session.objects("instance_route")
        if _leads(one, peer)
    ]
    for row in await session.view("brokers"):
        name = str(row["name"])
        if name == MSDB or row.get("start_failure"):
            continue
        async with connect(where, broker=name) as own:
            for kind in ("route", "remote_service_binding"):
                found += [
                    Leading(name, kind, str(one["name"]))
                    for one in await own.objects(kind)
                    if _leads(one, peer)
                ]
    return tuple(found)


def _leads(described: dict[str, Any], peer: dict[str, Any]) -> bool:
    """Return whether an object, in the form of a file, leads to a peer."""
    if described.get("principal") == peer["name"]:
        return True
    addresses = {str(one).lower() for one in peer["addresses"]}
    return any(str(described.get(key) or "").lower() in addresses for key in ("address", "mirror"))


async def _drop(where: str, one: Leading) -> Leading:
    try:
        async with connect(where, broker=one.broker) as session:
            await session.drop(one.kind, one.name)
    except BrokerError as error:
        warn(f"{one.text} is left: {error.message}")
        return one
    return msgspec.structs.replace(one, is_dropped=True)
