"""What the section Now says, from the figures that it is given (MON-46)."""

import re
from typing import Any

import pytest

from brokerd.clock import SECOND, Instant
from brokerd.http.page import now

AT = Instant(1_700_000_000 * SECOND)
BARE: dict[str, Any] = {
    "brokers": ["main"], "as_of_at": AT, "rates": {}, "samples": [], "queues": 3,
    "queues_with_messages": 1, "queues_ill": 0, "ready": 2, "parked": 0, "oldest_ready_at": None,
    "worst": [], "findings": [], "findings_total": 0, "left_out": [], "diagnosed_at": AT,
    "state": "ready", "version": "1", "started_at": AT, "clients": 1, "peers": 0, "dialogs": {},
    "readers": 0, "destinations": [], "waiting": 0, "stores": [], "certificates": [],
}  # fmt: skip


def said(**more: Any) -> str:
    return re.sub(r"<[^>]*>", "", str(now.draw(BARE | more, {}, AT)))


@pytest.mark.rule("MON-116")
def test_all_is_well_only_if_no_queue_contradicts_it() -> None:
    earlier = Instant(AT - 30 * SECOND)
    assert "all is well" in said()
    assert "all is well" in said(diagnosed_at=earlier)
    assert "all is well" in said(queues_ill=2)  # the diagnosis knows them
    text = said(queues_ill=2, diagnosed_at=earlier)
    assert "all is well" not in text
    assert "the doctor found nothing wrong 30s ago; 2 queues need somebody now" in text
