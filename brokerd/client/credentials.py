"""Credentials: the verbs for peers, clients and certificates (CLP-160 to CLP-166, CLP-173).

Reads:  arguments.     Calls: client.link.
Never:  takes part in a transaction: each call stands alone, and is audited by the daemon.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from brokerd.client.arguments import wire_text
from brokerd.clock import Instant

if TYPE_CHECKING:
    from brokerd.client.link import Link

Purpose = Literal["transport", "dialog"]
BOTH: tuple[Purpose, ...] = ("transport", "dialog")


class CertificateRow(msgspec.Struct, frozen=True):
    """A certificate."""

    certificate_id: str
    """SHA-256 of the encoded certificate, in hexadecimal."""
    purpose: str
    """`transport`, or `dialog`."""
    subject: str
    start_date: Instant
    expiry_date: Instant


class OwnCertificate(CertificateRow, frozen=True):
    """A certificate of the instance itself."""

    is_in_use: bool = False
    """Whether the instance uses it now; False = it is the next one."""
    pem: str = ""
    """The certificate as text, for others to install."""
    lacking: dict[str, str] = {}
    """Peers that have not installed it, as far as this instance knows, each with the reason."""


class InstalledPrincipal(msgspec.Struct, frozen=True):
    """A peer or a client, and what was installed for it."""

    name: str
    """With its kind: `peer:west`."""
    is_new: bool
    """Whether the call has added it."""
    instance_id: str | None = None
    addresses: tuple[str, ...] = ()
    installed: tuple[CertificateRow, ...] = ()
    """The certificates that were not installed before."""
    notes: tuple[str, ...] = ()
    """Remarks for an operator, for instance that a certificate is not valid yet."""


class RevokedPrincipal(msgspec.Struct, frozen=True):
    """A peer or a client that was removed, with its certificates."""

    name: str
    certificates: tuple[CertificateRow, ...] = ()


class CredentialVerbs:
    """The verbs for peers, clients and certificates, a part of `session.admin`."""

    _link: "Link"

    async def install_principal(
        self,
        name: str,
        *,
        certificates: Iterable[bytes] = (),
        addresses: Sequence[str] | None = None,
    ) -> InstalledPrincipal:
        """Add a peer or a client, or install further certificates for it; a repeat is harmless.

        `name`: `peer:NAME` or `client:NAME`. `certificates`: contents of files, each with one or
        more certificates, for transport or for dialogs. `addresses`: those that only this peer may
        serve, in place of the ones it has; None = unchanged.

        Raises:
            InvalidArgument: name, address or certificate is wrong, or the certificate has expired.
            InUse: a certificate or an address belongs to another.
            ObjectNotFound: there is no such principal, and no certificate is given.
            BrokerError: an error common to all requests; see `Session`.
        """
        options: dict[str, object] = {"certificates": list(certificates)}
        if addresses is not None:
            options["addresses"] = [wire_text(one, "addresses") for one in addresses]
        answer = await self._link.ask("install_principal", (wire_text(name, "name"), options))
        return msgspec.convert(answer, InstalledPrincipal)

    async def revoke_principal(self, name: str) -> RevokedPrincipal:
        """Remove a peer or a client with its certificates and grants; its connections end.

        Raises:
            ObjectNotFound: there is no such principal.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("revoke_principal", (wire_text(name, "name"),))
        return msgspec.convert(answer, RevokedPrincipal)

    async def own_certificates(self, *, wait: float = 0.0) -> list[OwnCertificate]:
        """Return the certificates that others install for this instance: those in use, the next.

        `wait`: longest wait in seconds, at most 600, until all peers have installed them.

        Raises:
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("own_certificates", (float(wait),) if wait else ())
        return msgspec.convert(answer, list[OwnCertificate])

    async def make_certificates(self, purposes: Sequence[Purpose] = BOTH) -> list[OwnCertificate]:
        """Make the next certificates of the instance; they are used after `switch_certificates`.

        Without any peer or client they are used at once.

        Raises:
            InUse: the next certificate is made already, and waits to be used.
            NoMasterKey: the instance has lost its master key.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("make_certificates", (list(purposes),))
        return msgspec.convert(answer, list[OwnCertificate])

    async def switch_certificates(
        self, purposes: Sequence[Purpose] = BOTH, *, wait: float = 0.0, anyway: bool = False
    ) -> list[OwnCertificate]:
        """Use the newest certificates of the instance from now on; a repeat is harmless.

        Peers that are connected install them by themselves; clients need them in a file. `wait`:
        longest wait for peers in seconds, at most 60. `anyway`: do not refuse although peers lack
        them, which cannot connect any more then.

        Raises:
            InUse: peers have not installed them; the text names them.
            BrokerError: an error common to all requests; see `Session`.
        """
        options = {"wait": float(wait), "anyway": anyway}
        answer = await self._link.ask("switch_certificates", (list(purposes), options))
        return msgspec.convert(answer, list[OwnCertificate])

    async def drop_certificate(self, certificate_id: bytes) -> CertificateRow:
        """Remove a certificate of a peer, a client or this instance.

        Raises:
            ObjectNotFound: no such certificate is installed.
            InUse: the instance uses the certificate.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("drop_certificate", (certificate_id,))
        return msgspec.convert(answer, CertificateRow)

    async def replace_master_key(self) -> list[OwnCertificate]:
        """Give a lost master key up; return the new certificates, made with another.

        What the lost key encrypted stays unreadable: the keys of the former certificates, and of
        dialogs.

        Raises:
            InUse: the master key is there, and nothing is lost.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("replace_master_key", ())
        return msgspec.convert(answer, list[OwnCertificate])

    async def rotate_master_key(self) -> list[str]:
        """Make another master key; return the brokers whose dialogs follow at the next start.

        Until then, and for backups of before, the former keys stay in the key file.

        Raises:
            NoMasterKey: the instance has lost its master key, or cannot write its file.
            InUse: brokers have not followed the rotation before; start the daemon again.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("rotate_master_key", ())
        return msgspec.convert(answer, dict[str, list[str]])["brokers"]
