"""Messages whose last fragment does not come, or comes late: what memory keeps of them (DSP-15)."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.broker.unfinished import COST
from brokerd.config.settings import Dispatcher
from brokerd.ids import EndpointKey, InstanceId
from brokerd.protocol.frames import Fragment
from brokerd.storage.executors import Inline
from tests.integration.fastpath.arrivals import arriving
from tests.integration.one_daemon import Daemon, play, rows
from tests.integration.shorthand import receive_all
from tests.integration.storage.disks import Platter

NEAR, OTHER = InstanceId(b"n" * 16), InstanceId(b"o" * 16)
"""Two neighbours."""
DIALOGS = range(1, 13)
PIECES = 5
SIZE = 1000
WHOLE = {
    dialog: b"".join(bytes([dialog, n]) * (SIZE // 2) for n in range(PIECES)) for dialog in DIALOGS
}
"""The body of each dialog's first message."""


def pieces(daemon: Daemon, numbers: Iterable[int], **fields: Any) -> Iterator[list[Fragment]]:
    """These fragments of all dialogs, those of one number together."""
    for number in numbers:
        yield [
            arriving(
                daemon,
                dialog,
                0,
                fragment=number,
                fragments=PIECES,
                body=WHOLE[dialog][number * SIZE : (number + 1) * SIZE],
                **fields,
            )
            for dialog in DIALOGS
        ]


async def arrive(daemon: Daemon, boxcars: Iterable[list[Fragment]]) -> None:
    for boxcar in boxcars:
        daemon.instance.parts.dispatcher.arrived(boxcar)
        await daemon.pass_time(1)


def in_memory(daemon: Daemon) -> int:
    """Bytes of stored fragments of unfinished messages that some endpoint holds."""
    return sum(len(part) for live in daemon.broker.endpoints.all() for part in live.parts)


async def expect_all(daemon: Daemon) -> None:
    """Every message is there, once and whole, and nothing is left of its fragments."""
    async with await daemon.session() as session:
        assert sorted(body or b"" for body in await receive_all(session)) == sorted(WHOLE.values())
    assert daemon.broker.unfinished.size == 0
    assert in_memory(daemon) == 0
    await daemon.pass_time(1)
    assert await rows(daemon, "body_pieces") == 0


@pytest.mark.rule("DSP-15", "REL-25", "SX-12")
@pytest.mark.parametrize("limit", [1, 2 * SIZE, 3 * (PIECES - 1) * (SIZE + COST)])
@pytest.mark.parametrize("large_body", [64, 1 << 20])
def test_unfinished_messages_take_little_memory_and_are_whole_in_the_end(
    tmp_path: Path, limit: int, large_body: int
) -> None:
    async def scenario(daemon: Daemon) -> None:
        await arrive(daemon, pieces(daemon, range(PIECES - 1)))
        assert in_memory(daemon) <= daemon.broker.unfinished.size
        assert daemon.broker.unfinished.size <= limit + (PIECES - 1) * (SIZE + COST)
        await arrive(daemon, pieces(daemon, [PIECES - 1]))
        await expect_all(daemon)

    play(scenario, tmp_path, unfinished_bytes=limit, large_body=large_body)


@pytest.mark.rule("DSP-15", "DLP-11", "REL-7")
@pytest.mark.parametrize("seen", [0, 1])
def test_after_a_start_only_what_is_about_to_be_complete_is_read(tmp_path: Path, seen: int) -> None:
    async def scenario(daemon: Daemon) -> None:
        await arrive(daemon, pieces(daemon, range(PIECES - 2)))
        await daemon.restart()
        if seen:
            await arrive(daemon, pieces(daemon, [PIECES - 2]))
            assert in_memory(daemon) == 0
        await arrive(daemon, pieces(daemon, range(PIECES - 2, PIECES)))
        await expect_all(daemon)

    play(scenario, tmp_path)


