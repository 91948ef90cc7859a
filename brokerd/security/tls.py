"""TLS: contexts for connections of peers and clients, and the identity at their far end (SEC-2).

Reads:  certificates.                           Calls: `ssl`, `security.credentials`.
Never:  opens a socket or a file; a private key reaches OpenSSL through memory that has no name.
Fails:  a context that cannot be made is an `InvalidArgument`; a far end without proof is `NoProof`.

An installed certificate is itself the anchor of trust: no issuer, no host name (SEC-3). OpenSSL
proves that the far end holds the private key of one of them. It does not check dates: `identify`
does, by the clock of the instance, so that a refusal says which date is wrong (SEC-11).
"""

import hashlib
import os
import ssl
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from brokerd.clock import Instant
from brokerd.errors import BrokerError, InvalidArgument, ObjectNotFound
from brokerd.security.authority import Authority, context_of, name_of
from brokerd.security.certificates import (
    Certificate,
    read_certificate,
    show_id,
    why_not_valid,
)
from brokerd.security.credentials import (
    Credentials,
    Installed,
    Kind,
    Purpose,
    principal_name,
)
from brokerd.security.grants import PUBLIC
from brokerd.security.pem import PRIVATE_KEY, to_pem
from brokerd.security.tls_rules import harden

SELF: Final = "self"
"""Name of the identity of this instance, when it has connected to itself (TRN-26)."""


class Identity(Struct, frozen=True):
    """The principal at the far end of a connection."""

    name: str
    """`peer:west`, `client:billing`, `public`, or `self`."""
    certificate_id: bytes | None = None
    """None = the far end has shown no certificate."""
    by_authority: bool = False
    """Whether a CA vouches for the certificate; otherwise it is installed here (SEC-67)."""

    @property
    def is_authenticated(self) -> bool:
        """Whether a certificate has proven the name."""
        return self.certificate_id is not None


NOBODY: Final = Identity(PUBLIC)
"""Identity of a far end that has proven nothing."""


class NoProof(Exception):
    """The far end has not proven who it is."""


class Own(Struct, frozen=True):
    """A certificate with its private key, PKCS #8 in DER."""

    certificate: Certificate
    private_key: bytes


def server_context(own: Own, trusted: Iterable[Certificate]) -> ssl.SSLContext:
    """Return the context of the accepting side.

    A far end without a certificate is admitted by the handshake; the login decides (SEC-7).

    Raises:
        InvalidArgument: certificate and private key do not fit, or a certificate is no good.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 0  # a resumed session would not be checked again (SX-4)
    harden(context, checks_dates=False)
    _use(context, own)
    _trust(context, trusted)
    return context


def client_context(own: Own | None, trusted: Iterable[Certificate]) -> ssl.SSLContext:
    """Return the context of the connecting side. `own`: None = show no certificate.

    Raises:
        InvalidArgument: certificate and private key do not fit, or a certificate is no good.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is what is trusted (SEC-3)
    context.verify_mode = ssl.CERT_REQUIRED
    harden(context, checks_dates=False)
    if own is not None:
        _use(context, own)
    _trust(context, trusted)
    return context


def _use(context: ssl.SSLContext, own: Own) -> None:
    text = (own.certificate.pem + to_pem(PRIVATE_KEY, own.private_key)).encode()
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except ssl.SSLError as error:
        raise InvalidArgument(
            f"the certificate {_short(own.certificate)} cannot be used with its private key: "
            f"{error.reason}",
            hint="give the private key that belongs to the certificate",
        ) from error
    finally:
        os.close(descriptor)


def _trust(context: ssl.SSLContext, trusted: Iterable[Certificate]) -> None:
    distinct = {one.encoded for one in trusted}
    if not distinct:
        return
    try:
        context.load_verify_locations(cadata=b"".join(sorted(distinct)))
    except ssl.SSLError as error:
        raise InvalidArgument(f"an installed certificate cannot be used: {error}") from error


