"""Boxcars: own messages and forwarded ones in turn."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.delivery.boxcars import Boxcars


@pytest.mark.rule("TRN-43")
def test_acks_of_this_instance_do_not_wait_for_all_that_passes_through() -> None:
    def filled(name: bytes) -> Any:
        return lambda _address, _bytes, count, alone=True: [name] * count

    transmitter: Any = SimpleNamespace(level=lambda _address: None, fill=filled(b"ack"))
    forwarder: Any = SimpleNamespace(level=lambda _address: 5, fill=filled(b"other"))
    boxcars = Boxcars(transmitter=transmitter, forwarder=forwarder)
    firsts = {boxcars.fill("there", 1000, 2)[0] for _ in range(2)}
    assert firsts == {b"ack", b"other"}
