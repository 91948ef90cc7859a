"""What a step changes and orders, beside the state: sequences, effects, acks, binding."""

from datetime import timedelta

import pytest

from brokerd.clock import later
from brokerd.protocol import dialog
from brokerd.protocol.dialog import (
    Anomaly,
    Deliver,
    DeliverError,
    DropUnread,
    Effect,
    FreezeOutgoing,
    KeepPart,
    Refuse,
    Step,
    StoreOutgoing,
    WithdrawOutgoing,
)
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import END, ERROR, Ack
from brokerd.protocol.transitions import State
from tests.unit.protocol.endpoints import FAR, LATER, NOW, OTHER, ack, endpoint, fragment

GUARD = timedelta(minutes=30)
BOTH = pytest.mark.parametrize("initiator", [True, False], ids=["initiator", "target"])


def step(before: DialogEndpoint, event: dialog.Event) -> Step:
    return dialog.step(before, event, now=NOW)


def kinds(effects: tuple[Effect, ...]) -> list[type]:
    return [type(effect) for effect in effects]


# What the application does.


@pytest.mark.rule("DLG-T2", "DLG-T8", "SND-5", "DLP-4")
def test_sends_are_numbered_from_0() -> None:
    one = endpoint(initiator=True, state=State.STARTED_OUTBOUND, send_sequence=0)
    for sequence in range(3):
        done = step(one, dialog.SendRequested())
        assert done.effects == (StoreOutgoing(sequence, 0),)
        assert done.endpoint is not None
        one = done.endpoint
    assert one.sent == 3


@pytest.mark.rule("DLG-T10", "SND-5", "DLG-M1", "DLG-22")
@BOTH
def test_an_end_takes_the_next_sequence_and_drops_what_is_unread(initiator: bool) -> None:
    before = endpoint(initiator=initiator, state=State.CONVERSING)
    done = step(before, dialog.EndRequested(unread=2))
    assert done.effects == (DropUnread(), StoreOutgoing(2, END))
    assert done.endpoint is not None
    assert (done.endpoint.end_sequence, done.endpoint.send_sequence) == (2, 3)
    assert (done.endpoint.discarded, done.endpoint.sent) == (2, 2)


@pytest.mark.rule("DLG-T11", "DLG-M2", "DLG-28")
@BOTH
def test_an_end_with_error_withdraws_what_is_unsent(initiator: bool) -> None:
    before = endpoint(initiator=initiator, state=State.CONVERSING)
    done = step(before, dialog.EndRequested(code=7, description="enough"))
    assert done.effects == (WithdrawOutgoing(), DropUnread(), StoreOutgoing(2, ERROR))
    assert done.endpoint is not None
    assert (done.endpoint.error_code, done.endpoint.error_text) == (7, "enough")


@pytest.mark.parametrize(
    ("initiator", "state"),
    [
        pytest.param(True, State.STARTED_OUTBOUND, marks=pytest.mark.rule("DLG-T3")),
        pytest.param(False, State.DISCONNECTED_INBOUND, marks=pytest.mark.rule("DLG-T16")),
        pytest.param(True, State.DISCONNECTED_INBOUND, marks=pytest.mark.rule("DLG-T17")),
        pytest.param(True, State.ERROR, marks=pytest.mark.rule("DLG-T23")),
        pytest.param(False, State.ERROR, marks=pytest.mark.rule("DLG-T23")),
    ],
)
@pytest.mark.parametrize("code", [None, 7])
@pytest.mark.rule("DLG-21")
def test_where_nobody_has_to_be_told_an_end_sends_nothing(
    initiator: bool, state: State, code: int | None
) -> None:
    done = step(
        endpoint(initiator=initiator, state=state), dialog.EndRequested(code=code, description="x")
    )
    assert done.effects == (WithdrawOutgoing(), DropUnread())


@pytest.mark.rule("DLG-T8", "DLG-T9", "DLG-T16", "DLG-T17", "DLP-58")
@BOTH
@pytest.mark.parametrize("state", [one for one in State if one is not State.NONE])
def test_each_short_form_does_what_the_step_does_or_nothing(initiator: bool, state: State) -> None:
    before = endpoint(initiator=initiator, state=state)
    sent, ended = dialog.ordinary_send(before), dialog.ordinary_end(before)
    arrival = fragment(before.receive_sequence)
    got = dialog.ordinary_receive(before, arrival.message_id)
    assert sent in (None, step(before, dialog.SendRequested()).endpoint)
    assert ended in (None, step(before, dialog.EndRequested()))
    assert got in (None, step(before, dialog.FragmentsReceived([arrival])).endpoint)


