"""Losing: a connection, a daemon, or what a disk that stands still has not got yet.

Each is done to the engine and to the model; then everybody is connected again.
"""

from collections.abc import Callable
from typing import Any

from brokerd.errors import TransactionAborted
from tests.model.driver import APART, Asked, Driver
from tests.model.engine import Turn
from tests.model.reference.model import Request, Verb

BACK = 15.0
"""Virtual seconds in which a client is certainly back after a start; whether what it repeats then
comes before something that happens by itself meanwhile nobody says."""


def drop(driver: Driver, client: str) -> None:
    """The client's connection breaks; it comes back by itself (GRP-23)."""
    driver.note(f"{client}: the connection is lost")
    tx = driver.txs.pop(client, None)
    driver.engine.drop(client)
    driver.act()
    if tx is not None:
        driver.model.roll_back(tx)
    _reconnected(driver)


def crash(driver: Driver, seconds: float) -> None:
    """The daemon is killed, and started again after some time (MAN-12)."""
    driver.note(f"the daemon is killed, and started {seconds} seconds later")
    driver.engine.kill()
    _crashed(driver, seconds)


def commit_held(
    driver: Driver, client: str, probe: Callable[[], None] | None, *, crashes: bool
) -> None:
    """Commit while nothing becomes durable; look around meanwhile; then go on, or crash."""
    driver.room_for_a_wait()
    if any(at < driver.engine.now + 5 * APART for at in driver.deadlines()):
        driver.commit(client)
        return
    tx = driver.txs.pop(client)
    driver.note(f"{client}: commit, while the disk stands still")
    driver.engine.hold_disk()
    asked_at = driver.engine.now
    future = driver.engine.link(client).commit(tx.number).future
    driver.act()
    if probe is not None:
        probe()
    assert not future.done(), f"{client}: the commit is answered before it is durable"
    if crashes:
        driver.note("the daemon is killed while the disk stands still")
        driver.engine.kill()
        _crashed(driver, 1)
        error = future.exception()
        assert isinstance(error, TransactionAborted), f"the commit was lost, and is {error!r}"
        return
    driver.note("the disk goes on")
    driver.engine.release_disk()
    driver.act()
    driver.model.joined_at = asked_at
    driver.committed(client, tx, future)
    driver.model.joined_at = None
    _reconnected(driver)


def probe(driver: Driver, client: str, text: str, verb: Verb, wire: tuple[Any, ...]) -> None:
    """A verb while nothing becomes durable: if it has to read, it may have to wait for that."""
    tx = driver.transaction(client)
    pending = driver.engine.link(client).in_tx(tx.number, wire[0], wire[1:])
    driver.act()
    if pending.future.done():
        driver.note(f"{client}: {text}")
        driver.ask_model(Asked(client, text, Request(tx, [verb]), pending))
        return
    driver.note(f"{client}: {text} must wait for the disk; the connection is lost")
    driver.engine.drop(client)
    driver.act()
    driver.model.roll_back(driver.txs.pop(client))


def _crashed(driver: Driver, seconds: float) -> None:
    """The daemon has been killed: what is left of everything."""
    again = _lost(driver)
    driver.model.crash()
    driver.rest(seconds, BACK)
    with driver.model.in_any_order():
        driver.model.later(driver.engine.now)
    driver.engine.start()
    _await_connections(driver)
    for asked in again:
        asked.request = Request(driver.model.begin(asked.client), asked.request.all_verbs, True)
    driver.asked |= {one.client: one for one in again}
    _repeat(driver, again)
    driver.model.later(driver.engine.now)
    driver.compare()
    driver.comparing.repeated = bool(again)
    driver.look(changed=True)
    driver.comparing.repeated = False


def _repeat(driver: Driver, again: list[Asked]) -> None:
    """The model does what was repeated as the engine did, verb by verb: after a start each may
    have to read first, and then verbs of others come in between."""
    requests = {one.client: one.request for one in again}
    turns = [one for one in driver.engine.turns if one.client in requests]
    told = {one.client for one in turns}
    turns += [
        Turn(one.answered or 0, one.client, len(one.request.verbs))
        for one in again
        if one.client not in told
    ]
    for turn in sorted(turns):
        driver.model.ask(requests[turn.client], turn.verbs, commits=not turn.reads)
    for request in requests.values():
        driver.model.ask(request)


def _lost(driver: Driver) -> list[Asked]:
    """Forget what died with the daemon; return the requests that will be repeated (CLP-54)."""
    again = [one for one in driver.asked.values() if one.request.commits]
    for asked in again:
        asked.answered = None
    driver.txs.clear()
    driver.asked.clear()
    return again


def _reconnected(driver: Driver) -> None:
    _await_connections(driver)
    driver.model.later(driver.engine.now)
    driver.compare()
    driver.look()


def _await_connections(driver: Driver) -> None:
    for _ in range(1000):
        if driver.engine.is_connected():
            break
        driver.engine.rest(0.05)
    assert driver.engine.is_connected()
    driver.rest(APART)
