"""What the dispatcher keeps, drops and counts (DSP)."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from brokerd.config.settings import Dispatcher
from brokerd.delivery.incoming import arrival_writer
from brokerd.protocol.frames import END
from tests.integration.fastpath.arrivals import arriving
from tests.integration.one_daemon import Daemon, play


def _settled(daemon: Daemon) -> None:
    """NBT-15: each fragment is in exactly one place."""
    found = daemon.instance.parts.dispatcher
    assert found.received == (
        found.stored + found.duplicates + found.dropped.total() + found.buffered
    ), (found.received, found.stored, found.duplicates, found.dropped, found.buffered)


def _lines(daemon: Daemon, event: str = "broker.message_undeliverable") -> list[dict[str, Any]]:
    return [fields for name, fields in daemon.log.lines if name == event]


async def _bodies(daemon: Daemon) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with await daemon.session() as session, session.transaction() as tx:
        while batch := await tx.receive("shop"):
            found += [one.body for one in batch]
    return found


async def _seen(daemon: Daemon, *names: str) -> list[object]:
    """Columns of `broker_statistics`."""
    async with await daemon.session() as session:
        (row,) = await session.view("broker_statistics")
    return [row[name] for name in names]


async def _done(daemon: Daemon, task: str) -> object:
    async with await daemon.session() as session:
        (row,) = await session.view("periodic_tasks", where={"task": task})
    return row["done_total"]


@pytest.mark.rule(
    "DSP-9", "DLP-35", "DLP-39", "DSP-14", "PER-6", "PER-7", "PER-8", "MON-9", "VIEW-13",
    "BI-F8",
)  # fmt: skip
def test_early_fragments_wait_for_one_tick_and_go(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        dispatcher.arrived([arriving(daemon, 1, 2), arriving(daemon, 2, 1)])
        await daemon.pass_time(4)
        assert dispatcher.buffered == 2
        assert not daemon.broker.endpoints.all()  # nothing of them is durable
        dispatcher.arrived([arriving(daemon, 1, 1), arriving(daemon, 1, 0)])
        await daemon.pass_time(1)
        assert await _bodies(daemon) == [b"1/0", b"1/1", b"1/2"]
        await daemon.pass_time(15)
        assert dispatcher.buffered == 0
        assert dispatcher.dropped == {"out_of_order": 1}
        seen = "out_of_order_fragments_total", "stale_fragments_total"
        assert await _seen(daemon, *seen) == [1, 0]
        assert await _done(daemon, "dispatcher") == 1
        _settled(daemon)
        dispatcher.arrived([arriving(daemon, 2, 0)])
        await daemon.pass_time(1)
        assert await _bodies(daemon) == [b"2/0"]  # 2/1 has to come again

    play(program, tmp_path)


@pytest.mark.rule("DSP-9", "PER-7", "PER-8", "MON-9")
def test_what_no_task_picks_up_is_stale_after_ten_seconds(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        with patch.object(arrival_writer.ArrivalWriter, "schedule", lambda *_: None):
            dispatcher.arrived([arriving(daemon, 1, 0)])
            await daemon.pass_time(9)
            assert dispatcher.buffered == 1
            await daemon.pass_time(7)  # CLK-5: 10 to 15 s
            assert dispatcher.buffered == 0
        assert dispatcher.dropped == {"stale": 1}
        seen = "out_of_order_fragments_total", "stale_fragments_total"
        assert await _seen(daemon, *seen) == [0, 1]
        _settled(daemon)
        dispatcher.arrived([arriving(daemon, 1, 0)])
        await daemon.pass_time(1)
        assert await _bodies(daemon) == [b"1/0"]

    play(program, tmp_path)


@pytest.mark.rule("DSP-8", "DSP-6", "DSP-7", "PER-4", "PER-5", "MON-9")
def test_a_failure_to_store_is_tried_again_and_given_up_after_three(tmp_path: Path) -> None:
    failing = {1, 2}
    judge = arrival_writer.check_run

    def check(broker: Any, live: Any, run: Any, inspected: Any) -> Any:
        if run[0].conversation_id[0] in failing:
            raise MemoryError("no room for it")
        return judge(broker, live, run, inspected)

    async def program(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        with patch.object(arrival_writer, "check_run", check):
            dispatcher.arrived([arriving(daemon, n, 0) for n in (1, 2, 3)])
            await daemon.pass_time(1)
            assert await _bodies(daemon) == [b"3/0"]  # the others go on
            assert dispatcher.buffered == 2
            failing.discard(2)
            assert await _seen(daemon, "task_handlers", "task_restarts_total") == [1, 0]
            await daemon.pass_time(5)
            assert await _seen(daemon, "task_handlers", "task_restarts_total") == [1, 2]
            assert await _bodies(daemon) == [b"2/0"]  # at the next tick, without an arrival
            dispatcher.arrived([arriving(daemon, 1, 1)])
            await daemon.pass_time(1)
            assert dispatcher.buffered == 0
        assert dispatcher.dropped == {"store_failed": 2}
        failed = [line for line in _lines(daemon) if "attempts" in line]
        assert [line["attempts"] for line in failed] == [1, 1, 2, 3]
        assert {line["ssb_code"] for line in failed} == {28005}
        _settled(daemon)
        dispatcher.arrived([arriving(daemon, 1, 0)])
        await daemon.pass_time(1)
        assert await _bodies(daemon) == [b"1/0"]

    play(program, tmp_path)


@pytest.mark.rule("DSP-10")
def test_memory_has_marks_and_a_limit(tmp_path: Path) -> None:
    kib = 1024
    sizes = Dispatcher(
        mem_low=64 * kib, mem_high=128 * kib, mem_hard=192 * kib, mem_dialog=128 * kib
    )

    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(dispatcher=sizes)
        dispatcher, told = daemon.instance.parts.dispatcher, []
        memory, store = dispatcher._memory, daemon.broker.store
        parts = {"fragments": 8, "body": b"x" * 30 * kib}
        waiting: list[Any] = []
        with (
            patch.object(memory, "_pause", lambda: told.append("pause")),
            patch.object(memory, "_resume", lambda: told.append("resume")),
            patch.object(store, "join", lambda *args, **more: waiting.append((args, more))),
        ):
            for number in range(6):  # the first is being stored, the others wait behind it
                dispatcher.arrived([arriving(daemon, 1, 0, fragment=number, **parts)])
                await daemon.pass_time(0.1)
            assert dispatcher.dropped == {"dialog_memory": 1}
            assert told == []
            for number in range(5):
                dispatcher.arrived([arriving(daemon, 2, 0, fragment=number, **parts)])
                await daemon.pass_time(0.1)
            assert told == ["pause"]
            assert dispatcher.dropped == {"dialog_memory": 1, "dispatcher_memory": 2}
            assert {(line["reason"], line["ssb_code"]) for line in _lines(daemon)} == {
                ("dialog_memory", 11237),
                ("dispatcher_memory", 11237),
            }
        with patch.object(memory, "_resume", lambda: told.append("resume")):
            for args, more in waiting:
                store.join(*args, **more)
            await daemon.pass_time(1)
        assert told == ["pause", "resume"]
        assert dispatcher.buffered == 0

    play(program, tmp_path)


@pytest.mark.rule("DSP-10")
def test_a_dialog_that_is_in_order_may_hold_no_more_than_one_that_is_not(tmp_path: Path) -> None:
    kib = 1024

    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(dispatcher=Dispatcher(mem_dialog=128 * kib))
        dispatcher, store = daemon.instance.parts.dispatcher, daemon.broker.store
        parts = {"fragments": 8, "body": b"x" * 30 * kib}
        waiting: list[Any] = []
        with patch.object(store, "join", lambda *args, **more: waiting.append((args, more))):
            for number in range(6):  # the first is being stored; behind it there is room for four
                dispatcher.arrived([arriving(daemon, 1, 0, fragment=number, **parts)])
                await daemon.pass_time(0.1)
            assert dispatcher.dropped == {"dialog_memory": 1}
        for args, more in waiting:
            store.join(*args, **more)
        await daemon.pass_time(1)
        dispatcher.arrived([arriving(daemon, 1, 0, fragment=n, **parts) for n in range(5, 8)])
        await daemon.pass_time(1)
        assert [len(body or b"") for body in await _bodies(daemon)] == [240 * kib]
        _settled(daemon)

    play(program, tmp_path)


@pytest.mark.rule("DSP-10", "DSP-9")
def test_early_fragments_that_fill_the_dialog_do_not_shut_out_the_next(tmp_path: Path) -> None:
    kib = 1024

    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(dispatcher=Dispatcher(mem_dialog=128 * kib))
        body = b"x" * 30 * kib
        daemon.instance.parts.dispatcher.arrived(
            [arriving(daemon, 1, number, body=body) for number in (1, 2, 3, 4, 0)]
        )
        await daemon.pass_time(1)
        assert len(await _bodies(daemon)) == 5

    play(program, tmp_path)


@pytest.mark.rule("DSP-13", "NBT-15", "DLP-48")
def test_every_dropped_fragment_is_one_line_and_one_count(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        dispatcher.arrived([arriving(daemon, n, 0) for n in (1, 2, 3, 4)])
        await daemon.pass_time(1)
        before = len(_lines(daemon))
        items = [
            arriving(daemon, 1, 0),  # a repeat
            arriving(daemon, 2, 1, message_type="Answer"),  # refused: the wrong side
            arriving(daemon, 2, 2),
            arriving(daemon, 5, 0, message_type="unknown"),  # no dialog begins
            arriving(daemon, 5, 1),
            arriving(daemon, 3, 2),  # early, and stays so
            arriving(daemon, 4, 1, flags=END, message_type="", body=b""),
            arriving(daemon, 4, 2),  # after the end
        ]
        dispatcher.arrived(items)
        await daemon.pass_time(60)
        _settled(daemon)
        dropped = dispatcher.dropped.total() + dispatcher.duplicates
        assert dropped == len(_lines(daemon)) - before
        assert dispatcher.stored == 5
        assert dispatcher.duplicates == 1

    play(program, tmp_path)


@pytest.mark.rule("DSP-2", "DSP-1", "DLP-36")
def test_one_dialog_is_stored_by_one_task_at_a_time(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        dispatcher, store = daemon.instance.parts.dispatcher, daemon.broker.store
        joined: list[list[int]] = []
        join = store.join

        def keep(changes: Any, done: Any, **more: Any) -> None:
            joined.append(sorted(row.sequence for row in changes.enqueued))
            waiting.append(lambda: join(changes, done, **more))

        waiting: list[Any] = []
        parts = {"fragment": 0, "fragments": 2, "body": b"a"}
        dispatcher.arrived([arriving(daemon, 1, 0), arriving(daemon, 2, 0)])
        await daemon.pass_time(1)
        with patch.object(store, "join", keep):
            dispatcher.arrived([arriving(daemon, 1, 1, **parts)])  # not plain: a round
            await daemon.pass_time(0.1)
            late = {"fragment": 1, "fragments": 2, "body": b"b"}
            dispatcher.arrived([arriving(daemon, 1, 1, **late), arriving(daemon, 2, 1, **parts)])
            await daemon.pass_time(0.1)
            assert len(joined) == 2  # dialog 1 waits for its first batch, dialog 2 does not
            assert dispatcher.buffered == 1
        for one in waiting:
            one()
        await daemon.pass_time(1)
        assert dispatcher.buffered == 0
        assert await _bodies(daemon) == [b"1/0", b"ab", b"2/0"]

    play(program, tmp_path)


@pytest.mark.rule("DSP-3")
def test_a_round_takes_at_most_a_batch_of_each_dialog(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(dispatcher=Dispatcher(batch=4))
        sizes: list[int] = []
        join = daemon.broker.store.join

        def count(changes: Any, done: Any, **more: Any) -> None:
            sizes.append(len(changes.enqueued))
            join(changes, done, **more)

        with patch.object(daemon.broker.store, "join", count):
            # All early but the first, so that they become consecutive at once.
            daemon.instance.parts.dispatcher.arrived(
                [arriving(daemon, 1, n) for n in range(1, 10)] + [arriving(daemon, 1, 0)]
            )
            await daemon.pass_time(1)
        assert [size for size in sizes if size] == [4, 4, 2]
        assert len(await _bodies(daemon)) == 10

    play(program, tmp_path)


@pytest.mark.rule("DLP-45", "DLP-48", "DSP-13", "BI-F9")
def test_fragments_of_another_broker_or_of_other_names_are_not_taken(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        dispatcher.arrived([arriving(daemon, 1, 0)])
        await daemon.pass_time(1)
        wrong = [
            msgspec.structs.replace(arriving(daemon, 1, 1), from_broker=b"s" * 16),
            msgspec.structs.replace(arriving(daemon, 1, 1), to_service="urn:spare"),
            msgspec.structs.replace(arriving(daemon, 1, 1), contract="other"),
        ]
        dispatcher.arrived(wrong)
        await daemon.pass_time(1)
        assert dispatcher.dropped == {"stray": 1, "names_differ": 2}
        assert [line["ssb_code"] for line in _lines(daemon)] == [11224, 11222, 11223]
        dispatcher.arrived([arriving(daemon, 1, 1)])
        await daemon.pass_time(1)
        assert await _bodies(daemon) == [b"1/0", b"1/1"]
        _settled(daemon)

    play(program, tmp_path)


@pytest.mark.rule("DSP-4", "DSP-12")
def test_of_all_that_is_wrong_with_a_fragment_the_first_decides(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        dispatcher.arrived([arriving(daemon, 1, 0), arriving(daemon, 1, 1)])
        await daemon.pass_time(1)
        repeat = arriving(daemon, 1, 0)
        names = msgspec.structs.replace(repeat, contract="other")
        stray = msgspec.structs.replace(names, from_broker=b"s" * 16)
        for item in (stray, names, repeat):
            dispatcher.arrived([item])
        await daemon.pass_time(1)
        assert dispatcher.dropped == {"stray": 1, "names_differ": 1}
        assert dispatcher.duplicates == 1
        async with await daemon.session() as session:
            await session.admin.disable()
        for item in (stray, names, repeat):
            dispatcher.arrived([item])
        await daemon.pass_time(1)
        (reason,) = set(dispatcher.dropped) - {"stray", "names_differ"}
        assert (reason, dispatcher.dropped[reason]) == ("broker_not_here", 3)
        assert dispatcher.duplicates == 1
        _settled(daemon)

    play(program, tmp_path)


@pytest.mark.rule("DSP-14", "DLP-35")
def test_a_crash_takes_what_was_not_acknowledged_and_nothing_else(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        parts = {"fragments": 3, "body": b"p"}
        daemon.instance.parts.dispatcher.arrived(
            [
                arriving(daemon, 1, 0),
                arriving(daemon, 1, 1, fragment=0, **parts),
                arriving(daemon, 1, 1, fragment=2, **parts),
                arriving(daemon, 1, 2),
            ]
        )
        await daemon.pass_time(1)
        assert daemon.instance.parts.dispatcher.buffered == 2
        await daemon.restart()
        assert daemon.instance.parts.dispatcher.buffered == 0
        daemon.instance.parts.dispatcher.arrived([arriving(daemon, 1, 1, fragment=1, **parts)])
        await daemon.pass_time(1)
        assert await _bodies(daemon) == [b"1/0"]
        daemon.instance.parts.dispatcher.arrived(
            [arriving(daemon, 1, 1, fragment=2, **parts), arriving(daemon, 1, 2)]
        )
        await daemon.pass_time(1)
        assert await _bodies(daemon) == [b"ppp", b"1/2"]

    play(program, tmp_path)


@pytest.mark.rule("DLP-13", "DSP-13", "BI-F6")
def test_a_fragment_that_names_another_number_of_them_is_dropped(tmp_path: Path) -> None:
    """Taken for the last one, it would make a whole message of a part of one."""

    async def program(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        for number, count in ((0, 3), (1, 2), (1, 3), (2, 4), (2, 3)):
            part = {"fragment": number, "fragments": count, "body": b"%d" % number}
            dispatcher.arrived([arriving(daemon, 1, 0, **part)])
            await daemon.pass_time(0.1)
        assert dispatcher.dropped == {"fragment_count": 2}
        lines = _lines(daemon, "broker.corrupted_message")
        assert [(line["fragment"], line["ssb_code"]) for line in lines] == [(1, 11274), (2, 11274)]
        assert await _bodies(daemon) == [b"012"]
        _settled(daemon)

    play(program, tmp_path)


def test_stale_can_be_set() -> None:
    assert Dispatcher(stale=timedelta(seconds=3)).stale.total_seconds() == 3
