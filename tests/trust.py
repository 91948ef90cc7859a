"""Trust: introduces daemons to each other, rotates what proves them, revokes and pairs again.

Calls:  the verbs of two running daemons.      Never:  touches their files.
"""

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives import serialization

from brokerd.client.session import Session
from brokerd.clock import Instant
from brokerd.errors import InUse, ObjectNotFound
from brokerd.ids import BootId, InstanceId, secret_bytes
from brokerd.protocol.frames import FrameReader
from brokerd.protocol.neighbour import Arbitrate, Hello, Reject, Verdict, decode, encode
from brokerd.security.certificates import Certificate, make_certificate

PURPOSES = ("transport", "dialog")


async def introduce(
    at: Session, other: Session, name: str, *, address: str | None, shares: Sequence[str] = ()
) -> None:
    """Let one daemon know another as a peer; it may send to the services that are shared.

    `address`: where it is reached; None = by way of others, so it need not connect."""
    pems = [one.pem.encode() for one in await other.admin.own_certificates()]
    await at.admin.install_principal(
        f"peer:{name}", certificates=pems, addresses=None if address is None else [address]
    )
    if address is not None:
        await at.admin.grant(f"connect on endpoint to peer:{name}")
    for service in shares:
        await at.admin.grant(f"send on {service} to peer:{name}")


async def pair_again(
    at: Session, joining: Session, *, address: str, joining_address: str, shares: Sequence[str]
) -> None:
    """Pair two daemons by a code, each under the address at which the other one reaches it."""
    code = await at.admin.invite_peer(shares=shares, address=address)
    await joining.admin.join_peer(code.code, address=joining_address)


async def renew(at: Session) -> None:
    """Make the next certificates; a repeat is harmless."""
    try:
        await at.admin.make_certificates()
    except InUse:
        return  # they were made before, perhaps without an answer


async def carry(at: Session, to: Session, name: str) -> None:
    """Bring the certificates of a daemon to another one by hand, and remove what it dropped."""
    own = {one.certificate_id: one for one in await at.admin.own_certificates()}
    await to.admin.install_principal(
        f"peer:{name}", certificates=[one.pem.encode() for one in own.values()]
    )
    there = await to.view("certificates", where={"principal_name": f"peer:{name}"})
    for row in there:
        if row["certificate_id"] not in own:
            await drop(to, row["certificate_id"])


async def drop_old(at: Session) -> None:
    """Remove the certificates of a daemon's own that it does not use."""
    for row in await at.view("certificates"):
        if row["principal_name"] is None and not row["is_in_use"]:
            await drop(at, row["certificate_id"])


async def drop(at: Session, certificate_id: str) -> None:
    """Remove a certificate; a repeat is harmless."""
    try:
        await at.admin.drop_certificate(bytes.fromhex(certificate_id))
    except ObjectNotFound:
        return


class Guest:
    """A peer that is played here: it logs in, and sends nothing."""

    def __init__(self, *, valid_for: float, now: Instant) -> None:
        """Make its certificate. `valid_for`: seconds from now on, at most a day."""
        day = 24 * 3600
        begin = Instant(now - int((day - valid_for) * 1_000_000))
        self.certificate: Certificate
        self.certificate, self._key = make_certificate("guest", now=begin, days=1)
        self._id = InstanceId(secret_bytes(16))

    async def is_let_in(self, host: str, port: int, own: Sequence[str]) -> bool:
        """Return whether a daemon lets the guest in. `own`: the daemon's certificates, as text."""
        with TemporaryDirectory() as folder:
            context = self._context(Path(folder), own)
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        try:
            writer.write(encode(Hello(self._id, BootId(secret_bytes(16)))))
            frames = FrameReader()
            while data := await reader.read(64 * 1024):
                for kind, payload in frames.feed(data):
                    match decode(kind, payload):
                        case Arbitrate(verdict):
                            return verdict is not Verdict.LOST
                        case Reject():
                            return False
                        case _:
                            pass
            return False
        finally:
            writer.transport.abort()

    def _context(self, folder: Path, own: Sequence[str]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata="".join(own))
        key = serialization.load_der_private_key(self._key, None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (folder / "guest.pem").write_bytes(key + self.certificate.pem.encode())
        context.load_cert_chain(folder / "guest.pem")
        return context
