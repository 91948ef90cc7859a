"""ClientLogins: TLS for clients that connect over TCP, each with its certificate (SX-21, CLP-130).

Programs connect to the listener for clients, browsers and monitoring to the HTTP listener; the
certificates and the logins are the same.

Reads:  the settings, credentials.      Calls: `security.tls`, the sessions, the audit, the log.
Never:  lets a client of another machine in unencrypted, unless `clients.trust_network` is set.
Fails:  a client is refused alone, with a text that names nobody else.
"""

import asyncio
import hashlib
import ssl
from typing import Protocol, cast
from weakref import WeakSet

import msgspec

from brokerd.config.exposure import is_local_address
from brokerd.errors import AccessDenied, BrokerError
from brokerd.instance.parts import Parts
from brokerd.instance.surroundings import Surroundings
from brokerd.protocol.client_frames import encode_failed
from brokerd.protocol.connection_effects import LoginOutcome
from brokerd.security.certificates import show_id
from brokerd.security.credentials import Kind
from brokerd.security.secure_stream import SecureStream
from brokerd.security.tls import Contexts, NoProof, explain
from brokerd.sessions.principals import PRINCIPAL
from brokerd.telemetry.audit import Action, Outcome
from brokerd.telemetry.logs import DAEMON
from brokerd.transport.door import Seat

_NOT_ENCRYPTED = AccessDenied(
    "clients of other machines have to encrypt their connections",
    hint="give certificate, key and server certificate: BROKERD_TLS_CERTIFICATE and the like",
)
_NOT_KNOWN = AccessDenied(
    "the daemon does not accept this client's certificate",
    hint="its administrator can see why in the log and the audit, and install it: "
    "brokerd client add",
)


class Refusals(msgspec.Struct, frozen=True):
    """The last words to connections that are refused, in the language of the listener."""

    not_encrypted: bytes = encode_failed(0, _NOT_ENCRYPTED)
    not_known: bytes = encode_failed(0, _NOT_KNOWN)