def identify(encoded: bytes | None, credentials: Credentials, kind: Kind, now: Instant) -> Identity:
    """Return the principal that owns the certificate of the far end (SEC-4).

    `encoded`: in DER; None = the far end has shown none. `kind`: of the principal.

    Raises:
        NoProof: the certificate belongs to nobody of this kind, or is not valid now.
    """
    if encoded is None:
        return NOBODY
    certificate_id = hashlib.sha256(encoded).digest()
    found = credentials.certificates.get(certificate_id)
    if found is not None and found.principal is None:
        return Identity(SELF, certificate_id)
    try:
        principal = credentials.owner(encoded, Purpose.TRANSPORT, now)
    except ObjectNotFound as error:
        raise NoProof(error.message) from error
    except InvalidArgument as error:
        raise NoProof(error.message) from error
    if principal.kind is not kind:
        raise NoProof(f"the certificate belongs to {principal.name}, which is no {kind}")
    return Identity(principal.name, certificate_id)


def identify_by(
    authority: Authority,
    encoded: bytes | None,
    credentials: Credentials,
    kind: Kind,
    now: Instant,
) -> Identity:
    """Return the principal that a certificate of the CA names (SEC-68).

    `encoded`: in DER, its chain verified by the handshake; None = the far end has shown none.

    Raises:
        NoProof: the certificate names nobody of this kind who is known here, or is not valid now.
    """
    if encoded is None:
        return NOBODY
    try:
        certificate = read_certificate(encoded)
        if why := why_not_valid(certificate, now):
            raise NoProof(why)
        if encoded == authority.certificate.encoded:
            return Identity(SELF, certificate.id, by_authority=True)
        short = name_of(encoded, authority.rule(kind))
        name = principal_name(kind, short)
    except InvalidArgument as error:
        raise NoProof(error.message) from error
    if name not in credentials.principals:
        raise NoProof(f"the certificate names {name}: add it first, brokerd {kind} add {short}")
    return Identity(name, certificate.id, by_authority=True)


