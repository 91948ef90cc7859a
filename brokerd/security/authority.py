"""Authority: certificates of a company's own CA, in place of installed ones (SEC-67 to SEC-69).

Reads:  the content of files, which it is given.      Calls: `ssl`, the package `cryptography`.
Never:  trusts a name that the administrator's rule does not map to a principal, or opens a file.
Fails:  a context that cannot be made is an `InvalidArgument`, which names the setting.

OpenSSL checks the chain up to the CA, its dates, the usage of the key and the list of revoked
certificates. Its clock is that of the machine. Who somebody is says the rule: the name in the
certificate, put in place of `{name}`.
"""

import base64
import binascii
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID
from msgspec import Struct

from brokerd.errors import InvalidArgument
from brokerd.security.certificates import REFUSALS, Certificate, read_certificate
from brokerd.security.names import NAME, Kind
from brokerd.security.pem import REVOKED, to_pem

_LABEL: Final = r"([a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?)"


class Authority(Struct, frozen=True, kw_only=True):
    """A company's own CA, and the certificate that it has made for this instance."""

    trusted: bytes
    """The certificates of the CA, in PEM: the root, and those that peers do not send."""
    revoked: bytes = b""
    """Lists of revoked certificates, one of each CA of a chain, as `read_revoked` returns them;
    b"" = nothing is checked."""
    own: bytes
    """The certificate of this instance in PEM, and the intermediate ones below the root."""
    key: bytes
    """The private key of the certificate, in PEM, without a password."""
    peers: str = ""
    """Rule for names of peers, such as `{name}.brokers.example`; "" = the CA vouches for none."""
    clients: str = ""
    """Rule for names of client programs."""

    def rule(self, kind: Kind) -> str:
        """Return the rule for the names of a kind of principals; "" = the CA does not count."""
        return self.peers if kind is Kind.PEER else self.clients

    @property
    def certificate(self) -> Certificate:
        """The certificate of this instance."""
        return _leaf(self.own)


@cache
def _leaf(own: bytes) -> Certificate:
    end = b"-----END CERTIFICATE-----"
    first, found, _ = own.partition(end)
    if not found:
        raise InvalidArgument("ca.certificate has no certificate in PEM")
    return read_certificate(first + found + b"\n")


_BLOCK: Final = re.compile(rb"-----BEGIN ([^\n]*?)-----\s*?\n(.*?)-----END [^\n]*?-----", re.DOTALL)


def read_revoked(content: bytes) -> bytes:
    """Return the lists of revoked certificates of a file, and nothing else that is in it.

    OpenSSL would trust each certificate that it finds beside them.

    Raises:
        InvalidArgument: the file has no list, or something else between BEGIN and END.
    """
    found = []
    for label, inner in _BLOCK.findall(content):
        if label != REVOKED.encode():
            raise InvalidArgument(
                f"ca.crl_file has a {label.decode(errors='replace')[:40]}, which does not belong "
                "there",
                hint="it has lists of revoked certificates only; certificates of the CA go into "
                "ca.file",
            )
        try:
            found.append(to_pem(REVOKED, base64.b64decode(b"".join(inner.split()), validate=True)))
        except binascii.Error as error:
            raise InvalidArgument("ca.crl_file has a list that is damaged") from error
    if not found:
        raise InvalidArgument("ca.crl_file has no list of revoked certificates in PEM")
    return "".join(found).encode()


def context_of(authority: Authority, *, accepting: bool) -> ssl.SSLContext:
    """Return the context of one side of a connection.

    A far end without a certificate is admitted by the handshake; the login decides (SEC-7).

    Raises:
        InvalidArgument: a file cannot be used.
    """
    side = ssl.PROTOCOL_TLS_SERVER if accepting else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(side)
    context.check_hostname = False  # the rule names the far end, and an address has its principal
    context.verify_mode = ssl.CERT_OPTIONAL if accepting else ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.verify_flags = ssl.VerifyFlags(ssl.VERIFY_X509_TRUSTED_FIRST)
    if accepting:
        context.num_tickets = 0  # a resumed session would not be checked again (SX-4)
    with _says("ca.file"), _file(authority.trusted) as path:
        context.load_verify_locations(path)
    if authority.revoked:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
        with _says("ca.crl_file"), _file(authority.revoked) as path:
            context.load_verify_locations(path)
    with _says("ca.certificate or ca.key"), _file(authority.own + b"\n" + authority.key) as path:
        context.load_cert_chain(path, password=_no_password)
    return context


def name_of(encoded: bytes, rule: str) -> str:
    """Return the name that a certificate has by a rule, as the name of a principal.

    `encoded`: in DER; its chain was verified. The alternative names count, and the common name only
    if there are none. A rule that is a URI is for URIs alone, and another one for DNS names: what a
    CA demands of whoever wants the one kind of name may say nothing about the other.

    Raises:
        InvalidArgument: no name in the certificate follows the rule, or several do.
    """
    try:
        names = _names(x509.load_der_x509_certificate(encoded), is_uri=":" in rule)
    except REFUSALS as error:
        raise InvalidArgument(f"the names in the certificate cannot be read: {error}") from error
    before, _, after = rule.lower().partition(NAME)
    pattern = re.compile(re.escape(before) + _LABEL + re.escape(after))
    found = {match[1] for one in names if (match := pattern.fullmatch(one.lower()))}
    if len(found) == 1:
        return found.pop()
    said = ", ".join(names[:5]) or "none"
    if not found:
        raise InvalidArgument(f"no name in the certificate follows {rule} (names: {said})")
    raise InvalidArgument(f"several names in the certificate follow {rule} (names: {said})")


def _names(parsed: x509.Certificate, *, is_uri: bool) -> list[str]:
    try:
        found = parsed.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME)
    except x509.ExtensionNotFound:
        subject = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return [str(one.value) for one in subject]
    value = found.value
    assert isinstance(value, x509.SubjectAlternativeName), "the extension of that identifier"
    return value.get_values_for_type(x509.UniformResourceIdentifier if is_uri else x509.DNSName)


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Give OpenSSL a file that exists in memory only."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def _says(setting: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise InvalidArgument(
            f"the file of {setting} cannot be used: {error.reason or error}",
            hint="each is a file in PEM; the key belongs to the certificate",
        ) from error


def _no_password() -> str:
    raise InvalidArgument(
        "the private key of ca.key is encrypted by a password",
        hint="give a key without one, with mode 600",
    )
