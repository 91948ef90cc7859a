"""Questions about dialogs in TRACE frames."""

from typing import Any

import msgspec
import pytest

from brokerd.protocol.inquiry import (
    LATEST,
    MOST,
    Incident,
    Inquiry,
    SideReport,
    Waiting,
    fields_of_inquiry,
    inquiry_of,
)
from brokerd.protocol.trace import Leg, Trace, fields_of, trace_of
from brokerd.protocol.wire import PLAIN_LIMIT, pack_payload, unpack_payload

ID = bytes(range(16))
MOST_SAID = SideReport(
    now=LATEST,
    instance="ü" * 256,
    status_key="k" * 64,
    destination="d" * 512,
    waiting=tuple(Waiting(number, LATEST, 9, 3) for number in range(MOST)),
    queued=tuple(Waiting(number, LATEST) for number in range(MOST)),
    incidents=tuple(Incident(LATEST, "w" * 64, -(2**62)) for _ in range(MOST)),
)


def trace(inquiry: Inquiry | None) -> Trace:
    return Trace(ID, Leg.OUT, "urn:to", b"", "urn:from", ID, 10, (), inquiry)


@pytest.mark.rule("MON-55")
@pytest.mark.parametrize("report", [None, SideReport(now=1, is_known=False), MOST_SAID])
def test_an_inquiry_survives_the_wire(report: SideReport | None) -> None:
    sent = trace(Inquiry(ID, True, report))
    packed = pack_payload(fields_of(sent))
    assert len(packed) < PLAIN_LIMIT
    assert trace_of(unpack_payload(packed)) == sent


@pytest.mark.rule("MON-55")
def test_an_older_daemon_sees_a_plain_trace() -> None:
    fields = fields_of(trace(Inquiry(ID, True)))
    assert fields[:8] == fields_of(trace(None))
    assert len(fields_of(trace(None))) == 8


@pytest.mark.rule("MON-55")
@pytest.mark.parametrize(
    "fields",
    [
        7,
        (),
        (b"short", True, None),
        ("text", True, None),
        (ID, 1, None),
        (ID, True, 7),
        (ID, True, {"now": -1}),
        (ID, True, {}),
        (ID, True, {"now": LATEST + 1}),
        (ID, True, {"now": 1, "queued": ((1, LATEST + 1, 0, 0),)}),
        (ID, True, {"now": 1, "state": "long"}),
        (ID, True, {"now": 1, "status_key": "k" * 65}),
        (ID, True, {"now": 1, "waiting": ((1, 1, 1, 1),) * (MOST + 1)}),
        (ID, True, {"now": 1, "sent": 2**63}),
        (ID, True, {"now": 1, "incidents": ((1, "w" * 65, 1),)}),
    ],
)
def test_a_malformed_inquiry_is_refused(fields: Any) -> None:
    with pytest.raises((ValueError, IndexError)):
        inquiry_of(fields)


@pytest.mark.rule("MON-55")
def test_a_report_has_no_place_for_content() -> None:
    """Forwarders read a TRACE; a secured dialog hides its content and errors from them."""
    words = {field.name for field in msgspec.structs.fields(SideReport)}
    assert not {one for one in words if "text" in one or "body" in one or "type" in one}
    assert fields_of_inquiry(Inquiry(ID, False))[2] is None
