"""A warning of lost messages is a finding of the simulation where every message arrived (PBT-4)."""

import pytest

from brokerd.testing.history import History, Kind
from tests.engine.simulation.verdict import false_alarms


def played(*, received: int, committed: bool = True) -> History:
    """One dialog whose initiator has sent two messages."""
    history = History(lambda: 0.0)
    for number in range(2):
        uid, dialog, side = f"m{number}", "d", "initiator"
        history.add("send", Kind.INVOKE, client="a", tx=1, uid=uid, dialog=dialog, side=side)
    history.add("commit", Kind.OK if committed else Kind.FAIL, client="a", tx=1)
    for number in range(received):
        history.add("receive", Kind.OK, client="b", tx=2, uid=f"m{number}", dialog="d")
    return history


@pytest.mark.rule("PBT-4", "DLG-T31")
@pytest.mark.parametrize(
    ("history", "warned", "count"),
    [
        pytest.param(played(received=2), ("d", "initiator"), 1, id="all arrived"),
        pytest.param(played(received=1), ("d", "initiator"), 0, id="one is lost"),
        pytest.param(played(received=2), ("d", "target"), 0, id="the other side sent nothing"),
        pytest.param(played(received=2), (None, "initiator"), 0, id="a dialog nobody knows"),
        pytest.param(played(received=0, committed=False), ("d", "initiator"), 0, id="not sent"),
    ],
)
def test_a_warning_is_false_where_all_messages_of_that_side_arrived(history, warned, count):
    assert len(false_alarms(history.events, [warned], ())) == count