class Contexts:
    """The contexts of one instance, made anew where its credentials have changed (SEC-9).

    Connections that are open keep the context that they began with."""

    def __init__(
        self,
        *,
        credentials: Credentials,
        kind: Kind,
        private_key: Callable[[Installed], bytes],
        utc: Callable[[], Instant],
        authority: Callable[[], Authority] | None = None,
    ) -> None:
        """Create the contexts. `kind`: of the principals that connect.

        `private_key`: returns the private key of an own certificate, in DER. `authority`: returns
        the CA that vouches for principals of this kind; None = their certificates are installed."""
        self._credentials = credentials
        self._kind = kind
        self._private_key = private_key
        self._utc = utc
        self._authority = authority
        self._of: Authority | None = None
        self._version = -1
        self._own: Own | None = None
        self._made: dict[str, ssl.SSLContext] = {}

    @property
    def own_certificate(self) -> Certificate | None:
        """The certificate that new connections show; None = none is valid now."""
        if self._authority is not None:
            try:
                return self._authority().certificate
            except BrokerError:
                return None
        installed = self._credentials.own(Purpose.TRANSPORT, self._utc())
        return None if installed is None else installed.certificate

    def server(self) -> ssl.SSLContext:
        """Return the context for accepted connections.

        Raises:
            InvalidArgument: this instance has no valid certificate, or its key cannot be read.
        """
        if self._authority is not None:
            return self._vouched("server", self._authority(), accepting=True)
        return self._context("server", lambda: server_context(self._there(), self._trusted()))

    def client(self, *, shows_certificate: bool = True) -> ssl.SSLContext:
        """Return the context for connections opened here.

        Raises:
            InvalidArgument: this instance has no valid certificate, or its key cannot be read.
        """
        if self._authority is not None:
            return self._vouched("client", self._authority(), accepting=False)
        if not shows_certificate:
            return self._context("public", lambda: client_context(None, self._trusted()))
        return self._context("client", lambda: client_context(self._there(), self._trusted()))

    def identify(self, encoded: bytes | None) -> Identity:
        """Return the principal that owns the certificate of a far end; raise `NoProof`."""
        if self._authority is not None:
            try:
                authority = self._authority()
            except BrokerError as error:
                raise NoProof(error.message) from error
            return identify_by(authority, encoded, self._credentials, self._kind, self._utc())
        return identify(encoded, self._credentials, self._kind, self._utc())

    @property
    def by_authority(self) -> bool:
        """Whether a CA vouches for the certificates on both sides."""
        return self._authority is not None

    def _vouched(self, name: str, authority: Authority, *, accepting: bool) -> ssl.SSLContext:
        """Return a context for certificates of the CA, made anew when its files have changed."""
        if authority is not self._of:
            self._made.clear()
            self._of = authority
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = context_of(authority, accepting=accepting)
        return found

    def _context(self, name: str, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        installed = self._credentials.own(Purpose.TRANSPORT, self._utc())
        certificate = None if installed is None else installed.certificate
        was = None if self._own is None else self._own.certificate
        if self._version != self._credentials.version or certificate != was:
            self._made.clear()
            self._version = self._credentials.version
            self._own = None
            if installed is not None:
                self._own = Own(installed.certificate, self._private_key(installed))
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = make()
        return found

    def _there(self) -> Own:
        if self._own is not None:
            return self._own
        expired = [one.certificate for one in self._credentials.own_all(Purpose.TRANSPORT)]
        why = "; ".join(filter(None, (why_not_valid(one, self._utc()) for one in expired)))
        raise InvalidArgument(
            f"this instance has no valid certificate for connections{': ' if why else ''}{why}",
            hint="make one with: brokerd certificate renew",
        )

    def _trusted(self) -> list[Certificate]:
        """Return the certificates that may connect, and the own ones (TRN-26).

        Certificates that are not valid now are among them: `identify` says what is wrong with one,
        where OpenSSL would only end the handshake."""
        installed = self._credentials.installed(Purpose.TRANSPORT, self._kind)
        own = self._credentials.own_all(Purpose.TRANSPORT)
        return [one.certificate for one in (*installed, *own)]


def explain(  # noqa: PLR0911  # one return a case
    error: ssl.SSLError, *, own: Certificate | None, by_authority: bool = False
) -> tuple[bool, str]:
    """Return whether a failed handshake concerns certificates, and a line that says what to do.

    `own`: the certificate that this side has shown. `by_authority`: whether a CA vouches for the
    certificates (SEC-67)."""
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        if by_authority:
            return True, (
                f"the certificate of the far end does not hold by ca.file: {error.verify_message}; "
                "it has to be of that CA, valid, not revoked, and for both sides of TLS"
            )
        return True, (
            "the certificate of the far end is not installed here: install it for its peer with "
            "brokerd peer add, or pair the two instances with brokerd peer pair"
        )
    if "ALERT" in reason and any(word in reason for word in _ABOUT_CERTIFICATES):
        mine = "its certificate" if own is None else f"the certificate {_short(own)}"
        if by_authority:
            return True, (
                f"the far end does not accept {mine} of this instance: its log says why; it has to "
                "trust the same CA, and the certificate has to be for both sides of TLS"
            )
        return True, (
            f"the far end does not know {mine} of this instance: install it there with "
            "brokerd peer add, or pair the two instances with brokerd peer pair"
        )
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        return False, "the two sides have no version of TLS in common; brokerd speaks TLS 1.3 only"
    if "WRONG_VERSION_NUMBER" in reason:
        return False, "the far end does not speak TLS"
    return False, f"the TLS handshake failed: {error.reason or error}"


_ABOUT_CERTIFICATES: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")


def _short(certificate: Certificate) -> str:
    return f"{show_id(certificate.id)[:16]}… ({certificate.subject})"