@pytest.mark.rule("DLG-T11", "DLG-T18")
@BOTH
def test_after_an_end_with_error_only_that_error_has_to_be_sent(initiator: bool) -> None:
    conversing = endpoint(initiator=initiator, state=State.CONVERSING)
    assert dialog.first_needed(conversing) == 0
    ended = step(conversing, dialog.EndRequested()).endpoint
    failed = step(conversing, dialog.EndRequested(code=7, description="enough")).endpoint
    assert ended is not None
    assert failed is not None
    assert (dialog.first_needed(ended), dialog.first_needed(failed)) == (0, 2)
    assert dialog.first_needed(endpoint(initiator=initiator, state=State.CLOSED)) is None
    struck = endpoint(initiator=initiator, state=State.ERROR, error_code=-1)
    assert dialog.first_needed(struck) == 0, "it has not ended"


@pytest.mark.rule("DLG-T27", "DLG-M3", "PBT-9")
@BOTH
def test_cleanup_deletes_and_tells_nobody(initiator: bool) -> None:
    before = endpoint(initiator=initiator, state=State.CONVERSING)
    done = step(before, dialog.CleanupRequested(unread=3))
    assert done.effects == (WithdrawOutgoing(), DropUnread())
    if initiator:
        assert done.endpoint is None
    else:  # a tombstone: what the peer repeats is known by it
        assert done.endpoint is not None
        assert (done.endpoint.state, done.endpoint.discarded) == (State.CLOSED, 3)
        assert done.endpoint.receive_sequence == before.receive_sequence
        assert done.endpoint.purge_at is not None


# What arrives.


@pytest.mark.rule("DLG-T9", "DLP-34")
@BOTH
def test_a_run_is_delivered_in_order(initiator: bool) -> None:
    run = [fragment(2), fragment(3, body=b"y"), fragment(4)]
    done = step(
        endpoint(initiator=initiator, state=State.CONVERSING), dialog.FragmentsReceived(run)
    )
    assert done.effects == tuple(Deliver(one) for one in run)
    assert done.endpoint is not None
    assert (done.endpoint.receive_sequence, done.endpoint.receive_fragment) == (5, 0)
    assert done.endpoint.received == 5


@pytest.mark.rule("DLG-T4", "DLG-T5", "DLP-11", "DLP-38")
def test_a_message_in_parts_is_kept_until_its_last_fragment() -> None:
    parts = [fragment(0, fragment=number, fragments=3) for number in range(3)]
    empty = endpoint(initiator=False, state=State.STARTED_INBOUND, receive_sequence=0)
    first = step(empty, dialog.FragmentsReceived(parts[:2]))
    assert first.effects == (KeepPart(parts[0]), KeepPart(parts[1]))
    assert first.endpoint is not None
    assert first.endpoint.state is State.STARTED_INBOUND
    assert (first.endpoint.receive_sequence, first.endpoint.receive_fragment) == (0, 2)
    last = step(first.endpoint, dialog.FragmentsReceived(parts[2:]))
    assert last.effects == (Deliver(parts[2]),)
    assert last.endpoint is not None
    assert last.endpoint.state is State.CONVERSING
    assert (last.endpoint.receive_sequence, last.endpoint.receive_fragment) == (1, 0)


@pytest.mark.rule("DLG-T12", "DLG-M4", "DLP-50")
@BOTH
def test_an_end_comes_behind_the_messages_and_freezes_own_sends(initiator: bool) -> None:
    run = [fragment(2), fragment(3, flags=END, message_type="")]
    done = step(
        endpoint(initiator=initiator, state=State.CONVERSING), dialog.FragmentsReceived(run)
    )
    assert done.effects == (Deliver(run[0]), Deliver(run[1]), FreezeOutgoing())
    assert done.endpoint is not None
    assert (done.endpoint.far_end_sequence, done.endpoint.received) == (3, 3)


@pytest.mark.rule("DLG-15")
def test_behind_an_end_nothing_of_a_run_is_taken() -> None:
    run = [fragment(2, flags=END, message_type=""), fragment(3), fragment(4)]
    done = step(endpoint(initiator=True, state=State.CONVERSING), dialog.FragmentsReceived(run))
    assert kinds(done.effects) == [Deliver, FreezeOutgoing, Anomaly]
    assert done.endpoint is not None
    assert done.endpoint.receive_sequence == 3


