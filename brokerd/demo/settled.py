"""Settled: a check from the outside, by a client, that nothing is left to do at an instance.

Calls:  `status` and `view` of one instance.      Never: changes anything.
"""

from collections import Counter

import msgspec

from brokerd.client.session import Session
from brokerd.telemetry.status import InstanceStatus


async def unsettled(instance: str, session: Session, *, closed: int = 0) -> list[str]:
    """Return what is not settled after all dialogs are over, one sentence each; empty if nothing.

    Settled means that no message is ready in any queue, the transmission queue is empty, and the
    only endpoints are `closed` ones in state CD, which wait for the end of their replay guard.
    """
    status = msgspec.convert(await session.status(), InstanceStatus, strict=False)
    found = [
        f"{queue.ready} messages wait in queue {queue.name} of {instance}"
        for queue in status.queues
        if queue.ready
    ]
    waiting = len(await session.view("transmission_queue"))
    if waiting:
        found.append(f"{waiting} messages wait in the transmission queue of {instance}")
    states = Counter(_state(row) for row in await session.view("conversation_endpoints"))
    found += [
        f"{count} dialog endpoints of {instance} are {state}"
        for state, count in sorted(states.items())
        if state != "CD"
    ]
    if states["CD"] != closed and not found:
        found.append(
            f"{instance} has {states['CD']} closed dialog endpoints, where {closed} are expected"
        )
    return found


def _state(row: object) -> str:
    return str(row["state"]) if isinstance(row, dict) else "unknown"
