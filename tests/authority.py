"""Authority: a company's CA for tests, which makes, revokes and misuses certificates."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BOTH = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)
HOUR = timedelta(hours=1)


class Ca:
    """One CA: a root, or one below another."""

    def __init__(self, name: str, above: "Ca | None" = None) -> None:
        self.name = _named(name)
        self.above = above
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._revoked: list[x509.RevokedCertificate] = []
        signer = above or self
        extensions = [(x509.BasicConstraints(ca=True, path_length=None), True)]
        self.certificate = signer._sign(self.name, self._key.public_key(), extensions)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def chain(self) -> bytes:
        """The intermediate certificates, from this one up to the root, which is left out."""
        return b"" if self.above is None else self.pem + self.above.chain

    def issue(
        self,
        *names: str,
        common_name: str = "somebody",
        begin: timedelta = -HOUR,
        end: timedelta = HOUR,
        usage: Sequence[x509.ObjectIdentifier] = BOTH,
    ) -> tuple[bytes, bytes]:
        """Return a certificate with its chain, and its private key, in PEM.

        `names`: DNS names, or URIs; none = there are no alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[Any] = [
            x509.UniformResourceIdentifier(one) if ":" in one else x509.DNSName(one)
            for one in names
        ]
        extensions: list[Any] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage(usage), False),
        ]
        if alternatives:
            extensions.append((x509.SubjectAlternativeName(alternatives), False))
        made = self._sign(_named(common_name), key.public_key(), extensions, begin=begin, end=end)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return made.public_bytes(serialization.Encoding.PEM) + self.chain, private

    def revoke(self, certificate: bytes) -> None:
        """Put a certificate, in PEM, on the list."""
        serial = x509.load_pem_x509_certificates(certificate)[0].serial_number
        revoked = x509.RevokedCertificateBuilder().serial_number(serial)
        self._revoked.append(revoked.revocation_date(datetime.now(UTC) - HOUR).build())

    def revoked(self, *, end: timedelta = HOUR) -> bytes:
        """Return the list of revoked certificates, in PEM, and that of the CA above."""
        now = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        made = made.last_update(now - 2 * HOUR).next_update(now + end)
        for one in self._revoked:
            made = made.add_revoked_certificate(one)
        signed = made.sign(self._key, hashes.SHA256())
        above = b"" if self.above is None else self.above.revoked()
        return signed.public_bytes(serialization.Encoding.PEM) + above

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        extensions: Sequence[tuple[Any, bool]],
        *,
        begin: timedelta = -HOUR,
        end: timedelta = HOUR,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begin)
            .not_valid_after(now + end)
        )
        for extension, critical in extensions:
            made = made.add_extension(extension, critical=critical)
        return made.sign(self._key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
