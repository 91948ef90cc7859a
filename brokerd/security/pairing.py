"""Pairing: a code that is shown once lets two instances prove themselves to each other (SEC-60).

PURE.   Reads: what it was given.               Calls: `hmac`, security.credentials.
Never:  opens a connection, or installs anything; shows the secret of a code in a `repr` (SX-9).

The code holds the address of the inviting instance, a fingerprint of its transport certificate and
a random secret. The joining instance compares the fingerprint with the certificate that proved
itself in the TLS handshake; it proves by an HMAC over both certificates that it has the code. The
secret has 128 bits, so that nobody can guess it from what was sent, and no password-authenticated
exchange is needed.
"""

import base64
import hashlib
import hmac
import ipaddress
from enum import StrEnum
from typing import Final

from msgspec import Struct

from brokerd.errors import InvalidArgument
from brokerd.ids import InstanceId
from brokerd.security.certificates import Certificate
from brokerd.security.credentials import Credentials, Kind, Principal, Purpose, principal_name

SECRET_BYTES: Final = 16
FINGERPRINT_BYTES: Final = 16
LIFETIME: Final = 600.0
"""Seconds after which a code that was not used is void."""
REMEMBERED: Final = 2 * LIFETIME
"""Seconds for which an instance says what became of a code, to those that prove to have it."""
MOST_WRONG: Final = 5
"""Number of wrong proofs after which a code is void."""

