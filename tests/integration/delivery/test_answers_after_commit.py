"""Whatever is answered about a dialog that is over leaves when its end is on disk (REL-4).

The writer of one broker is held back, so that its memory is ahead of its file, as in a flush that
takes its time; a crash then would bring the dialog back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.client.session import Session
from brokerd.model import ERROR
from brokerd.protocol.frames import END, AckOnly, BrokerErrorItem, Fragment, Item
from brokerd.protocol.transitions import State
from tests.integration.shorthand import take
from tests.integration.two_brokers import Wire, between


class _Held:
    """Jobs that the writer has not run yet."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, Any]] = []
        self.go_on: Any = None

    def submit(self, job: Any, reported: Any) -> None:
        self.jobs.append((job, reported))

    def release(self) -> None:
        for job, reported in self.jobs:
            self.go_on(job, reported)
        self.jobs.clear()


@contextmanager
def _writer_held(broker: Any) -> Iterator[_Held]:
    writer, held = broker.store._pipeline._writer, _Held()
    held.go_on = writer.submit
    with patch.object(writer, "submit", held.submit):
        yield held
    held.release()


def _answers(wire: Wire) -> list[Item]:
    """What `main`, the initiator, says without being asked to send."""
    return [
        item
        for item in wire.passed
        if isinstance(item, AckOnly | BrokerErrorItem) and item.from_initiator
    ]


async def _talk(wire: Wire, main: Session, east: Session) -> tuple[bytes, bytes]:
    """A dialog that both sides know, and nothing under way; its two handles."""
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"?", "Ask")
    (got,) = await take(east, "harbour", 1, wait=5)
    await east.send(got.handle, b"!", "Answer")
    await take(main, "desk", 1, wait=5)
    await wire.daemon.pass_time(2)
    return mine, got.handle


@pytest.mark.rule("REL-4", "DLP-48", "DLP-15")
@pytest.mark.parametrize("last", ["end", "message"])
def test_a_dialog_that_is_gone_in_memory_alone_answers_nothing(last: str, tmp_path: Any) -> None:
    @between
    async def program(wire: Wire, main: Session, east: Session) -> None:
        mine, theirs = await _talk(wire, main, east)
        wire.passed.clear()
        with _writer_held(wire.daemon.broker) as held:
            ending = wire.daemon.loop.create_task(main.admin.clean_up_endpoints("test"))
            await wire.daemon.pass_time(0.1)
            assert wire.daemon.broker.endpoints.find(mine) is None  # type: ignore[arg-type]
            assert held.jobs
            if last == "end":
                await east.end(theirs)
            else:
                await east.send(theirs, b"more", "Answer")
            await wire.daemon.pass_time(0.5)
            sent = [one for one in wire.passed if isinstance(one, Fragment)]
            assert [bool(one.flags & END) for one in sent] == [last == "end"]
            assert _answers(wire) == []
        await ending
        await wire.daemon.pass_time(0.1)
        answer = _answers(wire)[0]
        assert isinstance(answer, AckOnly if last == "end" else BrokerErrorItem)

    program(tmp_path)


@pytest.mark.rule("DLG-17", "DLG-T18", "DLP-15", "REL-4")
@pytest.mark.parametrize("error", [(), (7, "enough")], ids=["end", "error"])
def test_an_end_is_acknowledged_when_it_is_on_disk_and_before_anybody_sees_it(
    error: tuple[int, str], tmp_path: Any
) -> None:
    @between
    async def program(wire: Wire, main: Session, east: Session) -> None:
        mine, _ = await _talk(wire, main, east)
        with _writer_held(wire.east) as held:
            await main.end(mine, *error)
            await wire.daemon.pass_time(0.5)
            assert held.jobs
            live = wire.daemon.broker.endpoints.find(mine)  # type: ignore[arg-type]
            assert live is not None
            assert live.endpoint.state is State.DISCONNECTED_OUTBOUND
        await wire.daemon.pass_time(0.5)
        assert wire.daemon.broker.endpoints.find(mine) is None  # type: ignore[arg-type]
        assert len(await take(east, "harbour")) == 1  # nobody has received it until now

    program(tmp_path)


@pytest.mark.rule("REL-4", "DLP-42", "DLG-43")
@between
async def test_an_error_made_here_is_told_when_it_is_on_disk(
    wire: Wire, main: Session, east: Session
) -> None:
    mine, _ = await _talk(wire, main, east)
    await take(east, "harbour")
    wire.passed.clear()
    with _writer_held(wire.east) as held:
        await main.send(mine, b"not empty", "Nudge")
        await wire.daemon.pass_time(0.5)
        assert held.jobs
        assert not [one for one in wire.passed if isinstance(one, BrokerErrorItem)]
    await wire.daemon.pass_time(0.1)
    (told,) = [one for one in wire.passed if isinstance(one, BrokerErrorItem)]
    assert not told.from_initiator
    assert [one.message_type for one in await take(main, "desk")] == [ERROR]
