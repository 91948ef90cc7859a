"""Bodies that a client writes together are checked together; their sends take the fast path."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.errors import ValidationFailed
from brokerd.sessions import fast_requests, work
from brokerd.sessions.early_body_checks import MOST_AHEAD
from tests.integration.checking.gate import Gate
from tests.integration.one_daemon import Daemon
from tests.integration.scenarios import given
from tests.integration.sessions.raw_client import I2, H, ask, client

SCHEMA = '{"type": "object", "required": ["n"]}'
OBJECTS: dict[str, Any] = {
    "broker": {"name": "main", "default_encryption": "off"},
    "message_type": [{"name": "Count", "validation": "valid_json", "schema": SCHEMA}],
    "contract": [{"name": "counts", "types": {"Count": "any"}}],
    "queue": [{"name": "here"}, {"name": "there"}],
    "service": [
        {"name": "urn:here", "queue": "here", "contracts": ["counts"]},
        {"name": "urn:there", "queue": "there", "contracts": ["counts"]},
    ],
}


OTHER = b'{"n": "other"}'


def count(number: int) -> bytes:
    return b'{"n": %d}' % number


def begin(handle: bytes) -> list[object]:
    return ["begin_dialog", [handle, "urn:here", "urn:there", {"contract": "counts"}]]


def send(handle: bytes, body: bytes) -> list[object]:
    return ["send", [handle, "Count", body]]


class Place:
    def __init__(self, daemon: Daemon, session: Session) -> None:
        self.daemon = daemon
        self.session = session
        self.gate = Gate(daemon.broker)

    async def dialogs(self, number: int) -> list[bytes]:
        """Dialogs on which one message was sent, so that the next ones may take the fast path."""
        made: list[bytes] = []
        for _ in range(number):
            handle = await self.session.begin_dialog("urn:here", "urn:there", "counts")
            sent = self.session.submit_send(handle, count(0), "Count")
            await self.wait()
            self.finish_all()
            await sent
            made.append(handle)
        await self.received()
        return made

    async def wait(self) -> None:
        await self.daemon.pass_time(0.5)

    def finish_all(self) -> None:
        while self.gate.open:
            self.gate.finish()

    async def received(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        while got := await self.session.receive("there", autocommit=True):
            found += [one.body for one in got]
        return found


@asynccontextmanager
async def one_broker(daemon: Daemon, _folder: Path) -> AsyncIterator[tuple[Place]]:
    """After the test no body and no verdict is kept."""
    async with await daemon.session() as session:
        await session.apply(OBJECTS)
        yield (Place(daemon, session),)
        await daemon.pass_time(1)
        assert len(daemon.broker.inspection) == 0


scenario = given(one_broker)


@pytest.mark.rule("OBJ-61", "CLP-31")
@scenario
async def test_pipelined_sends_are_checked_together_and_stay_in_order(place: Place) -> None:
    one, other = await place.dialogs(2)
    handles = [one, one, other, one]
    sent = [place.session.submit_send(to, count(at), "Count") for at, to in enumerate(handles)]
    await place.wait()
    assert [pending.body for pending in place.gate.open] == [count(at) for at in range(4)]
    place.finish_all()
    await asyncio.gather(*sent)
    received = await place.received()
    assert [body for body in received if body != count(2)] == [count(0), count(1), count(3)]


@pytest.mark.rule("OBJ-61", "CLP-34")
@scenario
async def test_the_sends_of_a_transaction_are_checked_together(place: Place) -> None:
    (handle,) = await place.dialogs(1)

    async def send_all() -> None:
        async with place.session.transaction() as tx:
            for at in range(5):
                await tx.send(handle, count(at), "Count")

    sending = asyncio.create_task(send_all())
    await place.wait()
    assert len(place.gate.open) == 5
    place.finish_all()
    await sending
    assert await place.received() == [count(at) for at in range(5)]


@pytest.mark.rule("OBJ-18", "DLG-43")
@scenario
async def test_one_that_does_not_fit_spoils_its_dialog_alone(place: Place) -> None:
    one, other = await place.dialogs(2)
    bodies = [(one, count(1)), (one, b'{"m": 2}'), (one, count(3)), (other, count(4))]
    sent = [place.session.submit_send(to, body, "Count") for to, body in bodies]
    await place.wait()
    place.finish_all()
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(one).__name__ for one in outcomes] == [
        "NoneType", "NoneType", "InvalidState", "NoneType",
    ]  # fmt: skip
    received = await place.received()
    assert count(4) in received
    assert count(1) in received
    assert count(3) not in received


@pytest.mark.rule("PBT-14")
@scenario
async def test_what_the_sender_checks_itself_is_refused_to_it(place: Place) -> None:
    strict = {**OBJECTS["message_type"][0], "validate_on_send": "on"}
    await place.session.apply({**OBJECTS, "message_type": [strict]})
    (handle,) = await place.dialogs(1)
    sent = [place.session.submit_send(handle, one, "Count") for one in (b'{"m": 1}', count(2))]
    await place.wait()
    place.finish_all()
    refused, taken = await asyncio.gather(*sent, return_exceptions=True)
    assert isinstance(refused, ValidationFailed)
    assert taken is None
    assert await place.received() == [count(2)]


@pytest.mark.rule("OBJ-61", "CLP-51")
@pytest.mark.parametrize("fast", [True, False])
def test_checked_sends_have_the_same_effect_on_either_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    taken: list[bool] = []
    send_held_up: Callable[..., bool] = fast_requests.send_held_up

    def counting(*args: Any) -> bool:
        taken.append(fast and send_held_up(*args))
        return taken[-1]

    monkeypatch.setattr(work, "send_held_up", counting)

    @scenario
    async def both(place: Place) -> None:
        (handle,) = await place.dialogs(1)
        taken.clear()
        sent = [place.session.submit_send(handle, count(at), "Count") for at in range(6)]
        await place.wait()
        place.finish_all()
        await asyncio.gather(*sent)
        assert taken.count(True) == (6 if fast else 0)
        received = await place.session.receive("there", autocommit=True)
        assert [(one.sequence, one.body) for one in received] == [
            (at + 1, count(at)) for at in range(6)
        ]
        stored = await place.daemon.broker.store.endpoints.page(10)
        assert sorted((one.send_sequence, one.receive_sequence) for one in stored) == [
            (0, 7), (7, 0),
        ]  # fmt: skip

    both(tmp_path)


@pytest.mark.rule("OBJ-61", "REL-18")
@scenario
async def test_a_client_that_leaves_takes_its_checks_along(place: Place) -> None:
    """Also those of requests that wait for the one before them to begin."""
    (handle,) = await place.dialogs(1)
    raw = await client(place.daemon)
    raw.write(
        ask(1, None, "transact", 0, [begin(H), send(H, count(0))]),
        ask(2, None, "transact", 1, [send(handle, count(1))]),
        ask(3, None, "transact", 2, [send(handle, count(2))]),
    )
    await place.wait()
    inspection = place.daemon.broker.inspection
    assert [pending.body for pending in place.gate.open] == [count(at) for at in range(3)]
    assert len(inspection) == 3
    raw.transport.close()
    await place.wait()
    assert len(inspection) == 0
    assert all(pending.cancelled for pending in place.gate.open)
    place.finish_all()
    await place.wait()
    assert await place.received() == []


@pytest.mark.rule("OBJ-61")
@scenario
async def test_checks_of_others_do_not_wait_for_all_that_one_request_sends(place: Place) -> None:
    large, small = await place.dialogs(2)
    raw, other = await client(place.daemon), await client(place.daemon, b"client id 000002")
    many = [count(at) for at in range(1, 201)]
    raw.write(ask(1, None, "transact", 0, [send(large, body) for body in many]))
    await place.wait()
    assert [pending.body for pending in place.gate.open] == many[:MOST_AHEAD]
    other.write(ask(1, None, "transact", 0, [send(small, OTHER)]))
    await place.wait()
    assert place.gate.open[MOST_AHEAD].body == OTHER
    place.gate.finish()
    assert place.gate.open[-1].body == many[MOST_AHEAD]
    assert len(place.gate.open) == MOST_AHEAD + 1
    place.finish_all()
    assert await raw.answers() == [("done", 1)]
    assert await other.answers() == [("done", 1)]
    received = await place.received()
    assert [body for body in received if body != OTHER] == many


@pytest.mark.rule("OBJ-61")
@scenario
async def test_all_requests_of_a_client_share_one_limit_of_checks_ahead(place: Place) -> None:
    """Each that is at work has the check for which it waits besides."""
    one, two = await place.dialogs(2)
    raw = await client(place.daemon)
    first = [count(at) for at in range(1, 101)]
    second = [count(at) for at in range(101, 201)]
    raw.write(
        ask(1, 1, "begin"),
        *(ask(2 + at, 1, "send", one, "Count", body) for at, body in enumerate(first)),
    )
    await place.wait()
    assert [pending.body for pending in place.gate.open] == first[: MOST_AHEAD + 1]
    raw.write(ask(200, None, "transact", 0, [send(two, body) for body in second]))
    await place.wait()
    assert [pending.body for pending in place.gate.open[MOST_AHEAD + 1 :]] == second[:1]
    raw.write(ask(201, 1, "commit", 1))
    place.finish_all()
    await place.wait()
    place.finish_all()
    await raw.answers()
    received = await place.received()
    assert [body for body in received if body in first] == first
    assert [body for body in received if body in second] == second


@pytest.mark.rule("OBJ-61", "REL-18")
@scenario
async def test_no_check_begins_for_a_client_that_has_left(place: Place) -> None:
    (handle,) = await place.dialogs(1)
    raw = await client(place.daemon)
    bodies = [count(at) for at in range(1, 101)]
    raw.write(ask(1, None, "transact", 0, [send(handle, body) for body in bodies]))
    await place.wait()
    raw.transport.close()
    await place.wait()
    assert len(place.daemon.broker.inspection) == 0
    begun = len(place.gate.open)
    for _ in range(begun):
        place.gate.finish()
    assert place.gate.open == []
    assert await place.received() == []


@pytest.mark.rule("OBJ-61", "CLP-31")
@scenario
async def test_sends_on_a_dialog_that_a_waiting_request_begins_are_checked_together(
    place: Place,
) -> None:
    raw = await client(place.daemon)
    bodies = [count(at) for at in range(1, 4)]
    raw.write(
        ask(1, None, "transact", 0, [begin(H), send(H, count(0))]),
        ask(2, None, "transact", 1, [begin(I2), *(send(I2, body) for body in bodies)]),
    )
    await place.wait()
    assert [pending.body for pending in place.gate.open] == [count(0)]
    place.gate.finish()
    await place.wait()
    assert [pending.body for pending in place.gate.open] == bodies
    place.finish_all()
    await raw.answers()
    assert await place.received() == [count(0), *bodies]
