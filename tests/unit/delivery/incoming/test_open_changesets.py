"""Open changesets of several brokers."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.delivery.incoming.open_changesets import OpenChangesets


@pytest.mark.rule("DLP-15", "REL-4")
def test_what_waits_for_one_broker_is_not_called_by_the_commit_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: dict[bytes, Any] = {}

    def join(self: Any, then: Any, *, urgent: bool) -> None:  # as a changeset has it
        joined[self.broker.broker_id] = then

    class Changeset:
        empty, touches_endpoints = False, True

        def __init__(self, broker: Any, _now: object) -> None:
            self.broker = broker

    Changeset.join = join  # type: ignore[attr-defined]
    monkeypatch.setattr("brokerd.delivery.incoming.open_changesets.Changeset", Changeset)
    changesets = OpenChangesets(SimpleNamespace(utc=lambda: 0))
    a, b = (SimpleNamespace(broker_id=name * 16) for name in (b"a", b"b"))
    changesets.for_broker(a)  # type: ignore[arg-type]
    changesets.for_broker(b)  # type: ignore[arg-type]
    called: list[str] = []
    changesets.finish(b.broker_id, urgent=True, then=lambda: called.append("b"))
    changesets.finish_all(urgent=True)
    joined[a.broker_id]()
    assert called == []
    joined[b.broker_id]()
    assert called == ["b"]