_FORM: Final = 0x10
"""First byte of a code, without the kind of its host; another form would have another."""
_NAME, _IPV4, _IPV6 = 0, 4, 6
_SIZES: Final = {_IPV4: 4, _IPV6: 16}
"""Bytes of an address of each kind."""
_CHECK_BYTES: Final = 2
_GROUP: Final = 5
_MOST_TEXT: Final = 1024
_RFC_4648: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""The letters of a code: those of base 32 that are not mistaken for another when read aloud."""
_WRITE: Final = str.maketrans(_RFC_4648, _LETTERS)
_READ: Final = str.maketrans(_LETTERS + "OILU", _RFC_4648 + "ABB!", "- \t\r\n")
_HINT: Final = "copy the code again, as brokerd peer pair prints it on the other machine"


class Code(Struct, frozen=True):
    """The content of a pairing code."""

    host: str
    """Host at which the inviting instance listens; an IPv6 literal without its brackets."""
    port: int
    fingerprint: bytes
    """First bytes of the SHA-256 of its transport certificate."""
    secret: bytes

    def __repr__(self) -> str:
        return f"Code({self.host!r}, {self.port})"

    @property
    def text(self) -> str:
        """The code as people copy it, in groups of five letters."""
        body = _host_bytes(self.host) + self.port.to_bytes(2) + self.fingerprint + self.secret
        letters = base64.b32encode(body + _check(body)).decode().rstrip("=").translate(_WRITE)
        return "-".join(letters[at : at + _GROUP] for at in range(0, len(letters), _GROUP))

    def is_of(self, certificate: Certificate) -> bool:
        """Return whether the code was made by the owner of this transport certificate."""
        return hmac.compare_digest(self.fingerprint, fingerprint_of(certificate))


def read_code(text: str) -> Code:
    """Return what a code says; spaces, hyphens and case do not matter.

    Raises:
        InvalidArgument: the text is no code, or a letter of it is wrong or missing.
    """
    letters = text[:_MOST_TEXT].upper().translate(_READ)
    try:
        padded = letters + "=" * (-len(letters) % 8)
        body = base64.b32decode(padded)
    except ValueError:
        raise InvalidArgument(
            "this is no pairing code: it has other characters, or too few", hint=_HINT
        ) from None
    if base64.b32encode(body).decode().rstrip("=") != letters or len(text) > _MOST_TEXT:
        raise _mistyped()
    body, check = body[:-_CHECK_BYTES], body[-_CHECK_BYTES:]
    if not hmac.compare_digest(check, _check(body)):
        raise _mistyped()
    return _parse(body)


def fingerprint_of(certificate: Certificate) -> bytes:
    """Return the fingerprint of a transport certificate that a code contains."""
    return certificate.id[:FINGERPRINT_BYTES]


class Side(StrEnum):
    """The sides of a pairing."""

    INVITING = "inviting"
    """The instance that has shown the code."""
    JOINING = "joining"
    """The instance that was given the code."""


def prove(secret: bytes, side: Side, *, inviting: Certificate, joining: Certificate) -> bytes:
    """Return the proof that a side has the code, bound to both transport certificates."""
    said = b"brokerd pairing 1 " + side.encode() + inviting.id + joining.id
    return hmac.digest(secret, said, hashlib.sha256)


def is_proof(
    proof: bytes, secret: bytes, side: Side, *, inviting: Certificate, joining: Certificate
) -> bool:
    """Return whether a proof is right, in a time that does not depend on it."""
    return hmac.compare_digest(proof, prove(secret, side, inviting=inviting, joining=joining))


class Phase(StrEnum):
    """The life of a code."""

    WAITING = "waiting"
    IN_USE = "in_use"
    """A far end has proven that it has the code, and both sides install what they need."""
    USED = "used"
    EXPIRED = "expired"
    GUESSED = "guessed"
    """There were too many wrong proofs."""
    CANCELLED = "cancelled"


WRONG: Final = "the code is wrong: it is another than the one that the other machine has shown last"
VOID: Final[dict[Phase, str]] = {
    Phase.IN_USE: "the code is being used at this moment",
    Phase.USED: "the code was used already",
    Phase.EXPIRED: "the code has expired, 10 minutes after it was shown",
    Phase.GUESSED: "the code is void after five wrong ones",
    Phase.CANCELLED: "the code was cancelled, or another was shown since",
}
"""Sentences for a far end that has a code which cannot be used, by the phase of the code."""
ANEW: Final = "show a new code on the other machine: brokerd peer pair"


class Invitation:
    """A code that this instance has shown. `now` is monotonic seconds everywhere."""

    def __init__(self, code: Code, certificate: Certificate, now: float) -> None:
        """Begin the life of a code. `certificate`: the own one, of which it has a fingerprint."""
        self.code = code
        self.certificate = certificate
        self.wrong = 0
        """Number of wrong proofs."""
        self._phase = Phase.WAITING
        self._until = now + LIFETIME
        self._known_until = now + REMEMBERED

    def phase(self, now: float) -> Phase:
        """Return where the code is in its life."""
        if self._phase is Phase.WAITING and now >= self._until:
            self._phase = Phase.EXPIRED
        return self._phase

    def is_remembered(self, now: float) -> bool:
        """Return whether a far end that has the code is still told what became of it."""
        return now < self._known_until

    def is_known_by(self, proof: bytes, joining: Certificate) -> bool:
        """Return whether a far end has proven that it has this code, whether usable or not."""
        secret, inviting = self.code.secret, self.certificate
        return is_proof(proof, secret, Side.JOINING, inviting=inviting, joining=joining)

    def seconds_left(self, now: float) -> float:
        """Return the seconds for which the code may still be used."""
        return max(0.0, self._until - now)

    def attempt(self, proof: bytes, joining: Certificate, now: float) -> bytes | None:
        """Return this side's own proof for a right one, and let nobody else use the code.

        None = the code cannot be used, or the proof is wrong, which is counted."""
        if self.phase(now) is not Phase.WAITING:
            return None
        secret, inviting = self.code.secret, self.certificate
        if not self.is_known_by(proof, joining):
            self.wrong += 1
            if self.wrong >= MOST_WRONG:
                self._phase = Phase.GUESSED
            return None
        self._phase = Phase.IN_USE
        return prove(secret, Side.INVITING, inviting=inviting, joining=joining)

    def succeeded(self) -> None:
        """Note that both sides are paired; the code is void."""
        self._phase = Phase.USED

    def failed(self) -> None:
        """Note that a pairing broke off; the code may be tried again in the time it has left."""
        if self._phase is Phase.IN_USE:
            self._phase = Phase.WAITING

    def cancel(self) -> None:
        """Make the code void."""
        if self._phase in (Phase.WAITING, Phase.IN_USE):
            self._phase = Phase.CANCELLED


class Acquaintance(Struct, frozen=True, kw_only=True):
    """The description that the far end of a pairing gives of itself."""

    name: str
    """The name that it goes by at home."""
    instance_id: InstanceId
    address: str
    """Address, in normal form, at which it listens."""
    certificate: Certificate
    """Transport certificate of the far end."""


def choose_principal(
    credentials: Credentials, one: Acquaintance, name: str | None
) -> tuple[str, Principal | None]:
    """Return the name of the principal for a far end, and the principal if it exists (SEC-61).

    `name`: chosen by the administrator of this instance, without its kind; None = the name under
    which the far end is known, or that it says. Without a chosen name nobody can take the place of
    a principal, unless by a certificate that is installed for it.

    Raises:
        InvalidArgument: the name has another form, or belongs to somebody else.
    """
    bound = credentials.bound_to(one.instance_id)
    if name is not None:
        full = principal_name(Kind.PEER, name)
    else:
        full = bound.name if bound is not None else principal_name(Kind.PEER, one.name)
    present = credentials.principals.get(full)
    if bound is not None and bound.name != full:
        raise InvalidArgument(
            f"the other machine is {bound.name} here, and not {full}",
            hint=f"leave out --name, or first: brokerd peer revoke {_short(bound.name)}",
        )
    installed = credentials.certificates.get(one.certificate.id)
    owner = None if installed is None else installed.principal
    if installed is not None and owner != full:
        raise InvalidArgument(
            f"the certificate of the other machine is installed here for {owner or 'this instance'}"
        )
    if present is not None and name is None and owner != full:
        raise InvalidArgument(
            f"the other machine says that it is {full}, which has another certificate here",
            hint=f"if it is that machine, say so: --name {_short(full)}; "
            "if not, choose another name for it",
        )
    server = credentials.server_of(one.address)
    if server is not None and server.name != full:
        raise InvalidArgument(
            f"the address {one.address} of the other machine is that of {server.name} here",
            hint=f"give another --own-address there, or first: brokerd peer revoke "
            f"{_short(server.name)}",
        )
    return full, present


def outdated(credentials: Credentials, principal: str, kept: bytes) -> tuple[bytes, ...]:
    """Return the transport certificates of a principal that pairing anew replaces (SEC-61).

    `kept`: the identifier of the new one."""
    return tuple(
        key
        for key, one in credentials.certificates.items()
        if one.principal == principal and one.purpose is Purpose.TRANSPORT and key != kept
    )


def _short(principal: str) -> str:
    return principal.partition(":")[2]


def _check(body: bytes) -> bytes:
    return hashlib.sha256(b"brokerd code" + body).digest()[:_CHECK_BYTES]


def _mistyped() -> InvalidArgument:
    return InvalidArgument(
        "the pairing code is mistyped: a letter is wrong, missing or too many", hint=_HINT
    )


def _host_bytes(host: str) -> bytes:
    try:
        literal = ipaddress.ip_address(host).packed
    except ValueError:
        name = host.encode("ascii")
        return bytes((_FORM | _NAME, len(name))) + name
    return bytes((_FORM | (_IPV4 if len(literal) == _SIZES[_IPV4] else _IPV6),)) + literal


def _parse(body: bytes) -> Code:
    """Return the code in bytes whose check has succeeded; they are of another form at worst."""
    kind, rest = body[:1], body[1:]
    size = next((size for one, size in _SIZES.items() if kind == bytes((_FORM | one,))), 0)
    named = kind == bytes((_FORM | _NAME,))
    if named:
        size, rest = rest[0] if rest else 0, rest[1:]
    where, rest = rest[:size], rest[size:]
    if not size or len(rest) != 2 + FINGERPRINT_BYTES + SECRET_BYTES:
        raise _newer()
    host = where.decode("ascii", "replace") if named else str(ipaddress.ip_address(where))
    port, rest = int.from_bytes(rest[:2]), rest[2:]
    return Code(host, port, rest[:FINGERPRINT_BYTES], rest[FINGERPRINT_BYTES:])


def _newer() -> InvalidArgument:
    return InvalidArgument(
        "this pairing code has a form that is not known here",
        hint="use the same version of brokerd on both machines",
    )
