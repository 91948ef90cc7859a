"""Endpoint states and allowed moves, as one table (DLG-T1 to DLG-T31).

Reads: nothing.      Calls: nothing.      Never: decides effects; `dialog.py` does.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """State of a dialog endpoint; `NONE` means that no endpoint exists (written ∅ in the rules)."""

    NONE = "--"
    STARTED_OUTBOUND = "SO"
    STARTED_INBOUND = "SI"
    CONVERSING = "CO"
    DISCONNECTED_INBOUND = "DI"
    DISCONNECTED_OUTBOUND = "DO"
    ERROR = "ER"
    CLOSED = "CD"


OVER: Final = frozenset({State.ERROR, State.CLOSED})
"""States of an endpoint that accepts nothing more: its side of the dialog is over."""


class Trigger(StrEnum):
    """A cause of a state change."""

    BEGIN = "begin_dialog"
    SEND = "send"
    END = "end"
    END_ERROR = "end with error"
    CLEANUP = "end with cleanup"
    PART = "fragment of an unfinished message"
    MESSAGE = "complete message in sequence"
    REFUSED = "message 0 unacceptable"
    PEER_END = "EndDialog in sequence"
    PEER_ERROR = "Error from the peer"
    END_ACKED = "own EndDialog or Error acknowledged"
    LIFETIME = "lifetime reached"
    FAULT = "local unrecoverable fault"
    PURGE = "retention over"


class Move(NamedTuple):
    """One row of the transition table."""

    rule: str
    to: State


_NO, _SO, _SI, _CO = (
    State.NONE,
    State.STARTED_OUTBOUND,
    State.STARTED_INBOUND,
    State.CONVERSING,
)
_DI, _DO, _ER, _CD = (
    State.DISCONNECTED_INBOUND,
    State.DISCONNECTED_OUTBOUND,
    State.ERROR,
    State.CLOSED,
)
_OPEN = (_SO, _SI, _CO, _DI, _DO, _ER)
_T = Trigger

# rule, sides, from, trigger, to: at the initiator / at the target
_ROWS: tuple[tuple[str, str, tuple[State, ...], Trigger, State, State], ...] = (
    ("DLG-T1", "I", (_NO,), _T.BEGIN, _SO, _SO),
    ("DLG-T2", "I", (_SO,), _T.SEND, _CO, _CO),
    ("DLG-T3", "I", (_SO,), _T.END, _NO, _NO),
    ("DLG-T3", "I", (_SO,), _T.END_ERROR, _NO, _NO),
    ("DLG-T4", "T", (_NO, _SI), _T.PART, _SI, _SI),
    ("DLG-T5", "T", (_NO, _SI), _T.MESSAGE, _CO, _CO),
    ("DLG-T6", "T", (_NO, _SI), _T.REFUSED, _NO, _NO),
    ("DLG-T7", "T", (_SI,), _T.LIFETIME, _NO, _NO),
    ("DLG-T7", "T", (_SI,), _T.PEER_ERROR, _CD, _CD),
    ("DLG-T8", "IT", (_CO,), _T.SEND, _CO, _CO),
    ("DLG-T9", "IT", (_CO,), _T.MESSAGE, _CO, _CO),
    ("DLG-T9", "IT", (_CO,), _T.PART, _CO, _CO),
    ("DLG-T10", "IT", (_CO,), _T.END, _DO, _DO),
    ("DLG-T11", "IT", (_CO,), _T.END_ERROR, _DO, _DO),
    ("DLG-T12", "IT", (_CO,), _T.PEER_END, _DI, _DI),
    ("DLG-T13", "IT", (_CO,), _T.PEER_ERROR, _ER, _ER),
    ("DLG-T14", "IT", (_SO, _CO, _DI), _T.LIFETIME, _ER, _ER),
    ("DLG-T15", "IT", (_SO, _CO, _DI), _T.FAULT, _ER, _ER),
    ("DLG-T16", "T", (_DI,), _T.END, _CD, _CD),
    ("DLG-T16", "T", (_DI,), _T.END_ERROR, _CD, _CD),
    ("DLG-T17", "I", (_DI,), _T.END, _NO, _NO),
    ("DLG-T17", "I", (_DI,), _T.END_ERROR, _NO, _NO),
    ("DLG-T18", "IT", (_DO,), _T.END_ACKED, _NO, _CD),
    ("DLG-T19", "IT", (_DO,), _T.PEER_END, _DO, _DO),
    ("DLG-T20", "IT", (_DO,), _T.PEER_ERROR, _NO, _CD),
    ("DLG-T21", "IT", (_DO,), _T.MESSAGE, _DO, _DO),
    ("DLG-T21", "IT", (_DO,), _T.PART, _DO, _DO),
    ("DLG-T22", "IT", (_DO,), _T.LIFETIME, _NO, _CD),
    ("DLG-T23", "IT", (_ER,), _T.END, _NO, _CD),
    ("DLG-T23", "IT", (_ER,), _T.END_ERROR, _NO, _CD),
    ("DLG-T24", "IT", (_ER,), _T.MESSAGE, _ER, _ER),
    ("DLG-T24", "IT", (_ER,), _T.PART, _ER, _ER),
    ("DLG-T24", "IT", (_ER,), _T.PEER_END, _ER, _ER),
    ("DLG-T25", "T", (_CD,), _T.MESSAGE, _CD, _CD),
    ("DLG-T25", "T", (_CD,), _T.PART, _CD, _CD),
    ("DLG-T25", "T", (_CD,), _T.PEER_END, _CD, _CD),
    ("DLG-T26", "T", (_CD,), _T.PURGE, _NO, _NO),
    ("DLG-T27", "IT", _OPEN, _T.CLEANUP, _NO, _CD),
    ("DLG-T27", "IT", (_CD,), _T.CLEANUP, _NO, _NO),
    ("DLG-T29", "IT", (_DI,), _T.PEER_ERROR, _DI, _DI),
    ("DLG-T30", "T", (_NO,), _T.PEER_ERROR, _CD, _CD),
)


def _table() -> dict[tuple[bool, State, Trigger], Move]:
    table: dict[tuple[bool, State, Trigger], Move] = {}
    for rule, sides, states, trigger, at_initiator, at_target in _ROWS:
        for state in states:
            if "I" in sides:
                table[True, state, trigger] = Move(rule, at_initiator)
            if "T" in sides:
                table[False, state, trigger] = Move(rule, at_target)
    return table


MOVES = _table()
"""Map of (is initiator, state, trigger) to the rule that allows the move, and the new state.

A combination without a row is a protocol anomaly and changes nothing (DLG-15)."""
