"""Dialogs that a benchmark begins before it measures.

Reads: nothing.      Calls: the SDK.      Never: runs within a measured time.
"""

from collections.abc import Sequence

from brokerd.client.session import Session

_AT_ONCE = 1_000
"""Number of dialogs, or messages, in one transaction."""


async def open_dialogs(
    session: Session, count: int, from_service: str, to_services: Sequence[str], *, first: int = 0
) -> list[bytes]:
    """Begin `count` dialogs, to the services in turn, a thousand per transaction.

    `first`: the number of dialogs begun before, so that these continue with the next service.
    """
    handles: list[bytes] = []
    end = first + count
    for begin in range(first, end, _AT_ONCE):
        async with session.transaction() as tx:
            for number in range(begin, min(begin + _AT_ONCE, end)):
                to_service = to_services[number % len(to_services)]
                handles.append(await tx.begin_dialog(from_service, to_service, "bench/v1"))
    return handles


async def send_beforehand(
    session: Session, handles: Sequence[bytes], count: int, body: bytes
) -> None:
    """Send `count` messages, on the dialogs in turn, a thousand per transaction."""
    for first in range(0, count, _AT_ONCE):
        async with session.transaction() as tx:
            for number in range(first, min(first + _AT_ONCE, count)):
                await tx.send(handles[number % len(handles)], body, "Item")


def numbered(name: str, count: int) -> list[str]:
    """Return numbered names; a single object keeps the bare name."""
    return [name] if count == 1 else [f"{name}{number}" for number in range(count)]
