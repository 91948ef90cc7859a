"""LoginGuard: who may log in as which peer, and whether connections are encrypted (SEC-1 to 12).

Reads:  credentials, the settings of the endpoint.      Calls: `security.tls`.
Never:  believes what a HELLO says of its sender: the certificate has to agree (SX-7).
Fails:  a login is refused alone, with a reason that names what to do.
"""

import asyncio
import ssl
from enum import Enum, auto
from typing import Protocol

import msgspec

from brokerd.config.settings import Authentication, Encryption
from brokerd.errors import BrokerError
from brokerd.ids import InstanceId, show
from brokerd.protocol.connection_effects import LoginOutcome, Refusal
from brokerd.protocol.neighbour import Hello, RejectReason
from brokerd.security.credentials import Credentials, Purpose
from brokerd.security.secure_stream import Handshake, SecureStream
from brokerd.security.tls import NOBODY, SELF, Contexts, Identity, explain


class Way(Enum):
    """The ways to open a connection (SEC-10)."""

    CERTIFIED = auto()
    """With TLS; this side shows its certificate."""
    PUBLIC = auto()
    """With TLS; this side shows no certificate, and is `public` to the peer (SEC-7)."""
    PLAIN = auto()
    """Unencrypted; neither side proves anything."""


class Login(msgspec.Struct, frozen=True):
    """A login that is over, for the audit (SEC-12)."""

    outcome: LoginOutcome
    identity: Identity
    remote: str
    """Address of the far end."""
    is_accept: bool
    instance_id: InstanceId | None
    detail: str


class LoginEvents(Protocol):
    """The part of the instance that answers a guard, and is notified of logins."""

    def may_connect(self, name: str) -> bool:
        """Return whether a principal has CONNECT on the endpoint (SEC-6)."""
        ...

    def first_login(self, name: str, instance_id: InstanceId) -> bool:
        """Record the instance of a principal, from now on the only one (SEC-55).

        False: another login came first."""
        ...

    def logged_in(self, login: Login) -> None:
        """Audit a login that has succeeded or failed."""
        ...


class Side(Protocol):
    """A connection, as its guard sees it."""

    @property
    def address(self) -> str | None:
        """Destination of a connection that was opened here; None = it was accepted."""
        ...

    @property
    def identity(self) -> Identity:
        """The principal at the far end."""
        ...


