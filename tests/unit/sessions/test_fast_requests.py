"""Sends written together are read as they are wanted, on either path."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.protocol.client_frames import Request
from brokerd.sessions import fast_requests


@pytest.mark.rule("CLP-62")
def test_sends_that_take_the_general_path_are_not_read_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = 0
    read = fast_requests._as_sends

    def counting(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*args)

    def declining(_broker: object, sends: Any, **_options: object) -> int:
        next(iter(sends))
        return 0

    monkeypatch.setattr(fast_requests, "_as_sends", counting)
    monkeypatch.setattr(fast_requests, "send_each", declining)
    frames: deque[Any] = deque(
        Request(number, None, "transact", [number, [["send", [b"h" * 16, "t", b"x"]]]])
        for number in range(1, 201)
    )
    store = SimpleNamespace(highest_token=lambda _client: 0)
    session: Any = SimpleNamespace(
        client_id=b"c" * 16,
        rights=None,
        broker=SimpleNamespace(store=store),
        responses=SimpleNamespace(confirmed=None),
    )
    while frames:
        assert fast_requests.perform_leading(session, frames, 1024) == 0
        frames.popleft()
    assert reads <= 2 * 200