@pytest.mark.rule("DLG-T21", "DLG-T19", "DLP-48")
@BOTH
def test_after_the_own_end_arrivals_only_move_the_sequence(initiator: bool) -> None:
    run = [fragment(2), fragment(3, fragments=2), fragment(3, fragment=1, fragments=2)]
    run.append(fragment(4, flags=END, message_type=""))
    before = endpoint(initiator=initiator, state=State.DISCONNECTED_OUTBOUND)
    done = step(before, dialog.FragmentsReceived(run))
    assert done.effects == ()
    assert done.endpoint is not None
    assert (done.endpoint.receive_sequence, done.endpoint.discarded) == (5, 2)
    assert done.endpoint.far_end_sequence == 4


@pytest.mark.rule("DLG-T24", "DLG-T25", "DLP-48")
@pytest.mark.parametrize("state", [State.ERROR, State.CLOSED])
@pytest.mark.parametrize("flags", [0, END])
def test_a_new_sequence_at_an_endpoint_that_is_over_is_refused(state: State, flags: int) -> None:
    before = endpoint(initiator=False, state=state)
    done = step(before, dialog.FragmentsReceived([fragment(2, flags=flags)]))
    assert done.endpoint == before
    assert [one.code for one in done.effects if isinstance(one, Refuse)] == [-8462]


@pytest.mark.rule("DLG-T13", "DLG-M5")
@BOTH
def test_an_error_is_delivered_and_freezes_own_sends(initiator: bool) -> None:
    before = endpoint(initiator=initiator, state=State.CONVERSING)
    done = step(before, dialog.ErrorReceived(-8408, "no"))
    assert done.effects == (DeliverError(-8408, "no"), FreezeOutgoing())
    assert done.endpoint is not None
    assert (done.endpoint.error_code, done.endpoint.receive_sequence) == (-8408, 2)


@pytest.mark.rule("DLG-30")
def test_the_ack_of_an_application_error_covers_every_sequence_up_to_it() -> None:
    before = endpoint(initiator=True, state=State.CONVERSING, receive_fragment=1)
    done = step(before, dialog.ErrorReceived(7, "enough", sequence=9))
    assert done.endpoint is not None
    assert (done.endpoint.receive_sequence, done.endpoint.receive_fragment) == (10, 0)
    assert done.endpoint.far_end_sequence == 9


@pytest.mark.rule("DLG-T29")
@BOTH
def test_a_peer_cannot_fail_what_it_has_ended(initiator: bool) -> None:
    before = endpoint(initiator=initiator, state=State.DISCONNECTED_INBOUND)
    assert step(before, dialog.ErrorReceived(-1, "x")) == Step(before)


@pytest.mark.rule("DLG-T7")
@pytest.mark.parametrize("sequence", [None, 3], ids=["of its broker", "of its application"])
def test_an_error_before_message_0_is_complete_leaves_a_tombstone(sequence: int | None) -> None:
    before = endpoint(initiator=False, state=State.STARTED_INBOUND, receive_sequence=0)
    done = step(before, dialog.ErrorReceived(-8462, "gone", sequence))
    assert kinds(done.effects) == [WithdrawOutgoing, DropUnread]
    assert done.endpoint is not None
    assert (done.endpoint.state, done.endpoint.error_code) == (State.CLOSED, -8462)
    assert done.endpoint.receive_sequence == (0 if sequence is None else 4)
    assert done.endpoint.purge_at == NOW


@pytest.mark.rule("DLG-T20", "DLG-T31")
@BOTH
def test_only_a_target_takes_a_peer_that_is_gone_for_the_acknowledgement_of_its_end(
    initiator: bool,
) -> None:
    before = endpoint(initiator=initiator, state=State.DISCONNECTED_OUTBOUND)
    done = step(before, dialog.ErrorReceived(-8462, "gone"))
    lost = [one for one in done.effects if isinstance(one, dialog.Lose)]
    assert lost == ([dialog.Lose(-8462, "gone")] if initiator else [])
    assert WithdrawOutgoing(is_settled=not initiator) in done.effects
    assert dialog.Lose(-1, "x") in step(before, dialog.ErrorReceived(-1, "x")).effects


@pytest.mark.rule("DLG-T7", "DLG-T6")
@pytest.mark.parametrize(
    ("event", "told"),
    [
        (dialog.LifetimeReached(), []),
        (dialog.FaultStruck(-8408, "no"), [Refuse]),
    ],
)
def test_before_message_0_is_complete_no_application_learns_of_anything(
    event: dialog.Event, told: list[type]
) -> None:
    done = step(endpoint(initiator=False, state=State.STARTED_INBOUND), event)
    assert done.endpoint is None
    assert kinds(done.effects) == [WithdrawOutgoing, DropUnread, *told]


