"""Expiry: ends sessions and transactions that clients leave unused for too long (CLP-61, PBT-18).

Reads: sessions, and the times when their transactions took locks and were last used.
Calls: sessions; the work that is too old.
Never: closes a silent client that has no work open.
Wakes: with the pass over the sessions, each second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from brokerd.ids import show
from brokerd.protocol import client_frames as frames
from brokerd.sessions.open_transaction import OpenTx
from brokerd.sessions.options import SessionOptions
from brokerd.sessions.request_line import IndependentWork
from brokerd.sessions.session import ClientSession
from brokerd.telemetry.log import Log

_MOST_GROUPS: Final = 20
"""Largest number of groups that a log line about a transaction names."""


def end_expired(
    sessions: Iterable[ClientSession], options: SessionOptions, now: float, log: Log
) -> int:
    """Close silent clients with open work; roll back transactions too old or too long unused.

    Return the number of closed clients and rolled-back transactions."""
    ended = 0
    for session in sessions:
        if session.has_work and session.reading.is_silent(options.silence):
            session.close(frames.IDLE)
            ended += 1
        else:
            ended += _end_old_work(session, options, now, log)
    return ended


def _end_old_work(session: ClientSession, options: SessionOptions, now: float, log: Log) -> int:
    ended = 0
    for one in list(session.open_transactions.values()):
        if one.is_over:
            continue
        if one.is_idle and now - one.used_at > options.transaction_idle:
            one.abort(f"it was not used for {options.transaction_idle:.0f} s")
            ended += 1
        elif _age(one, now) > options.transaction_age:
            _end_too_old(session, one, options, now, log)
            ended += 1
    for work in list(session.line.under_way):
        if _age(work, now) > options.transaction_age:
            _end_too_old(session, work, options, now, log)
            ended += 1
    return ended


def _end_too_old(
    session: ClientSession,
    work: OpenTx | IndependentWork,
    options: SessionOptions,
    now: float,
    log: Log,
) -> None:
    """Roll back a transaction, and log the conversation groups that it had locked (PBT-18)."""
    tx, limit = work.tx, options.transaction_age
    log.warning(
        "broker.daemon",
        subclass="transaction_too_old",
        broker=session.broker.name,
        client=session.owner,
        age_seconds=round(_age(work, now), 3),
        groups=[show(group.group_id) for group in tx.locked[:_MOST_GROUPS]],
        locked=len(tx.locked),
        verbs=tx.summary(),
    )
    work.abort(f"it held locks for {limit:.0f} s")


def _age(work: OpenTx | IndependentWork, now: float) -> float:
    """Return the seconds since the work took its first lock; 0 without a lock."""
    locked_at = work.tx.locked_at
    return 0.0 if locked_at is None else now - locked_at