class LoginGuard:
    """The rules for logins of one instance."""

    def __init__(
        self,
        *,
        instance_id: InstanceId,
        credentials: Credentials,
        contexts: Contexts,
        events: LoginEvents,
        encryption: Encryption,
        authentication: Authentication,
    ) -> None:
        """Create the guard. `encryption`, `authentication`: settings of the endpoint."""
        self.encryption = encryption
        self.authentication = authentication
        self.contexts = contexts
        self.events = events
        self._instance_id = instance_id
        self._credentials = credentials

    @property
    def is_open(self) -> bool:
        """Whether nobody has to prove anything, as the administrator has chosen (SEC-10)."""
        return self.authentication is Authentication.NONE

    @property
    def admits_plain(self) -> bool:
        """Whether unencrypted connections are admitted (END-10)."""
        return self.encryption is not Encryption.REQUIRED

    @property
    def first_way(self) -> Way:
        """How to open a connection at first."""
        return Way.PLAIN if self.encryption is Encryption.DISABLED else Way.CERTIFIED

    def next_way(
        self, way: Way, address: str, *, rejected: str, certificate_refused: bool
    ) -> Way | None:
        """Return how to try once more in the same attempt; None = the attempt has failed.

        Unencrypted only where the settings admit it, and the address is not that of a principal,
        which an unencrypted peer could not prove to be (SEC-10)."""
        if way is Way.PLAIN:
            return None
        if rejected == RejectReason.PLAIN_ONLY:
            is_anybody_s = self._credentials.server_of(address) is None
            return Way.PLAIN if self.admits_plain and is_anybody_s else None
        if way is Way.CERTIFIED and certificate_refused:
            admits = self.authentication is Authentication.CERTIFICATE_OR_PUBLIC
            return Way.PUBLIC if admits else None
        return None

    def accepting(self, connection: asyncio.Protocol, handshake: Handshake) -> asyncio.Protocol:
        """Return the protocol object of an accepted stream."""
        if self.encryption is Encryption.DISABLED:
            return connection
        return SecureStream(
            connection, handshake, context=self.contexts.server, accepting=True, limit=None
        )

    def connecting(
        self, connection: asyncio.Protocol, handshake: Handshake, way: Way
    ) -> asyncio.Protocol:
        """Return the protocol object of a stream that is opened here."""
        if way is Way.PLAIN:
            return connection
        return SecureStream(
            connection,
            handshake,
            context=lambda: self.contexts.client(shows_certificate=way is Way.CERTIFIED),
            accepting=False,
            limit=None,
        )

    def trusts(self, identity: Identity) -> bool:
        """Return whether a peer is believed what concerns more than its own messages (SX-7)."""
        return self.is_open or identity.is_authenticated

    def may_serve(self, address: str, connection: Side, *, was_dialled: bool) -> bool:
        """Return whether a connection may carry what is sent to an address (TRN-19).

        An accepted connection without certificate serves none: an address in its HELLO is no more
        than a claim."""
        if self.is_open:
            return True
        owner = self._credentials.server_of(address)
        if owner is not None:
            return owner.name == connection.identity.name
        return connection.identity.is_authenticated or was_dialled

    def why_refused(
        self, connection: Side, hello: Hello, online: Identity | None
    ) -> Refusal | None:
        """Return why a peer may not log in; None = it may.

        `online`: the identity of the ONLINE connection with the same instance id."""
        if self.is_open:
            return None
        detail = self._why_not_authenticated(connection, hello, online)
        if detail:
            return Refusal(RejectReason.NOT_AUTHENTICATED, detail)
        name = connection.identity.name
        if name == SELF:
            return None
        if not self.events.may_connect(name):
            return Refusal(
                RejectReason.NOT_AUTHORISED,
                f"{name} has no CONNECT: brokerd grant connect on endpoint to {name}",
            )
        principal = self._credentials.principals.get(name)
        is_first = principal is not None and principal.instance_id is None
        if is_first and not self.events.first_login(name, hello.instance_id):
            return Refusal(RejectReason.NOT_AUTHENTICATED, f"{name} is another instance")
        return None

    def why_no_longer(self, connection: Side, instance_id: InstanceId) -> str:
        """Return why a connection that has logged in may not stay; empty = it may (SX-3)."""
        identity = connection.identity
        if self.is_open or identity.name == SELF:
            return ""
        if identity.certificate_id is not None:
            is_gone = (
                not identity.by_authority
                and identity.certificate_id not in self._credentials.certificates
            )
            if is_gone and not self.is_replaced(connection):
                return f"the certificate of {identity.name} was removed"
            principal = self._credentials.principals.get(identity.name)
            if principal is None or principal.instance_id not in (None, instance_id):
                return f"{identity.name} is another instance, or was removed"
        if not self.events.may_connect(identity.name):
            return f"{identity.name} has no CONNECT any longer"
        return ""

    def is_replaced(self, connection: Side) -> bool:
        """Return whether the certificate of the far end was removed, and its owner has another.

        The owner can log in again at once, so nothing has to wait (SEC-9)."""
        identity, credentials = connection.identity, self._credentials
        if identity.certificate_id is None or identity.certificate_id in credentials.certificates:
            return False
        if identity.by_authority:
            return False
        owned = credentials.owned_by(identity.name)
        return any(one.purpose is Purpose.TRANSPORT for one in owned)

    def has_dropped(self, own_certificate_id: bytes | None) -> bool:
        """Return whether a certificate that this side has shown was removed since (END-6)."""
        if self.contexts.by_authority:
            return False
        certificates = self._credentials.certificates
        return own_certificate_id is not None and own_certificate_id not in certificates

    def _why_not_authenticated(
        self, connection: Side, hello: Hello, online: Identity | None
    ) -> str:
        """Return why the certificate does not agree with what the HELLO says."""
        identity, said = connection.identity, hello.instance_id
        is_me = said == self._instance_id
        if identity.name == SELF and not is_me:
            return "the peer shows the certificate of this instance, and is another instance"
        if is_me:
            return "" if identity.name == SELF else f"{identity.name} says it is this instance"
        if not identity.is_authenticated and self.authentication is Authentication.CERTIFICATE:
            return (
                "the peer has shown no certificate; to let it in as public, set "
                'endpoint.authentication = "certificate,public"'
            )
        return self._why_another(identity.name, said, online) or self._why_elsewhere(
            identity.name, connection.address
        )

    def _why_another(self, name: str, said: InstanceId, online: Identity | None) -> str:
        """Return why a principal is not the instance that it says it is (SEC-55)."""
        bound = self._credentials.bound_to(said)
        if bound is not None and bound.name != name:
            return f"{name} says it is the instance {show(said)}, which is that of {bound.name}"
        principal = self._credentials.principals.get(name)
        known = None if principal is None else principal.instance_id
        if known not in (None, said):
            return (
                f"{name} was another instance before, and is {show(said)} now: if it is new, "
                "remove the peer and add it again"
            )
        # One that has proven nothing must not lock out the peer whose instance id it has said.
        if online is not None and online.name != name and online.is_authenticated:
            return f"{name} says it is the instance {show(said)}, which is connected as another"
        return ""

    def _why_elsewhere(self, name: str, address: str | None) -> str:
        """Return why a principal may not answer at an address (TRN-19)."""
        owner = None if address is None else self._credentials.server_of(address)
        if owner is not None and owner.name != name:
            return f"{address} is the address of {owner.name}, and {name} answers there"
        return ""

    def identify(self, certificate: bytes | None) -> Identity:
        """Return the principal that owns a certificate; raise `NoProof`."""
        return NOBODY if certificate is None else self.contexts.identify(certificate)

    def explain(self, error: Exception, way: Way) -> tuple[str, str, LoginOutcome]:
        """Return the key, a line that says what to do, and the outcome of a failed handshake."""
        if isinstance(error, BrokerError):
            text = f"{error.message}; {error.hint}" if error.hint else error.message
            return "auth_failed", text, LoginOutcome.NEGOTIATE_FAILURE
        if isinstance(error, ssl.SSLError):
            own = self.contexts.own_certificate if way is Way.CERTIFIED else None
            concerns_certificates, line = explain(
                error, own=own, by_authority=self.contexts.by_authority
            )
            if concerns_certificates:
                return "auth_failed", line, LoginOutcome.AUTHENTICATION_FAILURE
            return "handshake_failed", line, LoginOutcome.NEGOTIATE_FAILURE
        text = str(error) or type(error).__name__
        return "handshake_failed", f"TLS: {text}", LoginOutcome.NEGOTIATE_FAILURE
