"""Tls: encrypted connections to a daemon, with certificates on both sides (SEC-2, CLP-1).

Reads:  the files of certificate, private key and server certificate, at each connection.
Calls:  `ssl`, `security.secure_stream`.
Never:  connects to a server whose certificate is another than the one that it was given.
"""

import asyncio
import os
import ssl
from typing import Final

from msgspec import Struct

from brokerd.errors import InvalidArgument
from brokerd.security.secure_stream import SecureStream
from brokerd.security.tls_rules import harden

CERTIFICATE_VARIABLE: Final = "BROKERD_TLS_CERTIFICATE"
KEY_VARIABLE: Final = "BROKERD_TLS_KEY"
SERVER_VARIABLE: Final = "BROKERD_TLS_SERVER"


class Tls(Struct, frozen=True, kw_only=True):
    """The files that a program needs for encrypted connections, each in PEM."""

    certificate: str
    """The program's certificate, which is installed at the daemon for a client."""
    key: str
    """The private key of the certificate; nobody else may read it."""
    server: str
    """The certificates of the daemon: the present one, and the next one at a change."""


def default_tls() -> Tls | None:
    """Return the files that the environment names; None = it names none.

    Raises:
        InvalidArgument: the environment names some of the files and not the others.
    """
    names = (CERTIFICATE_VARIABLE, KEY_VARIABLE, SERVER_VARIABLE)
    given = {name: os.environ[name] for name in names if os.environ.get(name)}
    if not given:
        return None
    missing = [name for name in names if name not in given]
    if missing:
        raise InvalidArgument(
            f"{', '.join(given)} and not {', '.join(missing)}",
            hint="encrypted connections need all three: certificate, key, and the server's",
        )
    return Tls(
        certificate=given[CERTIFICATE_VARIABLE],
        key=given[KEY_VARIABLE],
        server=given[SERVER_VARIABLE],
    )


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return the context for connections with these files.

    Raises:
        InvalidArgument: a file is missing, unfit, or a private key that others may read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the server's certificate itself is what is trusted (SEC-3)
    context.verify_mode = ssl.CERT_REQUIRED
    harden(context, checks_dates=True)
    try:
        # On Windows the mode says nothing about who may read a file: its directory decides.
        if os.name == "posix" and os.stat(tls.key).st_mode & 0o077:
            raise InvalidArgument(
                f"{tls.key} is a private key that other users can read",
                hint=f"chmod 600 {tls.key}",
            )
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
        context.load_verify_locations(tls.server)
    except ssl.SSLError as error:
        raise InvalidArgument(
            f"TLS: {tls.certificate}, {tls.key} and {tls.server} cannot be used: "
            f"{error.reason or error}",
            hint="each is a file in PEM; the key belongs to the certificate",
        ) from error
    except OSError as error:
        raise InvalidArgument(f"TLS: {error.filename or tls.key}: {error.strerror}") from error
    return context


def _no_password() -> str:
    raise InvalidArgument(
        "the private key is encrypted by a password", hint="give a key without one, with mode 600"
    )


class NotEncrypted(ConnectionError):
    """The daemon does not encrypt where TLS is expected."""


class Opening:
    """The handshake of one connection; `done` ends with it."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inner = inner

    def stream_opened(self, stream: SecureStream) -> None:
        """Wait for the end of the handshake.

        Raises: nothing.
        """

    def stream_secured(self, stream: SecureStream) -> None:
        """Begin to use the stream.

        Raises: nothing.
        """
        self._inner.connection_made(stream)  # type: ignore[arg-type]  # it acts as a transport
        if not self.done.done():
            self.done.set_result(None)

    def stream_plain(self, transport: asyncio.Transport) -> None:
        """Refuse a daemon that does not encrypt.

        Raises: nothing.
        """
        transport.abort()
        text = "the daemon does not encrypt at this address, or has no room for connections"
        if not self.done.done():
            self.done.set_exception(NotEncrypted(text))

    def stream_refused(self, stream: SecureStream, error: Exception) -> None:
        """Note why the handshake failed.

        Raises: nothing.
        """
        text = _explain(error)
        if self.done.done():
            refused = getattr(self._inner, "refused", None)
            if refused is not None:
                refused(text)
        else:
            self._fail(text)

    def stream_lost(self, exc: Exception | None) -> None:
        """Note that the daemon closed the connection.

        Raises: nothing.
        """
        self._fail(str(exc or "the daemon closed the connection during the TLS handshake"))

    def _fail(self, text: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(text))


def _explain(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the daemon's certificate is not the one that {SERVER_VARIABLE} names, or is not "
            f"valid now: {error.verify_message}"
        )
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason:
        return (
            "the daemon does not know the certificate of this client: install it there with "
            f"brokerd client add ({reason})"
        )
    return f"the TLS handshake failed: {reason or str(error) or type(error).__name__}"
