"""Every cell of the table of states: side, state and trigger (DLG-T1 to DLG-T30, DLG-15).

The table is written down here a second time, by hand from the specification, so that a slip in
either is seen. `dialog.step` is held to it in every cell."""

import pytest

from brokerd.protocol import dialog
from brokerd.protocol.frames import END
from brokerd.protocol.transitions import MOVES, State, Trigger
from tests.unit.protocol.endpoints import NOW, ack, endpoint, fragment

NO, SO, SI, CO = (
    State.NONE,
    State.STARTED_OUTBOUND,
    State.STARTED_INBOUND,
    State.CONVERSING,
)
DI, DO, ER, CD = (
    State.DISCONNECTED_INBOUND,
    State.DISCONNECTED_OUTBOUND,
    State.ERROR,
    State.CLOSED,
)
T = Trigger
I, TG = True, False  # noqa: E741  # the sides, as the specification writes them

ROWS = [
    ("DLG-T1", I, NO, T.BEGIN, SO),
    ("DLG-T2", I, SO, T.SEND, CO),
    *[("DLG-T3", I, SO, end, NO) for end in (T.END, T.END_ERROR)],
    *[("DLG-T4", TG, state, T.PART, SI) for state in (NO, SI)],
    *[("DLG-T5", TG, state, T.MESSAGE, CO) for state in (NO, SI)],
    *[("DLG-T6", TG, state, T.REFUSED, NO) for state in (NO, SI)],
    ("DLG-T7", TG, SI, T.LIFETIME, NO),
    ("DLG-T7", TG, SI, T.PEER_ERROR, CD),
    *[("DLG-T8", side, CO, T.SEND, CO) for side in (I, TG)],
    *[("DLG-T9", side, CO, kind, CO) for side in (I, TG) for kind in (T.MESSAGE, T.PART)],
    *[("DLG-T10", side, CO, T.END, DO) for side in (I, TG)],
    *[("DLG-T11", side, CO, T.END_ERROR, DO) for side in (I, TG)],
    *[("DLG-T12", side, CO, T.PEER_END, DI) for side in (I, TG)],
    *[("DLG-T13", side, CO, T.PEER_ERROR, ER) for side in (I, TG)],
    *[("DLG-T14", side, state, T.LIFETIME, ER) for side in (I, TG) for state in (SO, CO, DI)],
    *[("DLG-T15", side, state, T.FAULT, ER) for side in (I, TG) for state in (SO, CO, DI)],
    *[("DLG-T16", TG, DI, end, CD) for end in (T.END, T.END_ERROR)],
    *[("DLG-T17", I, DI, end, NO) for end in (T.END, T.END_ERROR)],
    ("DLG-T18", I, DO, T.END_ACKED, NO),
    ("DLG-T18", TG, DO, T.END_ACKED, CD),
    *[("DLG-T19", side, DO, T.PEER_END, DO) for side in (I, TG)],
    ("DLG-T20", I, DO, T.PEER_ERROR, NO),
    ("DLG-T20", TG, DO, T.PEER_ERROR, CD),
    *[("DLG-T21", side, DO, kind, DO) for side in (I, TG) for kind in (T.MESSAGE, T.PART)],
    ("DLG-T22", I, DO, T.LIFETIME, NO),
    ("DLG-T22", TG, DO, T.LIFETIME, CD),
    *[("DLG-T23", I, ER, end, NO) for end in (T.END, T.END_ERROR)],
    *[("DLG-T23", TG, ER, end, CD) for end in (T.END, T.END_ERROR)],
    *[
        ("DLG-T24", side, ER, kind, ER)
        for side in (I, TG)
        for kind in (T.MESSAGE, T.PART, T.PEER_END)
    ],
    *[("DLG-T25", TG, CD, kind, CD) for kind in (T.MESSAGE, T.PART, T.PEER_END)],
    ("DLG-T26", TG, CD, T.PURGE, NO),
    *[("DLG-T27", I, state, T.CLEANUP, NO) for state in (SO, SI, CO, DI, DO, ER, CD)],
    *[("DLG-T27", TG, state, T.CLEANUP, CD) for state in (SO, SI, CO, DI, DO, ER)],
    ("DLG-T27", TG, CD, T.CLEANUP, NO),
    *[("DLG-T29", side, DI, T.PEER_ERROR, DI) for side in (I, TG)],
    ("DLG-T30", TG, NO, T.PEER_ERROR, CD),
]
BY_CELL = {(side, state, trigger): (rule, to) for rule, side, state, trigger, to in ROWS}
CELLS = [(side, state, trigger) for side in (I, TG) for state in State for trigger in Trigger]
SHELL = {T.BEGIN, T.PURGE}
"""Triggers that the shell performs by itself: it makes and removes rows."""

