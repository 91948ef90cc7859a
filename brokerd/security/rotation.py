"""Rotation: which certificates one instance accepts from another over an open connection (SEC-64).

PURE.   Reads: what it was given.               Calls: certificates, credentials, `cryptography`.
Never:  installs anything, or accepts a certificate of somebody who is not known by another one.

A neighbour that has logged in with a certificate of its principal shows further ones. Each is
signed by its own key, over both ends of the connection, so that nobody can have the certificate of
somebody else installed as his.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from brokerd.clock import SECOND, Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import InstanceId
from brokerd.security.certificates import (
    DAYS,
    REFUSALS,
    Certificate,
    read_certificate,
    why_not_valid,
)
from brokerd.security.credentials import Credentials, Installed, Purpose
from brokerd.security.dialog_certificates import PrivateKeys, read_dialog_certificate

MOST_KEPT: Final = 4
"""Most certificates that one peer may have for one purpose by sending them."""
LONGEST: Final = (DAYS + 2) * 24 * 3600 * SECOND
"""Longest time for which a certificate that was sent may be valid: a thief of a private key could
otherwise install one that never ends (SEC-65)."""
_SIGNED: Final = b"brokerd shown certificate\0"


class Ends(msgspec.Struct, frozen=True):
    """The two ends of the connection over which a certificate is shown.

    Their certificates are in it so that somebody between two others, with a connection to each,
    cannot pass a proof on as his."""

    sender: InstanceId
    receiver: InstanceId
    sender_certificate: bytes
    """Id of the certificate that the sender has logged in with."""
    receiver_certificate: bytes


class Offered(msgspec.Struct, frozen=True):
    """A certificate that a neighbour has shown, parsed and proven."""

    purpose: Purpose
    certificate: Certificate


class Changes(msgspec.Struct, frozen=True):
    """The changes that a list of certificates makes."""

    new: tuple[Offered, ...] = ()
    gone: tuple[bytes, ...] = ()
    """Ids of certificates that their owner has dropped."""
    kept: tuple[bytes, ...] = ()
    """Ids of the listed certificates that are installed afterwards."""
    refusal: str = ""
    """Why others are not installed; empty = none was refused."""


def prove(one: Installed, private_key: bytes, ends: Ends) -> bytes | None:
    """Return the signature that shows that the sender has the key of a certificate.

    None: the key is not of the kind that an instance makes."""
    if one.purpose is Purpose.DIALOG:
        key = PrivateKeys(private_key).signing
    else:
        loaded = serialization.load_der_private_key(private_key, None)
        if not isinstance(loaded, Ed25519PrivateKey):
            return None
        key = loaded
    return key.sign(_statement(one.certificate, one.purpose, ends))


def read_offered(purpose: Purpose, encoded: bytes, proof: bytes, ends: Ends) -> Offered:
    """Parse a certificate that a neighbour has shown, and check its proof.

    Raises:
        InvalidArgument: it is no certificate, or the sender has not proven to have its key.
    """
    certificate: Certificate
    if purpose is Purpose.DIALOG:
        certificate = dialog = read_dialog_certificate(encoded)
        key = Ed25519PublicKey.from_public_bytes(dialog.signing_key)
    else:
        certificate = read_certificate(encoded)
        key = _key_of(certificate)
    try:
        key.verify(proof, _statement(certificate, purpose, ends))
    except InvalidSignature:
        raise InvalidArgument("the sender has not proven to have its private key") from None
    return Offered(purpose, certificate)


def _key_of(certificate: Certificate) -> Ed25519PublicKey:
    try:
        found = x509.load_der_x509_certificate(certificate.encoded).public_key()
    except REFUSALS as error:  # a key of a kind, or with values, that the package does not know
        raise InvalidArgument(f"its key cannot be read: {error}") from error
    if not isinstance(found, Ed25519PublicKey):
        raise InvalidArgument("its key is not of the kind that an instance makes")
    return found


def compare(
    credentials: Credentials,
    principal: str,
    shown_by: bytes | None,
    offered: Iterable[Offered],
    now: Instant,
) -> Changes:
    """Return what a list changes for its principal (SEC-64, SEC-65).

    `shown_by`: id of the certificate that the neighbour has logged in with."""
    owned = credentials.owned_by(principal)
    offered = list(offered)
    listed = {one.certificate.id for one in offered}
    gone = _gone(owned, shown_by, offered)
    new: list[Offered] = []
    refusal = ""
    for one in sorted(offered, key=lambda it: it.certificate.not_before):
        known = credentials.certificates.get(one.certificate.id)
        if known is not None and known.principal == principal:
            continue
        same = [it for it in owned if it.purpose is one.purpose and it.certificate.id not in gone]
        if any(it.certificate.not_before > one.certificate.not_before for it in same):
            continue  # an older one, which was removed here: it does not come back by itself
        why = _why_refused(one, known, now)
        coming = sum(it.purpose is one.purpose for it in new)
        if not why and len(same) + coming >= MOST_KEPT:
            why = (
                f"{principal} has {MOST_KEPT} certificates for {one.purpose} there already; "
                "remove old ones there: brokerd certificate drop ID"
            )
        if why:
            refusal = why
        else:
            new.append(one)
    there = {it.certificate.id for it in owned} - set(gone)
    there |= {it.certificate.id for it in new}
    return Changes(tuple(new), gone, tuple(sorted(listed & there)), refusal)


def _gone(
    owned: list[Installed], shown_by: bytes | None, offered: list[Offered]
) -> tuple[bytes, ...]:
    """Return the ids of certificates that the owner has dropped, and that may go here.

    Of each purpose only those that are older than one that stays; and of transport only those that
    are older than the one that the neighbour has logged in with, so that the peer can log in again
    (SEC-65)."""
    listed = {one.certificate.id for one in offered}
    gone = []
    for purpose in Purpose:
        same = [one for one in owned if one.purpose is purpose]
        limit = [one for one in same if one.certificate.id in listed]
        if purpose is Purpose.TRANSPORT:
            limit = [one for one in limit if one.certificate.id == shown_by]
        newest = max((_age(one) for one in limit), default=None)
        gone += [
            one.certificate.id
            for one in same
            if newest is not None and one.certificate.id not in listed and _age(one) < newest
        ]
    return tuple(gone)


def _age(one: Installed) -> tuple[Instant, Instant]:
    return one.certificate.not_before, one.installed_at


def _why_refused(one: Offered, known: Installed | None, now: Instant) -> str:
    if known is not None:
        return f"the certificate for {one.purpose} belongs to another there"
    if why := why_not_valid(one.certificate, now):
        return why
    if one.certificate.not_after - now > LONGEST:
        return (
            f"the certificate for {one.purpose} is valid for longer than "
            f"{LONGEST // (24 * 3600 * SECOND)} days; install it there by hand: brokerd peer add"
        )
    return ""


def _statement(certificate: Certificate, purpose: Purpose, ends: Ends) -> bytes:
    fields = (*msgspec.structs.astuple(ends), purpose.value, certificate.id)
    return _SIGNED + msgspec.msgpack.encode(fields)
