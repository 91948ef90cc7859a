"""Acceptance of arrivals: may a dialog begin, may each message be stored (DLP-40, OBJ-29).

Reads: objects of the broker.      Calls: broker.checks.
Never: changes or answers anything; `storing.py` does, by the result.
"""

from __future__ import annotations

from collections.abc import Mapping

from brokerd.broker import checks
from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.clock import Instant
from brokerd.delivery.incoming.inspection import is_damaged, joined
from brokerd.protocol.frames import Fragment


def refuse_opening(broker: Broker, first: Fragment, now: Instant) -> checks.Refusal | None:
    """Return why this fragment may not begin a dialog; None = it may."""
    return checks.refuse_dialog(
        broker.catalog_index,
        service=first.to_service,
        contract=first.contract,
        message_type=first.message_type,
        body=first.body,
        expires_at=first.expires_at,
        now=now,
        whole=first.fragments == 1,
        judge=broker.inspection.judge,
    )


def check_run(
    broker: Broker,
    live: Live | None,
    run: list[Fragment],
    inspected: Mapping[int, bytes],
) -> tuple[list[Fragment], checks.Refusal | None]:
    """Return the prefix of a run that may be stored, and why the rest may not (OBJ-29).

    Without an endpoint the run begins a dialog, which `refuse_opening` has accepted. `inspected`:
    bodies that were checked already, by sequence; bodies of several fragments are joined."""
    contract = broker.contracts[run[0].contract] if live is None else live.contract
    known = broker.message_types
    size = 0 if live is None else live.parts_size
    for at, item in enumerate(run):
        if item.flags:
            continue
        size = len(item.body) + (size if item.fragment else 0)
        announced = size
        if item.fragments > 1 and not item.fragment:  # only the last fragment is not full
            announced = (item.fragments - 1) * size + 1
        # Refuse a message by its announced size at its first fragment, before storing parts of it
        # (DLP-13, DSP-15).
        if max(size, announced) > broker.options.max_message:
            about = "about " if item.fragments > 1 else ""
            text = f"{about}{max(size, announced)} bytes are more than this broker takes"
            return run[:at], (checks.TOO_LARGE, text)
        body, whole = item.body, item.fragments == 1
        if not whole and item.fragment + 1 == item.fragments:
            whole = checks.needs_whole(known, item.message_type)
            whole = whole and not is_damaged(broker, live, item)
            if whole and item.sequence in inspected:
                body = inspected[item.sequence]
            elif whole:
                body = joined(live, run[: at + 1])
        refusal = checks.refuse_message(
            contract,
            item.message_type,
            body,
            known=known,
            from_initiator=item.from_initiator,
            whole=whole,
            judge=broker.inspection.judge,
        )
        if refusal is not None:
            return run[:at], refusal
    return run, None
