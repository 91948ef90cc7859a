"""Both sides of a dialog joined."""

import msgspec
import pytest

from brokerd.admin.timeline import join
from brokerd.clock import SECOND, show_instant
from brokerd.protocol.inquiry import LATEST, Incident, SideReport, Waiting

NOW = 1_700_000_000 * SECOND
BEGAN = NOW - 60 * SECOND
INITIATOR = SideReport(
    now=NOW, is_initiator=True, state="CO", began_at=BEGAN, state_since=BEGAN, sent=3, is_bound=True
)
TARGET = SideReport(
    now=NOW,
    is_initiator=False,
    state="CO",
    began_at=BEGAN + SECOND,
    state_since=BEGAN + SECOND,
    received=3,
    is_bound=True,
)


def told(near: SideReport, far: SideReport | None) -> list[str]:
    return [text for _, text in join(near, far, 0.01).hangs]


@pytest.mark.rule("MON-52")
def test_the_messages_of_both_directions_are_accounted_for() -> None:
    near = msgspec.structs.replace(INITIATOR, pending=1, received=1)
    far = msgspec.structs.replace(TARGET, received=2, unread=1, sent=1)
    out, back = join(near, far, 0.01).flows
    assert (out.sent, out.acknowledged, out.arrived, out.unread, out.received) == (3, 2, 2, 1, 1)
    assert (back.sent, back.acknowledged, back.arrived, back.received) == (1, 1, 1, 1)


@pytest.mark.rule("MON-52")
@pytest.mark.parametrize("is_target_near", [False, True])
def test_it_does_not_matter_which_side_asks(is_target_near: bool) -> None:
    near, far = (TARGET, INITIATOR) if is_target_near else (INITIATOR, TARGET)
    joined = join(near, far, 0.01)
    assert [flow.sender for flow in joined.flows] == ["initiator", "target"]
    assert joined.flows[0].sent == joined.flows[0].arrived == 3
    assert [(one.side, one.what) for one in joined.moments] == [
        ("initiator", "begun"),
        ("target", "arrived"),
    ]
    assert joined.hangs == ()


@pytest.mark.rule("MON-52")
def test_what_only_the_far_side_would_know_is_left_out_without_it() -> None:
    joined = join(INITIATOR, None, 3.0)
    assert joined.flows[0].arrived is None
    assert joined.flows[1].sent is None
    assert {one.side for one in joined.moments} == {"initiator"}


@pytest.mark.rule("MON-52")
def test_the_moments_of_both_sides_are_in_order_by_one_clock() -> None:
    hour = 3600 * SECOND
    near = msgspec.structs.replace(
        INITIATOR, pending=1, waiting=(Waiting(2, NOW - 10 * SECOND, 4, 1),), attempts=2,
        last_attempt_at=NOW - SECOND, next_attempt_at=NOW + SECOND, destination="tcp://far:4022",
    )  # fmt: skip
    far = msgspec.structs.replace(
        TARGET,
        now=NOW + hour,
        began_at=BEGAN + SECOND + hour,
        queued=(Waiting(1, NOW - 20 * SECOND + hour),),
        incidents=(Incident(NOW - 5 * SECOND + hour, "refused", -9),),
    )
    joined = join(near, far, 0.0)
    assert joined.ahead == hour
    assert [one.what for one in joined.moments] == [
        "begun", "arrived", "queued", "sent", "incident", "transmitted", "due",
    ]  # fmt: skip
    assert joined.moments[3].text == "message 2 sent, not acknowledged: 1 of 4 fragments are"
    assert joined.moments[-1].at > NOW


@pytest.mark.rule("MON-52")
def test_a_small_difference_of_clocks_is_no_difference() -> None:
    far = msgspec.structs.replace(TARGET, now=NOW + SECOND // 2)
    assert join(INITIATOR, far, 0.0).ahead == 0


WAITS = msgspec.structs.replace(
    INITIATOR, pending=1, waiting=(Waiting(2, NOW - 30 * SECOND),), status_key="awaiting_ack"
)


@pytest.mark.rule("MON-52")
@pytest.mark.parametrize(
    ("near", "far", "said"),
    [
        (INITIATOR, {"unread": 2, "is_queue_on": False}, "at the target, whose queue is off"),
        (INITIATOR, {"unread": 1, "is_parked": True, "parked_at": NOW}, "as its group is parked"),
        (INITIATOR, {"unread": 1, "is_parked": True}, "at the target until its next attempt"),
        (INITIATOR, {"unread": 1, "is_locked": True}, "a transaction has its group just now"),
        (INITIATOR, {"unread": 1}, "1 message waits at the target to be received"),
        (INITIATOR, {"state": "DI"}, "the target has not ended its side"),
        (INITIATOR, {"state": "ER", "error_code": -8}, "the target failed with error -8"),
        (WAITS, {}, "1 message of the initiator left, and no acknowledgement came"),
        (WAITS, {"is_known": False}, "the instance of the target has no side of this dialog"),
        (msgspec.structs.replace(WAITS, status_key="no_route"), None, "cannot leave"),
    ],
)  # fmt: skip
def test_it_says_where_a_dialog_hangs(
    near: SideReport, far: dict[str, object] | None, said: str
) -> None:
    other = None if far is None else msgspec.structs.replace(TARGET, **far)
    assert any(said in one for one in told(near, other)), told(near, other)


@pytest.mark.rule("MON-52")
def test_the_most_serious_comes_first() -> None:
    far = msgspec.structs.replace(TARGET, unread=1, is_queue_on=False, state="DI")
    tones = [tone for tone, _ in join(INITIATOR, far, 0.0).hangs]
    assert tones == ["bad", "warn"]


@pytest.mark.rule("MON-55")
@pytest.mark.parametrize(("now", "at"), [(0, LATEST), (LATEST, 0)])
def test_a_peer_with_impossible_clocks_breaks_nothing(now: int, at: int) -> None:
    far = msgspec.structs.replace(TARGET, now=now, began_at=at, queued=(Waiting(0, at),), unread=1)
    joined = join(INITIATOR, far, 0.01)
    assert len(joined.moments) == 3
    assert all(show_instant(one.at) for one in joined.moments)
