"""The checks of a broker on arriving messages, with the code of each refusal. PURE.

Reads: the catalog.      Calls: nothing.
Never: changes anything. The same checks serve direct delivery and the network (SND-16).

The rules are DLP-40, DLP-41 and OBJ-29.
"""

from collections.abc import Callable, Mapping

from brokerd.clock import Instant
from brokerd.errors import SchemaValidationFailed, ValidationFailed
from brokerd.model import SYSTEM_TYPES, Contract, MessageType, Service, Validation
from brokerd.objects.validation import problem
from brokerd.protocol import dialog

Judge = Callable[[MessageType, bytes | None], str]
"""Returns why a body does not fit its type; empty = it fits."""
Refusal = tuple[int, str]
"""Negative code (DLP-42) and description, as reported to the sender."""

CONTRACT_UNKNOWN = -8425
CONTRACT_REFUSED = -8408
TYPE_UNKNOWN = -8428
TYPE_NOT_IN_CONTRACT = -8498
WRONG_FROM_INITIATOR = -8457
WRONG_FROM_TARGET = -8437
INVALID_BODY = -8430
REFUSED_BY_SCHEMA = -9615
"""The code for the sender after a schema violation; the receiver's Error has `AGAINST_SCHEMA`."""
AGAINST_SCHEMA = -9616
TOO_LARGE = -8459
SERVICE_MISSING = -8490
LIFETIME = -8489

_BLIND = frozenset({Validation.NONE, Validation.EMPTY})
"""Kinds of validation that only test whether a body exists."""


class CatalogIndex:
    """A broker's objects by name."""

    def __init__(
        self,
        *,
        message_types: Mapping[str, MessageType],
        contracts: Mapping[str, Contract],
        services: Mapping[str, Service],
    ) -> None:
        self.message_types = message_types
        self.contracts = contracts
        self.services = services


def refuse_dialog(
    catalog: CatalogIndex,
    *,
    service: str,
    contract: str,
    message_type: str,
    body: bytes | None,
    expires_at: Instant,
    now: Instant,
    whole: bool = True,
    judge: Judge = problem,
) -> Refusal | None:
    """Return why message 0 cannot open a dialog here; None = it can.

    The order of the checks is that of DLP-40. A body that is not `whole` yet is checked when it is
    complete."""
    target = catalog.services.get(service)
    if target is None:
        return SERVICE_MISSING, f"service {service!r} is not in this broker"
    terms = catalog.contracts.get(contract)
    if terms is None:
        return CONTRACT_UNKNOWN, f"contract {contract!r} is not known here"
    if contract not in target.contracts:
        return CONTRACT_REFUSED, f"service {service!r} does not accept contract {contract!r}"
    refusal = refuse_message(
        terms,
        message_type,
        body,
        known=catalog.message_types,
        from_initiator=True,
        whole=whole,
        judge=judge,
    )
    if refusal is None and expires_at <= now:
        return LIFETIME, "the dialog's lifetime is over"
    return refusal


def looks_at_the_body(kind: MessageType) -> bool:
    """Return whether the content of a body decides if a message of this type is refused."""
    return kind.validation not in _BLIND


def refuse_message(
    contract: Contract,
    message_type: str,
    body: bytes | None,
    *,
    known: Mapping[str, MessageType],
    from_initiator: bool,
    whole: bool = True,
    judge: Judge = problem,
) -> Refusal | None:
    """Return why a message cannot be enqueued (OBJ-18, OBJ-29); None = it can."""
    kind = known.get(message_type)
    if kind is None or message_type in SYSTEM_TYPES:
        return TYPE_UNKNOWN, f"message type {message_type!r} is not known here"
    if not contract.allows(message_type, initiator=from_initiator):
        if message_type not in contract.types:
            text = f"message type {message_type!r} is not in contract {contract.name!r}"
            return TYPE_NOT_IN_CONTRACT, text
        text = f"message type {message_type!r} is not for this side to send"
        return (WRONG_FROM_INITIATOR if from_initiator else WRONG_FROM_TARGET), text
    if kind.validation is Validation.NONE or not whole:
        return None
    why = judge(kind, body)
    if not why:
        return None
    code = REFUSED_BY_SCHEMA if kind.validation.has_schema else INVALID_BODY
    return code, f"a message of type {message_type!r} was refused: {why}"


def needs_whole(known: Mapping[str, MessageType], message_type: str) -> bool:
    """Return whether the fragments of a message have to be joined before it can be checked."""
    kind = known.get(message_type)
    return kind is not None and kind.validation is not Validation.NONE


def struck(refusal: Refusal) -> Refusal:
    """Return the Error for the receiver's own queue that matches the sender's refusal (DLG-43)."""
    code, text = refusal
    return (AGAINST_SCHEMA if code == REFUSED_BY_SCHEMA else code), text


_CODE_FOR_PEER = {AGAINST_SCHEMA: REFUSED_BY_SCHEMA, dialog.RESTORED: dialog.PEER_RESTORED}


def code_for_peer(code: int) -> int:
    """Return the code reported to the peer if an endpoint fails with `code` (DLG-43, MAN-5)."""
    return _CODE_FOR_PEER.get(code, code)


def check_before_sending(kind: MessageType, body: bytes | None, judge: Judge = problem) -> None:
    """Check a body by the sender's own definition, as the type requires (PBT-14).

    Raises:
        ValidationFailed: the body does not fit; `SchemaValidationFailed` if it violates a schema.
    """
    why = judge(kind, body)
    if why:
        error = SchemaValidationFailed if kind.validation.has_schema else ValidationFailed
        raise error(f"a body of message type {kind.name!r} does not fit: {why}")
