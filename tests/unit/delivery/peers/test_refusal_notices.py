"""Refused senders: how many are remembered, whatever peers send to queues that are off."""

from typing import Any

import pytest

from brokerd.delivery.peers import refusal_notices
from brokerd.delivery.peers.refusal_notices import RESUME, NoticeOptions, RefusalNotices
from brokerd.ids import ConversationId, InstanceId
from brokerd.protocol.neighbour import Notice
from brokerd.routing.reasons import Reason
from tests.unit.delivery.passing import fragment

PEER = InstanceId(b"p" * 16)


class Queue:
    """A queue that is off, or on again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: Any = self
        self.enqueue_enabled = False

    def is_at_limit(self) -> bool:
        return False


class Stand:
    """A broker of many queues, and all that is sent to a neighbour."""

    def __init__(self, queues: int) -> None:
        self.name = "main"
        self.enabled, self.is_full = True, False
        self.queues = {f"q{at}": Queue(f"q{at}") for at in range(queues)}
        self.sent: list[Notice] = []
        self.notices = RefusalNotices(
            brokers={"main": self},  # type: ignore[dict-item]
            clock=self,  # type: ignore[arg-type]
            options=NoticeOptions(),
            send=lambda _peer, notice: self.sent.append(notice),
            resume=lambda _broker, _out: None,
        )

    def monotonic(self) -> float:
        return 1000.0

    def refuse(self, queue: str, dialog: int) -> None:
        item = fragment(0, conversation_id=ConversationId(dialog.to_bytes(16, "big")))
        self.notices.refuse_for(
            self,  # type: ignore[arg-type]
            self.queues[queue],  # type: ignore[arg-type]
            item,
            PEER,
            Reason.PEER_QUEUE_DISABLED,
        )

    def resumed(self) -> int:
        """Switch all queues on; return how many senders are told to go on."""
        for queue in self.queues.values():
            queue.enqueue_enabled = True
        self.sent.clear()
        self.notices.release(self)  # type: ignore[arg-type]
        return sum(notice.reason == RESUME for notice in self.sent)


@pytest.mark.rule("REL-25", "SX-12", "DSP-11")
def test_refused_senders_are_bounded_over_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_notices, "MOST", 50)
    stand = Stand(queues=20)
    for dialog in range(2000):
        stand.refuse(f"q{dialog % 20}", dialog)
    assert stand.resumed() == 50
    assert stand.resumed() == 0


@pytest.mark.rule("REL-25", "REL-23")
def test_a_flooded_queue_does_not_crowd_out_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_notices, "MOST", 50)
    stand = Stand(queues=2)
    for dialog in range(5):
        stand.refuse("q0", dialog)
    for dialog in range(100, 1000):
        stand.refuse("q1", dialog)
    del stand.queues["q1"]
    assert stand.resumed() == 5
    for dialog in range(1000, 2000):  # what was released counts no more
        stand.refuse("q0", dialog)
    assert stand.resumed() == 50
