"""Bytes and texts from others, each parser a target of its own (BI-F, OBJ-17, SX-2).

Addresses, object files, bodies, grants; certificates, pairing frames and codes, security headers;
scripts in T-SQL.

An input is the text.
"""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from brokerd.clock import Instant
from brokerd.errors import BrokerError, InvalidArgument
from brokerd.ids import InstanceId, secret_bytes
from brokerd.model import Validation
from brokerd.objects import validation
from brokerd.objects.declarations import parse
from brokerd.objects.validation import GaveUp, Unfit
from brokerd.protocol import pairing as pairing_frames
from brokerd.protocol.frames import Kind
from brokerd.routing.address import address_in_name, normalise
from brokerd.security.certificate_files import read_certificates
from brokerd.security.certificates import make_certificate, read_certificate
from brokerd.security.credentials import Purpose
from brokerd.security.dialog_certificates import (
    PrivateKeys,
    make_dialog_certificate,
    read_dialog_certificate,
)
from brokerd.security.grants import parse_grant
from brokerd.security.key_agreement import KeyAgreement, Place, read_header
from brokerd.security.pairing import Code, read_code
from brokerd.security.rotation import Ends, read_offered
from brokerd.security.sealing import NotAuthentic, new_secrets
from brokerd.tsql.translation import translate

_well_formed_json = validation.check_of(Validation.WELL_FORMED_JSON, None)
_well_formed_xml = validation.check_of(Validation.WELL_FORMED_XML, None)
_LONGEST_REFUSAL = 16_384
_FRAME_HEAD = 5
"""Bytes of a frame before its payload."""
_SCRIPTS = Path(__file__).parent.parent / "data" / "tsql"
_FILE = b"""[broker]
name = "main"
[[message_type]]
name = "Order"
validation = "well_formed_json"
[[contract]]
name = "orders/v1"
types = { Order = "initiator" }
[[queue]]
name = "orders"
[[service]]
name = "warehouse"
queue = "orders"
contracts = ["orders/v1"]
[[route]]
name = "far"
service = "far"
address = "TCP://far:4022"
"""


def _address(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    address_in_name(text)
    normal = normalise(text)
    assert normalise(normal) == normal, "a normal form has another normal form"


def _objects(data: bytes) -> None:
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return
    parse(table)


def _json(data: bytes) -> None:
    _well_formed_json(data, lambda: None)


def _xml(data: bytes) -> None:
    _well_formed_xml(data, lambda: None)


def _shown(purpose: Purpose, data: bytes) -> None:
    """Let a neighbour show this certificate; a refusal is an `InvalidArgument` (SEC-64)."""
    ends = Ends(InstanceId(b"w" * 16), InstanceId(b"e" * 16), bytes(32), bytes(32))
    with suppress(InvalidArgument):
        read_offered(purpose, data, bytes(64), ends)


def _certificate(data: bytes) -> None:
    found = read_certificate(data)
    assert read_certificate(found.encoded) == found
    _shown(Purpose.TRANSPORT, data)


def _dialog_certificate(data: bytes) -> None:
    found = read_dialog_certificate(data)
    assert read_dialog_certificate(found.encoded) == found
    _shown(Purpose.DIALOG, data)


def _certificate_file(data: bytes) -> None:
    read_certificates(data)


def _pairing(data: bytes) -> None:
    frame = pairing_frames.decode(data)
    again = pairing_frames.encode(Kind.PAIR, frame)[_FRAME_HEAD:]
    assert pairing_frames.decode(again) == frame


def _code(data: bytes) -> None:
    code = read_code(data.decode("utf-8", "replace"))
    assert read_code(code.text) == code


def _security_header(data: bytes) -> None:
    read_header(data)


def _grant(data: bytes) -> None:
    parse_grant(data.decode("utf-8", "replace"))


def _tsql(data: bytes) -> None:
    made = translate([("a.sql", data.decode("utf-8", "surrogateescape"))])
    if made.objects:
        parse(tomllib.loads(made.objects))
    for name, text in made.handlers.items():
        compile(text, f"{name}.py", "exec")


PARSERS: dict[str, Callable[[bytes], None]] = {
    "address": _address,
    "objects": _objects,
    "json": _json,
    "xml": _xml,
    "certificate": _certificate,
    "dialog_certificate": _dialog_certificate,
    "certificate_file": _certificate_file,
    "pairing": _pairing,
    "code": _code,
    "security_header": _security_header,
    "grant": _grant,
    "tsql": _tsql,
}
_VALID: dict[str, list[bytes]] = {
    "address": [b"TCP://far:4022", b"tcp://[::1]:80/", b"LOCAL"],
    "objects": [_FILE],
    "json": [b'{"a": [1, 2.5e3, true, null, "\\u00e9"]}'],
    "xml": [b'<?xml version="1.0" encoding="utf-8"?><a b="c">d<!-- e --><f/></a>'],
    "tsql": [one.read_bytes() for one in sorted(_SCRIPTS.glob("*.sql"))],
    "grant": [b"send on warehouse to alice", b"receive on main/orders to public"],
}


def parse_one(name: str, data: bytes) -> None:
    """Parse a text; only an error that names the fault may refuse it."""
    refusal = ""
    try:
        PARSERS[name](data)
    except (BrokerError, NotAuthentic, Unfit, GaveUp, ValueError) as refused:
        refusal = str(refused)
    # A file of objects is refused with a line for each fault, and each fault takes some bytes.
    assert len(refusal) < _LONGEST_REFUSAL + 16 * len(data), "a refusal repeats what it refuses"


def corpus(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield valid texts for a parser, with their names."""
    for number, text in enumerate(_VALID.get(name, ()) or _made(name)):
        yield f"{name}-{number}", text


def _made(name: str) -> list[bytes]:
    """Return valid bytes that have to be computed."""
    now = Instant(1_700_000_000_000_000)
    made, _ = make_certificate("west", now=now)
    dialog, private = make_dialog_certificate("west", now=now)
    match name:
        case "certificate":
            return [made.encoded, made.pem.encode()]
        case "dialog_certificate":
            return [dialog.encoded, dialog.pem.encode()]
        case "certificate_file":
            return [(made.pem + dialog.pem).encode(), made.encoded, dialog.encoded]
        case "pairing":
            frames = (
                pairing_frames.Proof(pairing_frames.VERSION, made.encoded, bytes(32)),
                pairing_frames.Offer(
                    "west", InstanceId(b"w" * 16), "tcp://west:4022", dialog.encoded, ("shop",)
                ),
                pairing_frames.Done(),
                pairing_frames.Failed("no"),
            )
            return [pairing_frames.encode(Kind.PAIR, one)[_FRAME_HEAD:] for one in frames]
        case "code":
            hosts = ("west", "10.0.0.1", "fe80::1")
            return [Code(one, 4022, bytes(16), bytes(16)).text.encode() for one in hosts]
        case _:
            agreement = KeyAgreement(secret_bytes)
            secrets = new_secrets(bytes(32), bytes(16), secret_bytes)
            place = Place(bytes(16), "shop", "warehouse", bytes(16), "orders/v1")
            keys = PrivateKeys(private)
            return [
                agreement.make_header(secrets, place, sender=sender, receiver=dialog, now=now)
                for sender in (None, (dialog, keys))
            ]