EVENTS: dict[Trigger, dialog.Event] = {
    T.SEND: dialog.SendRequested(),
    T.END: dialog.EndRequested(),
    T.END_ERROR: dialog.EndRequested(code=7, description="enough"),
    T.CLEANUP: dialog.CleanupRequested(),
    T.PART: dialog.FragmentsReceived([fragment(2, fragments=2)]),
    T.MESSAGE: dialog.FragmentsReceived([fragment(2)]),
    T.REFUSED: dialog.FaultStruck(-8408, "not accepted"),
    T.PEER_END: dialog.FragmentsReceived([fragment(2, flags=END, message_type="")]),
    T.PEER_ERROR: dialog.ErrorReceived(-8462, "gone"),
    T.END_ACKED: dialog.AckReceived(ack(2)),
    T.LIFETIME: dialog.LifetimeReached(),
    T.FAULT: dialog.FaultStruck(-8457, "wrong"),
}
FROZEN = {(DI, T.SEND), (ER, T.SEND)}
"""A send whose transaction began before the peer ended: kept, never sent (DLG-46)."""


def name(cell: tuple[bool, State, Trigger]) -> str:
    side, state, trigger = cell
    rule = BY_CELL.get(cell, ("none",))[0]
    return f"{'initiator' if side else 'target'}-{state}-{trigger}-{rule}"


@pytest.mark.rule(
    "DLG-T1",
    "DLG-T2",
    "DLG-T3",
    "DLG-T4",
    "DLG-T5",
    "DLG-T6",
    "DLG-T7",
    "DLG-T8",
    "DLG-T9",
    "DLG-T10",
    "DLG-T11",
    "DLG-T12",
    "DLG-T13",
    "DLG-T14",
    "DLG-T15",
    "DLG-T16",
    "DLG-T17",
    "DLG-T18",
    "DLG-T19",
    "DLG-T20",
    "DLG-T21",
    "DLG-T22",
    "DLG-T23",
    "DLG-T24",
    "DLG-T25",
    "DLG-T26",
    "DLG-T27",
    "DLG-T29",
    "DLG-T30",
    "DLG-15",
)
@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_the_table_has_this_row_or_none(cell: tuple[bool, State, Trigger]) -> None:
    move = MOVES.get(cell)
    assert (None if move is None else (move.rule, move.to)) == BY_CELL.get(cell)


def reachable(cell: tuple[bool, State, Trigger]) -> bool:
    _, state, trigger = cell
    fault_in_si = trigger is T.FAULT and state is SI  # there it is REFUSED
    refused = trigger is T.REFUSED and state is not SI  # elsewhere it is FAULT
    acked = trigger is T.END_ACKED and state is not DO  # elsewhere it is any acknowledgement
    shell = trigger in SHELL or state is NO
    return not (shell or fault_in_si or refused or acked)


@pytest.mark.rule(
    "DLG-T2",
    "DLG-T3",
    "DLG-T5",
    "DLG-T6",
    "DLG-T7",
    "DLG-T8",
    "DLG-T9",
    "DLG-T10",
    "DLG-T11",
    "DLG-T12",
    "DLG-T13",
    "DLG-T14",
    "DLG-T15",
    "DLG-T16",
    "DLG-T17",
    "DLG-T18",
    "DLG-T19",
    "DLG-T20",
    "DLG-T21",
    "DLG-T22",
    "DLG-T23",
    "DLG-T24",
    "DLG-T25",
    "DLG-T27",
    "DLG-T29",
    "DLG-15",
    "DLG-T4",
    "REL-11",
)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if reachable(cell)], ids=name)
def test_a_step_goes_where_the_table_says_or_nowhere(cell: tuple[bool, State, Trigger]) -> None:
    side, state, trigger = cell
    before = endpoint(initiator=side, state=state)
    step = dialog.step(before, EVENTS[trigger], now=NOW)
    if cell in BY_CELL:
        to = BY_CELL[cell][1]
        assert (State.NONE if step.endpoint is None else step.endpoint.state) is to
        assert not any(isinstance(effect, dialog.Anomaly) for effect in step.effects)
    elif (state, trigger) in FROZEN:
        assert step.effects == (dialog.StoreOutgoing(2, 0, frozen=True),)
    else:
        assert step.endpoint == before
        assert [type(effect) for effect in step.effects] == [dialog.Anomaly]


@pytest.mark.rule("SND-2", "DLG-19", "DLG-39", "GRP-20")
@pytest.mark.parametrize("side", [I, TG])
@pytest.mark.parametrize("state", [SO, SI, CO, DI, DO, ER, CD])
def test_what_the_application_may_do(side: bool, state: State) -> None:
    one = endpoint(initiator=side, state=state)
    may_send = state is CO or (state is SO and side)
    may_end = state in (CO, DI, ER) or (state is SO and side)
    assert dialog.may(one, T.SEND) is may_send
    assert dialog.may(one, T.END) is dialog.may(one, T.END_ERROR) is may_end
    owns = state in (SO, CO, DI, ER)
    assert dialog.may_set_timer(one) is dialog.may_move(one) is owns
