"""What the judge of a chaos run holds for a fault."""

from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from brokerd.testing.evidence import Index, Outcome
from brokerd.testing.history import Event, Kind
from tests.chaos.judge import SLACK, ends, judge_logins
from tests.chaos.stream import Dialog, Ends

INITIATOR = "initiator"


@pytest.mark.parametrize(
    ("told", "is_fault"),
    [
        ([Outcome.COMMITTED], False),
        ([Outcome.FAILED, Outcome.COMMITTED], False),
        ([Outcome.UNKNOWN], False),  # the client was killed before its commit was answered
        ([Outcome.COMMITTED, Outcome.UNKNOWN], False),
        ([], True),
        ([Outcome.FAILED], True),
        ([Outcome.COMMITTED, Outcome.COMMITTED], True),
    ],
)
def test_the_other_side_is_told_once_of_an_end(told: list[Outcome], is_fault: bool) -> None:
    events, line = [], count()
    for tx, outcome in enumerate(told):
        for op, kind in (("receive", Kind.OK), ("ended", Kind.OK), ("commit", Kind.INVOKE)):
            events.append(happened(next(line), op, kind, tx))
        if outcome is Outcome.COMMITTED:
            events.append(happened(next(line), "commit", Kind.OK, tx))
        elif outcome is Outcome.FAILED:
            events.append(happened(next(line), "commit", Kind.FAIL, tx))
    stream = SimpleNamespace(dialogs=[Dialog(messages=1, ends=Ends.LEDGER)])
    assert bool(list(ends(Index(events, ()), stream))) is is_fault  # type: ignore[arg-type]


def happened(number: int, op: str, kind: Kind, tx: int) -> Event:
    event = Event(i=number, t=number, op=op, kind=kind, client="client0", tx=tx)
    if op != "ended":
        return event
    return msgspec.structs.replace(event, dialog="d0", side=INITIATOR)


@pytest.mark.parametrize(
    ("subclass", "at", "is_fault"),
    [
        ("success", 50, False),
        ("authentication_failure", 50, True),
        ("authorization_failure", 50, True),
        ("negotiate_failure", 50, False),  # what a way that is torn looks like
        ("authentication_failure", 100, False),
        ("authentication_failure", 201 + SLACK, True),
    ],
)
def test_a_login_is_refused_only_while_somebody_is_revoked(
    tmp_path: Path, subclass: str, at: float, is_fault: bool
) -> None:
    line = {
        "time": datetime.fromtimestamp(at, UTC).isoformat(),
        "event": "audit.broker_login",
        "subclass": subclass,
    }
    log = tmp_path / "east.log"
    log.write_bytes(msgspec.json.encode(line) + b'\n{"time')
    assert bool(judge_logins(log, [(100.0, 200.0)])) is is_fault