@pytest.mark.rule("DSP-15", "DLP-35")
def test_the_last_fragment_may_come_before_those_in_the_middle(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        await arrive(daemon, pieces(daemon, [0]))
        backwards = [list(reversed(one)) for one in pieces(daemon, reversed(range(1, PIECES)))]
        daemon.instance.parts.dispatcher.arrived(list(chain(*backwards)))
        await daemon.pass_time(1)
        await expect_all(daemon)

    play(scenario, tmp_path, unfinished_bytes=1)


@pytest.mark.rule("DSP-15", "OBJ-18")
def test_bodies_that_are_checked_aside_get_through_with_room_for_none(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        daemon.objects["message_type"] = [
            one | {"validation": "well_formed_json"} if one["name"] == "Ask" else one
            for one in daemon.objects["message_type"]
        ]
        async with await daemon.session() as session:
            await session.apply(daemon.objects)
        text = b'["' + b"x" * 300 + b'"]'
        cut = [text[:100], text[100:200], text[200:]]
        for number, body in enumerate(cut):
            daemon.instance.parts.dispatcher.arrived(
                [
                    arriving(daemon, dialog, 0, fragment=number, fragments=3, body=body)
                    for dialog in DIALOGS
                ]
            )
            await daemon.pass_time(1)
        async with await daemon.session() as session:
            assert await receive_all(session) == [text] * len(DIALOGS)

    play(scenario, tmp_path, unfinished_bytes=1, check_aside=16)


@pytest.mark.rule("DSP-15", "DSP-12")
def test_what_was_read_for_a_broker_that_is_switched_off_leaves_room_for_others(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Daemon) -> None:
        await arrive(daemon, pieces(daemon, range(PIECES - 1)))
        store = daemon.broker.store
        read, gate = store.incomplete.parts, asyncio.Event()

        async def later(key: EndpointKey) -> Any:
            found = await read(key)
            await gate.wait()
            return found

        ((first, *others),) = pieces(daemon, [PIECES - 1])
        async with await daemon.session() as session:
            with patch.object(store.incomplete, "parts", later):
                await arrive(daemon, [[first]])
                await session.admin.disable()
                gate.set()
                await daemon.pass_time(1)
            await session.admin.enable()
            await arrive(daemon, [others])
            assert set(await receive_all(session)) == {WHOLE[one] for one in DIALOGS if one != 1}
        await arrive(daemon, [[first]])  # sent again
        async with await daemon.session() as session:
            assert await receive_all(session) == [WHOLE[1]]

    play(scenario, tmp_path, unfinished_bytes=1)


@pytest.mark.rule("DSP-15", "DLG-T10")
def test_an_end_drops_what_only_the_store_has(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        dispatcher.arrived([arriving(daemon, dialog, 0) for dialog in DIALOGS])
        await daemon.pass_time(1)
        for number in range(3):
            dispatcher.arrived(
                [
                    arriving(daemon, dialog, 1, fragment=number, fragments=4, body=b"x" * SIZE)
                    for dialog in DIALOGS
                ]
            )
            await daemon.pass_time(1)
        async with await daemon.session() as session:
            while got := await session.receive("shop", autocommit=True):
                for one in got:
                    await session.end(one.handle)
        await daemon.pass_time(1)
        assert await rows(daemon, "body_pieces") == await rows(daemon, "bodies") == 0
        assert daemon.broker.incomplete == {}
        assert daemon.broker.unfinished.size == 0

    play(scenario, tmp_path, unfinished_bytes=1)


@pytest.mark.rule("SND-12", "DSP-15")
def test_fragments_that_grow_do_not_make_a_message_larger_than_it_may_be(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        for number in range(PIECES):
            body = b"x" if not number else b"x" * SIZE
            dispatcher.arrived(
                [arriving(daemon, 1, 0, fragment=number, fragments=PIECES, body=body)]
            )
            await daemon.pass_time(1)
        async with await daemon.session() as session:
            assert b"x" + b"x" * (SIZE * (PIECES - 1)) not in await receive_all(session)

    play(scenario, tmp_path, max_message=2 * SIZE)


async def bring(
    daemon: Daemon, neighbour: InstanceId, dialogs: Iterable[int], *numbers: int
) -> None:
    """A neighbour brings these fragments of the first messages of dialogs."""
    for number in numbers:
        for dialog in dialogs:
            body = WHOLE[dialog][number * SIZE : (number + 1) * SIZE]
            item = arriving(daemon, dialog, 0, fragment=number, fragments=PIECES, body=body)
            daemon.instance.parts.dispatcher.arrived([item], neighbour)
        await daemon.pass_time(1)


@pytest.mark.rule("DSP-16", "BI-F8", "REL-23")
def test_a_peer_may_begin_so_many_dialogs_before_it_completes_one(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        await daemon.restart(dispatcher=Dispatcher(max_openings=3))
        dispatcher = daemon.instance.parts.dispatcher
        await bring(daemon, NEAR, range(1, 6), 0, 1)
        assert dispatcher.dropped == {"openings": 4}
        assert len(daemon.broker.incomplete) == 3
        await bring(daemon, OTHER, [6], *range(PIECES))  # another peer is not concerned
        dispatcher.arrived([arriving(daemon, 7, 0)], NEAR)  # nor is a message in one piece
        await daemon.pass_time(1)
        await bring(daemon, NEAR, [1], *range(2, PIECES))
        await bring(daemon, NEAR, [4], 0)  # sent again: there is room now
        assert dispatcher.dropped == {"openings": 4}
        await bring(daemon, NEAR, [5], 0)
        assert dispatcher.dropped == {"openings": 5}
        for dialog, numbers in ((4, range(1, PIECES)), (5, range(PIECES))):
            await bring(daemon, NEAR, [dialog], *numbers)
        async with await daemon.session() as session:
            found = await receive_all(session)
        assert set(found) == {b"7/0", *(WHOLE[one] for one in (1, 4, 5, 6))}
        assert len(found) == 5

    play(scenario, tmp_path)


@pytest.mark.rule("DSP-16", "DSP-9")
def test_dialogs_of_which_nothing_is_stored_count_until_a_tick_has_dropped_them(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Daemon) -> None:
        await daemon.restart(dispatcher=Dispatcher(max_openings=3))
        dispatcher = daemon.instance.parts.dispatcher
        await bring(daemon, NEAR, [1, 2, 3], 1)  # behind a gap
        await bring(daemon, NEAR, [4], 0, 1)
        assert dispatcher.dropped == {"openings": 2}
        await daemon.pass_time(20)
        assert dispatcher.dropped == {"openings": 2, "out_of_order": 3}
        await bring(daemon, NEAR, [4], *range(PIECES))
        async with await daemon.session() as session:
            assert await receive_all(session) == [WHOLE[4]]
        assert dispatcher.dropped == {"openings": 2, "out_of_order": 3}

    play(scenario, tmp_path)


@pytest.mark.rule("DSP-16", "REL-23")
def test_the_limit_holds_while_what_was_let_in_is_not_durable_yet(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        await daemon.stop()
        platter = Platter()
        daemon.executor = Inline(platter)
        await daemon.start(dispatcher=Dispatcher(max_openings=3))
        platter.hold()
        for first in (1, 5, 9):
            await bring(daemon, NEAR, range(first, first + 4), 0)
        assert daemon.broker.incomplete == {}
        platter.let_go()
        await daemon.pass_time(1)
        assert len(daemon.broker.incomplete) == 3
        assert daemon.instance.parts.dispatcher.dropped == {"openings": 9}

    play(scenario, tmp_path)


@pytest.mark.rule("DSP-16", "BI-F8")
def test_an_opening_that_ends_without_a_fragment_makes_room_within_a_tick(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        await daemon.restart(dispatcher=Dispatcher(max_openings=2))
        dispatcher = daemon.instance.parts.dispatcher
        await bring(daemon, NEAR, [1, 2], 0)
        live = daemon.broker.endpoints.find_conversation(
            arriving(daemon, 1, 0).conversation_id, initiator=False
        )
        assert live is not None
        async with await daemon.session() as session:
            await session.admin.clean_up(live.endpoint.handle, "nobody waits for it")
        await bring(daemon, NEAR, [3], 0)
        assert dispatcher.dropped == {"openings": 1}
        await daemon.pass_time(daemon.instance.settings.clock.tick.total_seconds())
        await bring(daemon, NEAR, [3], 0)  # sent again
        assert dispatcher.dropped == {"openings": 1}
        await bring(daemon, NEAR, [4], 0)
        assert dispatcher.dropped == {"openings": 2}

    play(scenario, tmp_path)


@pytest.mark.rule("DSP-16", "DSP-10", "REL-23", "BI-F8")
def test_fragments_behind_a_gap_leave_room_to_other_peers(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        low = 64 * 1024
        marks = Dispatcher(mem_low=low, mem_high=low, mem_hard=low, mem_dialog=low)
        await daemon.restart(dispatcher=marks)
        dispatcher = daemon.instance.parts.dispatcher
        await bring(daemon, NEAR, DIALOGS, *range(1, PIECES))  # none has its first one
        assert dispatcher.dropped["early_memory"] > 0
        assert dispatcher.dropped.keys() == {"early_memory"}
        await bring(daemon, OTHER, [12], 2)
        assert dispatcher.dropped.total() == dispatcher.dropped["early_memory"]
        before = dispatcher.dropped["early_memory"]
        await bring(daemon, OTHER, [12], 0, 1)
        assert dispatcher.dropped["early_memory"] == before
        await daemon.pass_time(30)  # what was dropped was not acknowledged, and is sent again
        for number in range(PIECES):
            await bring(daemon, NEAR, [one for one in DIALOGS if one != 12], number)
            await bring(daemon, OTHER, [12], number)
        await expect_all(daemon)

    play(scenario, tmp_path)
