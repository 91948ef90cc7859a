"""An acknowledgement takes what it covers: in memory, being read, in the store alone (DLP-20)."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.broker.outgoing import Outgoing, OutgoingMemory, OutgoingOptions
from brokerd.clock import Instant
from brokerd.ids import BrokerId, EndpointKey, Incarnation, MessageId
from brokerd.protocol.dialog import WHOLE
from brokerd.protocol.frames import Ack
from brokerd.protocol.transitions import State
from brokerd.storage.changes import OutgoingRow
from brokerd.storage.rows.paging import Page

MESSAGES = 10


def row(sequence, paged=1):
    return OutgoingRow(
        sequence + 1, EndpointKey(1), sequence, 0, "t", 100, paged, Instant(0),
        MessageId(b"m" * 16), None, b"%d" % sequence,
    )  # fmt: skip


def ack(sequence, fragment=WHOLE):
    return Ack(sequence, fragment, sequence, 0, BrokerId(b"b" * 16))


class Place:
    """The transmission object of a dialog after a start: ten messages, all in the store alone."""

    def __init__(self):
        endpoint: Any = SimpleNamespace(
            send_sequence=MESSAGES, receive_sequence=0, receive_fragment=0, last_message=None,
            is_initiator=False, first_acked=False, state=State.CONVERSING, end_sequence=-1,
            error_code=None,
        )  # fmt: skip
        self.pages: asyncio.Queue[Any] = asyncio.Queue()
        self.ready = 0
        self.reading: list[Any] = []
        live: Any = SimpleNamespace(endpoint=endpoint, queue=SimpleNamespace(broker_id=b"b" * 16))
        self.memory = OutgoingMemory(10**6)
        going: Any = SimpleNamespace(sent=0)
        self.out: Any = Outgoing(
            live, options=OutgoingOptions(), memory=self.memory,
            incarnation=Incarnation(b"i" * 16), going=going, page=self.page,
            spawn=lambda work: self.reading.append(asyncio.ensure_future(work)),
            ready=self.is_ready,
        )  # fmt: skip
        self.out.recovered(MESSAGES, 0)

    async def page(self, _live, first, *_limits):
        self.asked = first
        return await self.pages.get()

    def is_ready(self, _out):
        self.ready += 1

    async def read(self, sequences, damaged=()):
        """The page that was asked for has come."""
        rows, bad = [row(n) for n in sequences], [row(n) for n in damaged]
        self.pages.put_nowait(Page(rows, bad, None))
        await asyncio.gather(*self.reading)
        self.reading.clear()

    @property
    def held(self):
        return [one.sequence for one in self.out.window.messages()]


@pytest.mark.rule("DLP-20")
@pytest.mark.parametrize(
    ("acked", "through", "gone"),
    [
        (ack(-1, -1), None, 0),
        (ack(0, 3), None, 0),  # a part of the first message
        (ack(3, 3), 2, 3),  # and of one behind others
        (ack(3), 3, 4),
        (ack(MESSAGES - 1), MESSAGES - 1, MESSAGES),
        (ack(MESSAGES + 5), MESSAGES - 1, MESSAGES),  # more than there is
    ],
)
async def test_what_is_in_the_store_alone_is_counted_off(acked, through, gone):
    place = Place()
    removal = place.out.acknowledge(acked, 0.0)
    assert (None if removal is None else removal) == (
        None if through is None else ([], through, gone)
    )
    assert (place.out.pending, place.out.undelivered) == (MESSAGES - gone, MESSAGES - gone)
    assert place.out.base_sequence == gone
    assert place.memory.left == gone


@pytest.mark.rule("DLP-20")
async def test_what_is_not_durable_yet_cannot_be_acknowledged():
    place = Place()
    place.out.live.endpoint.send_sequence += 1
    place.out.joining(row(MESSAGES))
    assert place.out.acknowledge(ack(MESSAGES), 0.0) == ([], MESSAGES - 1, MESSAGES)
    place.out.published(row(MESSAGES))
    assert place.out.pending == 1


@pytest.mark.rule("DLP-20", "REL-10")
async def test_what_is_acknowledged_while_it_is_read_is_not_held():
    place = Place()
    place.out.refill()
    await asyncio.sleep(0)
    assert place.out.acknowledge(ack(5), 0.0) == ([], 5, 6)
    await place.read(range(8))
    assert place.held == [6, 7]
    assert place.out.pending == 4
    assert place.out.acknowledge(ack(8), 0.0) == ([7, 8], 8, 1)
    assert place.held == []
    assert place.out.pending == 1


@pytest.mark.rule("DLP-20", "REL-6")
async def test_damage_that_the_peer_has_whole_stops_nothing():
    place = Place()
    place.out.refill()
    await place.read([0, 1], damaged=[2])
    assert (place.held, place.out.damaged) == ([0, 1], 2)
    place.out.acknowledge(ack(2), 0.0)
    assert (place.held, place.out.damaged) == ([], None)
    assert place.out.has_work()
    place.out.refill()
    await asyncio.sleep(0)
    place.out.acknowledge(ack(4), 0.0)  # the page that is read began before it
    ready = place.ready
    await place.read([5, 6], damaged=[3])
    assert (place.held, place.out.damaged) == ([], None)
    assert place.ready == ready + 1  # it is read again


@pytest.mark.rule("DLG-T11", "DLG-T18")
async def test_a_withdrawal_takes_all_once_and_counts_them_once():
    place = Place()
    place.out.refill()
    await place.read(range(4))
    place.out.live.endpoint.send_sequence += 1
    place.out.joining(row(MESSAGES))
    assert place.out.undelivered == MESSAGES + 1
    removal = place.out.withdraw(100)
    assert removal == ([1, 2, 3, 4, MESSAGES + 1], MESSAGES, 7)
    assert (place.out.pending, place.out.undelivered, place.memory.used) == (0, 0, 0)
    assert place.out.withdraw(101).orders == []
    place.out.published(row(MESSAGES))
    assert place.out.pending == 0


@pytest.mark.rule("DLG-T18", "DLP-45")
async def test_what_is_read_after_withdrawal_begins_behind_the_withdrawn_rows():
    """They stay in the store until they are swept: a page of them alone would come for ever."""
    place = Place()
    place.out.withdraw(MESSAGES + 1)
    error = row(MESSAGES)
    place.out.joining(error)
    place.out.published(error)
    assert place.out.has_work()
    place.out.refill()
    await place.read([MESSAGES])
    assert (place.asked, place.held) == (MESSAGES, [MESSAGES])
    assert not place.out._may_load
