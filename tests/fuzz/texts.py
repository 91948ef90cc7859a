"""Texts from others, each parser a target: addresses, object files, bodies, certificates, grants
(BI-F, OBJ-17).

An input is the text.
"""

import tomllib
from collections.abc import Callable, Iterator

from brokerd.clock import Instant
from brokerd.errors import BrokerError
from brokerd.model import Validation
from brokerd.objects import validation
from brokerd.objects.declarations import parse
from brokerd.objects.validation import GaveUp, Unfit
from brokerd.routing.address import address_in_name, normalise
from brokerd.security.certificates import make_certificate, read_certificate
from brokerd.security.grants import parse_grant

_well_formed_json = validation.check_of(Validation.WELL_FORMED_JSON, None)
_well_formed_xml = validation.check_of(Validation.WELL_FORMED_XML, None)
_LONGEST_REFUSAL = 16_384
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


def _certificate(data: bytes) -> None:
    found = read_certificate(data)
    assert read_certificate(found.encoded) == found


def _grant(data: bytes) -> None:
    parse_grant(data.decode("utf-8", "replace"))


PARSERS: dict[str, Callable[[bytes], None]] = {
    "address": _address,
    "objects": _objects,
    "json": _json,
    "xml": _xml,
    "certificate": _certificate,
    "grant": _grant,
}
_VALID: dict[str, list[bytes]] = {
    "address": [b"TCP://far:4022", b"tcp://[::1]:80/", b"LOCAL"],
    "objects": [_FILE],
    "json": [b'{"a": [1, 2.5e3, true, null, "\\u00e9"]}'],
    "xml": [b'<?xml version="1.0" encoding="utf-8"?><a b="c">d<!-- e --><f/></a>'],
    "grant": [b"send on warehouse to alice", b"receive on main/orders to public"],
}


def parse_one(name: str, data: bytes) -> None:
    """Parse a text; only an error that names the fault may refuse it."""
    refusal = ""
    try:
        PARSERS[name](data)
    except (BrokerError, Unfit, GaveUp, ValueError) as refused:
        refusal = str(refused)
    assert len(refusal) < _LONGEST_REFUSAL, "a refusal repeats what it refuses"


def corpus(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield valid texts for a parser, with their names."""
    texts = _VALID.get(name, [])
    if name == "certificate":
        made, _ = make_certificate("west", now=Instant(1_700_000_000_000_000))
        texts = [made.encoded, made.pem.encode()]
    for number, text in enumerate(texts):
        yield f"{name}-{number}", text