@pytest.mark.rule("DLG-T14", "DLG-M6", "DLP-52")
@BOTH
def test_a_lifetime_that_is_over_is_an_error_and_nothing_is_sent(initiator: bool) -> None:
    done = step(endpoint(initiator=initiator, state=State.CONVERSING), dialog.LifetimeReached())
    assert kinds(done.effects) == [DeliverError, FreezeOutgoing]
    assert done.endpoint is not None
    assert done.endpoint.error_code == -8489


@pytest.mark.rule("DLG-T15", "DLG-43")
@pytest.mark.parametrize(
    ("state", "told"),
    [
        (State.STARTED_OUTBOUND, False),
        (State.CONVERSING, True),
        (State.DISCONNECTED_INBOUND, False),
    ],
)
def test_a_fault_tells_the_peer_if_it_goes_on(state: State, told: bool) -> None:
    done = step(endpoint(initiator=True, state=state), dialog.FaultStruck(-8457, "wrong"))
    assert (Refuse(-8457, "wrong") in done.effects) is told
    assert DeliverError(-8457, "wrong") in done.effects


# Acknowledgements.


@pytest.mark.rule("DLG-T18", "DLP-49", "DLP-58")
def test_an_ack_of_the_own_end_closes() -> None:
    before = endpoint(initiator=True, state=State.DISCONNECTED_OUTBOUND)
    assert step(before, dialog.AckReceived(ack(2))).endpoint is None
    before = endpoint(initiator=False, state=State.DISCONNECTED_OUTBOUND)
    closed = step(before, dialog.AckReceived(ack(2))).endpoint
    assert closed is not None
    assert closed.state is State.CLOSED


@pytest.mark.rule("DLP-15", "DLG-17")
@pytest.mark.parametrize("said", [ack(1), ack(2, 0)])
def test_an_ack_of_less_than_the_whole_end_does_not(said: object) -> None:
    before = endpoint(initiator=True, state=State.DISCONNECTED_OUTBOUND, first_acked=True)
    assert step(before, dialog.AckReceived(said)) == Step(before)  # type: ignore[arg-type]


@pytest.mark.rule("DLP-17")
@BOTH
def test_an_ack_of_something_never_sent_changes_nothing(initiator: bool) -> None:
    before = endpoint(initiator=initiator, state=State.CONVERSING, bound=False, far_broker=None)
    done = step(before, dialog.AckReceived(ack(2)))
    assert done.endpoint is before
    assert kinds(done.effects) == [Anomaly]


@pytest.mark.rule("DLP-17", "REL-15")
@pytest.mark.parametrize(
    "said",
    [ack(1, highest_seen=2), ack(2), ack(1, base_sequence=3)],
    ids=["seen what was never sent", "has stored what was never sent", "holds no more of it"],
)
@pytest.mark.parametrize("state", [one for one in State if one is not State.NONE])
@BOTH
def test_only_a_dialog_that_goes_on_is_ended_for_what_was_forgotten(
    initiator: bool, state: State, said: Ack
) -> None:
    before = endpoint(initiator=initiator, state=state)
    done = step(before, dialog.AckReceived(said))
    codes = [one.code for one in done.effects if isinstance(one, Refuse)]
    assert codes == ([dialog.HISTORY_LOST] if state is State.CONVERSING else [])
    is_failed = done.endpoint is not None and done.endpoint.error_code == dialog.HISTORY_LOST
    assert is_failed is (state is State.CONVERSING)


@pytest.mark.rule("DLP-17", "REL-15")
@pytest.mark.parametrize(
    ("said", "effects"),
    [
        (ack(1, base_sequence=2), []),  # what it sends next is what comes next
        (ack(1, highest_seen=1), []),
        (ack(0), []),  # below what it said before: it is late
        (ack(-1, -1, highest_seen=2, broker_id=OTHER), []),
        (ack(1, highest_seen=2, broker_id=OTHER), [Refuse]),  # it is told that it is a stray
    ],
)
def test_what_is_late_or_said_by_another_shows_nothing_forgotten(
    said: Ack, effects: list[type]
) -> None:
    done = step(endpoint(initiator=True, state=State.CONVERSING), dialog.AckReceived(said))
    assert kinds(done.effects) == effects
    assert done.endpoint is not None
    assert done.endpoint.state is State.CONVERSING


@pytest.mark.rule("DLP-43", "OBJ-5", "DLP-22")
def test_the_first_ack_binds_the_dialog() -> None:
    before = endpoint(
        initiator=True, state=State.CONVERSING, bound=False, far_broker=None, route="r"
    )
    bound = step(before, dialog.AckReceived(ack(0))).endpoint
    assert bound is not None
    assert (bound.far_broker, bound.bound, bound.route) == (FAR, True, "r")


