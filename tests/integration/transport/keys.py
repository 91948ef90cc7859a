"""Credentials of instances that know each other, for tests."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from brokerd.clock import SECOND, Instant, SystemClock
from brokerd.ids import InstanceId
from brokerd.security.certificates import Certificate, make_certificate, read_certificate
from brokerd.security.credentials import Credentials, Installed, Kind, Principal, Purpose
from brokerd.security.tls import Contexts

DAY = 24 * 3600 * SECOND


def now() -> Instant:
    return SystemClock().utc()


class Keys:
    """The own certificate of one instance, and what it knows of others."""

    def __init__(self, name: str, *, made_at: Instant | None = None) -> None:
        self.name = name
        self.private_keys: dict[bytes, bytes] = {}
        self.credentials = Credentials()
        self.certificate = self.make_own(made_at)

    def make_own(self, made_at: Instant | None = None) -> Certificate:
        made, key = make_certificate(self.name, now=made_at or now())
        self.private_keys[made.id] = key
        self.credentials.put(
            Installed(
                certificate=made,
                purpose=Purpose.TRANSPORT,
                principal=None,
                installed_at=now(),
                private_key=b"wrapped",
            )
        )
        return made

    def contexts(self, kind: Kind = Kind.PEER) -> Contexts:
        return Contexts(
            credentials=self.credentials,
            kind=kind,
            private_key=lambda one: self.private_keys[one.certificate.id],
            utc=now,
        )

    def trust(
        self,
        other: "Keys",
        *,
        kind: Kind = Kind.PEER,
        instance_id: InstanceId | None = None,
        addresses: tuple[str, ...] = (),
    ) -> Principal:
        """Install the certificate of another instance."""
        principal = Principal(
            name=f"{kind}:{other.name}",
            kind=kind,
            created_at=now(),
            created_by="test",
            instance_id=instance_id,
            addresses=addresses,
        )
        self.credentials.put(
            principal,
            Installed(
                certificate=other.certificate,
                purpose=Purpose.TRANSPORT,
                principal=principal.name,
                installed_at=now(),
            ),
        )
        return principal


def issued_by_an_authority(name: str) -> tuple[Certificate, Certificate, bytes]:
    """Return an authority's certificate, one that it issued, and the private key of the latter."""
    root, key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()

    def signed(subject: str, of: Ed25519PrivateKey, *, ca: bool) -> Certificate:
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - timedelta(days=1))
            .not_valid_after(datetime.now(UTC) + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(root, None)
        )
        return read_certificate(made.public_bytes(serialization.Encoding.DER))

    private = key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return signed("authority", root, ca=True), signed(name, key, ca=False), private
