"""What is refused on arrival, with which code, and what each side is told."""

from typing import Any

import pytest

from brokerd.broker import checks
from brokerd.clock import Instant
from brokerd.ids import ServiceKey
from brokerd.model import Contract, MessageType, SentBy, Service, Validation

KNOWN = {
    "Ask": MessageType("Ask"),
    "Answer": MessageType("Answer"),
    "Stray": MessageType("Stray"),
    "Empty": MessageType("Empty", Validation.EMPTY),
    "Json": MessageType("Json", Validation.WELL_FORMED_JSON),
    "Exact": MessageType("Exact", Validation.VALID_JSON, schema='{"type": "object"}'),
}
TERMS = Contract(
    "c",
    {
        "Ask": SentBy.INITIATOR,
        "Answer": SentBy.TARGET,
        "Empty": SentBy.ANY,
        "Json": SentBy.ANY,
        "Exact": SentBy.ANY,
        "Forgotten": SentBy.ANY,
    },
)


def refuse(
    message_type: str, body: bytes | None = None, *, initiator: bool = True, whole: bool = True
) -> int | None:
    refusal = checks.refuse_message(
        TERMS, message_type, body, known=KNOWN, from_initiator=initiator, whole=whole
    )
    return None if refusal is None else refusal[0]


@pytest.mark.rule("OBJ-29", "OBJ-18", "ERR-8430", "ERR-9616")
@pytest.mark.parametrize(
    ("message_type", "body", "initiator", "code"),
    [
        ("Ask", b"x", True, None),
        ("Answer", b"x", False, None),
        ("Unheard", b"x", True, -8428),
        ("Forgotten", b"x", True, -8428),
        ("urn:brokerd:EndDialog", None, True, -8428),
        ("Stray", b"x", True, -8498),
        ("Answer", b"x", True, -8457),
        ("Ask", b"x", False, -8437),
        ("Empty", None, True, None),
        ("Empty", b"x", True, -8430),
        ("Json", b"{}", True, None),
        ("Json", b"{", True, -8430),
        ("Exact", b"{}", True, None),
        ("Exact", b"[]", True, -9615),
        ("Exact", b"{", True, -9615),
    ],
)
def test_the_code_names_what_the_receivers_copy_says(
    message_type: str, body: bytes | None, initiator: bool, code: int | None
) -> None:
    assert refuse(message_type, body, initiator=initiator) == code


@pytest.mark.rule("DLP-40", "DLP-41", "DSP-4")
def test_of_all_that_is_wrong_with_message_0_the_first_is_told() -> None:
    """Each step mends what was told at the one before."""
    given: dict[str, Any] = {
        "service": "none",
        "contract": "none",
        "message_type": "none",
        "body": b"{",
        "expires_at": Instant(1),
    }
    offered = {"s": Service(ServiceKey(1), "s", "q", frozenset({"c"}))}
    contracts = {"c": TERMS, "other": Contract("other", {})}
    catalog = checks.CatalogIndex(message_types=KNOWN, contracts=contracts, services=offered)
    codes: list[int | None] = []
    for field, better in (
        ("service", "s"),
        ("contract", "other"),
        ("contract", "c"),
        ("message_type", "Stray"),
        ("message_type", "Answer"),
        ("message_type", "Json"),
        ("body", b"{}"),
        ("expires_at", Instant(2)),
    ):
        refusal = checks.refuse_dialog(catalog, now=Instant(1), **given)
        codes.append(None if refusal is None else refusal[0])
        given[field] = better
    assert codes == [-8490, -8425, -8408, -8428, -8498, -8457, -8430, -8489]
    assert checks.refuse_dialog(catalog, now=Instant(1), **given) is None


@pytest.mark.rule("OBJ-18")
def test_a_part_of_a_body_is_not_looked_into() -> None:
    assert refuse("Json", b"{", whole=False) is None
    assert refuse("Empty", b"x", whole=False) is None
    assert refuse("Stray", b"x", whole=False) == -8498


@pytest.mark.rule("DLG-43", "ERR-9616")
def test_of_a_violated_schema_each_side_has_a_code_of_its_own() -> None:
    assert checks.struck((-9615, "why")) == (-9616, "why")
    assert checks.struck((-8430, "why")) == (-8430, "why")
    assert (checks.code_for_peer(-9616), checks.code_for_peer(-8430)) == (-9615, -8430)