@pytest.mark.rule("DLP-43")
def test_an_ack_of_nothing_does_not_bind() -> None:
    before = endpoint(initiator=True, state=State.CONVERSING, bound=False, far_broker=None)
    assert step(before, dialog.AckReceived(ack(-1, -1))) == Step(before)


@pytest.mark.rule("DLP-45", "DLG-45", "DLG-5")
@pytest.mark.parametrize("bound", [True, False], ids=["bound", "pinned"])
def test_an_ack_of_another_broker_is_refused(bound: bool) -> None:
    before = endpoint(initiator=True, state=State.CONVERSING, bound=bound)
    done = step(before, dialog.AckReceived(ack(1, broker_id=OTHER)))
    assert done.endpoint is before
    assert [one.code for one in done.effects if isinstance(one, Refuse)] == [-8495]


@pytest.mark.rule("DLP-55")
def test_the_initiator_knows_when_all_of_message_0_is_acknowledged() -> None:
    before = endpoint(initiator=True, state=State.CONVERSING)
    part = step(before, dialog.AckReceived(ack(0, 3))).endpoint
    assert part is not None
    assert not part.first_acked
    whole = step(before, dialog.AckReceived(ack(0))).endpoint
    assert whole is not None
    assert whole.first_acked
    assert whole.purge_at is None


@pytest.mark.rule("DLP-55", "DLG-31")
def test_first_acked_tells_the_target_when_it_may_forget() -> None:
    said = ack(-1, -1, first_acked=True)
    before = endpoint(initiator=False, state=State.CLOSED, purge_at=LATER)
    for event in (
        dialog.AckReceived(said, GUARD),
        dialog.FragmentsReceived([fragment(2, ack=said)], GUARD),
    ):
        state = State.CONVERSING if isinstance(event, dialog.FragmentsReceived) else State.CLOSED
        live = endpoint(initiator=False, state=state, purge_at=before.purge_at)
        after = step(live, event).endpoint
        assert after is not None
        assert (after.first_acked, after.purge_at) == (True, later(NOW, GUARD))
        more = fragment(after.receive_sequence, ack=said)
        repeats: list[dialog.Event] = [dialog.AckReceived(said, GUARD)]
        repeats += [dialog.FragmentsReceived([more], GUARD)] if state is State.CONVERSING else []
        for repeat in repeats:
            again = dialog.step(after, repeat, now=LATER).endpoint
            assert again is not None
            assert again.purge_at == later(NOW, GUARD)


@pytest.mark.rule("DLP-55")
def test_an_acknowledgement_without_first_acked_tells_the_target_nothing() -> None:
    before = endpoint(initiator=False, state=State.CONVERSING)
    arrived = dialog.FragmentsReceived([fragment(2, ack=ack(1))], GUARD)
    for event in (arrived, dialog.AckReceived(ack(1), GUARD)):
        after = step(before, event).endpoint
        assert after is not None
        assert (after.first_acked, after.purge_at) == (False, None)


@pytest.mark.rule("DLP-55")
def test_first_acked_from_a_target_tells_an_initiator_nothing() -> None:
    """It would forget the dialog after the guard time, though it goes on."""
    before = endpoint(initiator=True, state=State.CONVERSING)
    said = ack(-1, -1, first_acked=True)
    for event in (
        dialog.FragmentsReceived([fragment(2, from_initiator=False, ack=said)], guard=GUARD),
        dialog.AckReceived(said, guard=GUARD),
    ):
        after = step(before, event).endpoint
        assert after is not None
        assert (after.first_acked, after.purge_at) == (False, None)


@pytest.mark.rule("DLP-56", "DLG-32")
@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.DISCONNECTED_INBOUND, dialog.EndRequested()),
        (State.ERROR, dialog.EndRequested()),
        (State.DISCONNECTED_OUTBOUND, dialog.AckReceived(ack(2))),
        (State.DISCONNECTED_OUTBOUND, dialog.LifetimeReached()),
        (State.DISCONNECTED_OUTBOUND, dialog.ErrorReceived(1, "x")),
    ],
)
def test_without_it_a_closed_target_stays_for_its_lifetime_and_the_guard(
    state: State, event: dialog.Event
) -> None:
    closed = step(endpoint(initiator=False, state=state), event).endpoint
    assert closed is not None
    assert closed.state is State.CLOSED
    assert closed.purge_at == later(LATER, GUARD)
