"""Administering: what an administrator does beside the clients, to the engine and to the model."""

from collections.abc import Callable

from tests.model.driver import Driver
from tests.model.reference.state import Endpoint

_ACKNOWLEDGED = 1.0
"""Virtual seconds in which what went through the transmission queue has left it (DLP-18)."""


def switch_retention(driver: Driver, queue: str, *, on: bool) -> None:
    """Have a queue retain from now on, or no longer (RCV-31, RCV-33)."""
    driver.note(f"queue {queue}: retention {'on' if on else 'off'}")
    driver.engine.alter_queue(queue, "retention", "on" if on else "off")
    driver.model.retains[queue] = on
    driver.settled()


def blink(driver: Driver, queue: str, meanwhile: Callable[[], None]) -> None:
    """Switch a queue off for a moment: nothing can be received (RCV-17, RCV-19), and what is sent
    to it waits at its sender (SND-18)."""
    driver.note(f"queue {queue}: off")
    driver.engine.alter_queue(queue, "status", "off")
    driver.model.switch_off(queue)
    driver.settled()
    meanwhile()
    driver.note(f"queue {queue}: on")
    driver.engine.alter_queue(queue, "status", "on")
    if any(one.waiting for one in driver.model.endpoints):
        driver.rest(_ACKNOWLEDGED)
    there = {(one.handle, one.sequence) for one in driver.engine.browse(queue)}
    driver.model.switch_on(queue, lambda to, sequence: (to.handle, sequence) in there)
    driver.settled()


def clean_up(driver: Driver, endpoint: Endpoint) -> None:
    """Remove an endpoint whose group nobody has locked (DLG-23, DLG-T27)."""
    assert endpoint.handle is not None
    driver.note(f"clean up {driver.names.of(endpoint.handle)}")
    driver.engine.clean_up(endpoint.handle)
    driver.model.clean_up(endpoint)
    driver.settled()