class Occupant(Protocol):
    """The protocol object of a client, inside the encryption."""

    seat: Seat | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the far end has shown a certificate that is installed."""


class ClientLogins:
    """A listener for clients, as far as certificates are concerned."""

    def __init__(
        self,
        parts: Parts,
        world: Surroundings,
        *,
        trusts_network: bool = False,
        kind: str = "clients",
        refusals: Refusals = Refusals(),  # noqa: B008  # frozen
    ) -> None:
        """Create the logins of a listener.

        `trusts_network`: whether clients of other machines may connect unencrypted. `kind`: name
        of the listener, for the log and the audit."""
        self._parts = parts
        self._log = world.log
        self._kind = kind
        self._trusts_network = trusts_network
        self.refusals = refusals
        self._secured: WeakSet[SecureStream] = WeakSet()
        parts.credentials.watch(self._check_certificates)
        parts.authority.watch(self._end_vouched)
        self.contexts = Contexts(
            credentials=parts.credentials,
            kind=Kind.CLIENT,
            private_key=parts.credential_store.private_key,
            utc=world.clock.utc,
            authority=parts.authority.vouching_for(Kind.CLIENT),
        )

    def admits_plain(self, address: str) -> bool:
        """Return whether clients connect unencrypted at an address where the instance listens.

        They do on this machine, or over a trusted network."""
        return self._trusts_network or is_local_address(address)

    def factory(self, address: str) -> asyncio.Protocol:
        """Return the protocol object of a connection that was accepted at an address."""
        session = self._parts.sessions.factory()
        return session if self.admits_plain(address) else self.secure(session)

    def secure(self, client: asyncio.Protocol) -> SecureStream:
        """Return the encryption around the protocol object of a client, an `Occupant`."""
        login = _ClientLogin(self, cast("Occupant", client))
        return SecureStream(client, login, context=self.contexts.server, accepting=True)

    def record(
        self, outcome: LoginOutcome, stream: SecureStream, name: str | None, why: str
    ) -> None:
        """Log and audit a login (SEC-12)."""
        peer = stream.get_extra_info("peername")
        remote = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"
        is_success = outcome is LoginOutcome.SUCCESS
        certificate = stream.peer_certificate
        if not is_success:
            self._log.warning(
                DAEMON,
                subclass="client_refused",
                listener=self._kind,
                remote=remote,
                reason=outcome.value,
                error=why,
            )
        else:
            self._secured.add(stream)
        self._parts.audit.record(
            Action.LOGIN,
            actor=name or remote.rpartition(":")[0],  # repeats of one machine count together
            subject=self._kind,
            outcome=Outcome.SUCCESS if is_success else Outcome.REFUSED,
            kind=outcome.value,
            remote=remote,
            certificate_id=None if certificate is None else _id(certificate),
            why=why or None,
        )

    def _check_certificates(self) -> None:
        """End the connections of clients whose certificate was removed (SX-3)."""
        if self.contexts.by_authority:
            self._check_principals()
            return
        certificates = self._parts.credentials.certificates
        for stream in list(self._secured):
            shown = stream.peer_certificate
            if shown is not None and hashlib.sha256(shown).digest() not in certificates:
                stream.abort()

    def _check_principals(self) -> None:
        """End the connections of clients that were removed."""
        known = self._parts.credentials.principals
        for stream in list(self._secured):
            if stream.extra.get(PRINCIPAL) not in known:
                stream.abort()

    def _end_vouched(self) -> int:
        """End the connections of clients for which the CA vouched; return their number (SEC-69)."""
        found = list(self._secured) if self.contexts.by_authority else []
        for stream in found:
            stream.abort()
        return len(found)


class _ClientLogin:
    """The handshake of one client."""

    def __init__(self, logins: ClientLogins, session: Occupant) -> None:
        self._logins = logins
        self._session = session

    def stream_opened(self, stream: SecureStream) -> None:
        """Wait for the end of the handshake."""

    def stream_secured(self, stream: SecureStream) -> None:
        """Let the owner of an installed certificate in."""
        failure = LoginOutcome.AUTHENTICATION_FAILURE
        try:
            identity = self._logins.contexts.identify(stream.peer_certificate)
            why = "" if identity.is_authenticated else "it has shown no certificate"
        except NoProof as error:
            identity, why = None, str(error)
        if identity is None or why or not identity.name.startswith(f"{Kind.CLIENT}:"):
            self._logins.record(failure, stream, None, why or "it is no client")
            stream.turn_away(self._logins.refusals.not_known)
            return
        stream.extra[PRINCIPAL] = identity.name
        self._logins.record(LoginOutcome.SUCCESS, stream, identity.name, "")
        self._session.connection_made(cast("asyncio.Transport", stream))

    def stream_plain(self, transport: asyncio.Transport) -> None:
        """Refuse a client that does not encrypt."""
        transport.set_protocol(_Leaving(self._session))
        transport.write(self._logins.refusals.not_encrypted)
        transport.close()

    def stream_refused(self, stream: SecureStream, error: Exception) -> None:
        """Log why a handshake failed."""
        if isinstance(error, ssl.SSLError):
            by_authority = self._logins.contexts.by_authority
            _, why = explain(error, own=None, by_authority=by_authority)
        else:
            why = error.message if isinstance(error, BrokerError) else str(error)
        self._logins.record(LoginOutcome.AUTHENTICATION_FAILURE, stream, None, why)

    def stream_lost(self, exc: Exception | None) -> None:
        """Free the place of a client that has not logged in."""
        if self._session.seat is not None:
            self._session.seat.leave()


class _Leaving(asyncio.Protocol):
    """The end of a connection that was refused."""

    def __init__(self, session: Occupant) -> None:
        self._session = session

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place."""
        if self._session.seat is not None:
            self._session.seat.leave()


def _id(encoded: bytes) -> str:
    return show_id(hashlib.sha256(encoded).digest())
