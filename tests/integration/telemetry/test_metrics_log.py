"""What an instance writes to its metrics log: figures, dialogs, the end of a day (D12, D16)."""

import re
import sqlite3
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from brokerd.config.settings import LogSettings
from brokerd.ids import EndpointKey, show
from brokerd.maintenance import journal
from brokerd.protocol.endpoint import DialogEndpoint
from tests.integration.one_daemon import Daemon, Log, play
from tests.integration.shorthand import take, talk, undone
from tests.integration.telemetry.closing_lines import lines_by_day, logging
from tests.integration.two_brokers import EAST

MIDNIGHT = 6_405
"""Seconds from the start, 22:13:20, to the first tick of another day."""


@pytest.mark.rule("BI-L3")
def test_the_first_boot_of_an_instance_loses_none_of_its_first_lines(tmp_path: Path) -> None:
    """They are written before anybody has made the directory."""
    directory = tmp_path / "new" / "metrics"

    async def program(daemon: Daemon) -> None:
        await logging(daemon, directory)
        (written,) = directory.iterdir()
        torn = written.read_bytes()
        await daemon.stop()
        written.write_bytes(torn)  # as if it had been killed
        await daemon.start()

    play(program, tmp_path)
    found = [line for day in lines_by_day(directory).values() for line in day]
    marks: dict[str, list[tuple[int, str]]] = {}
    for line in found:
        if line["kind"] == "mark":
            marks.setdefault(line["boot_id"], []).append((line["seq"], line["what"]))
    first, second = sorted(marks.values(), key=len)
    assert first == [(0, "started")]
    assert second[:2] == [(0, "recovered"), (1, "started")]


@pytest.mark.parametrize(("wanted", "every"), [(1, 5), (10, 10), (14, 15), (60, 60)])
def test_an_interval_is_as_long_as_the_settings_say_in_whole_ticks(
    tmp_path: Path, wanted: int, every: int
) -> None:
    directory = tmp_path / "metrics"

    async def program(daemon: Daemon) -> None:
        await logging(
            daemon, directory, log=LogSettings(metrics_interval=timedelta(seconds=wanted))
        )
        await daemon.pass_time(301)

    play(program, tmp_path)
    found = [line for day in lines_by_day(directory).values() for line in day]
    ends = sorted({line["at"] for line in found if line["kind"] == "interval"})
    lengths = {later - earlier for earlier, later in pairwise(ends[:-1])}  # the last is cut short
    assert lengths == {every * 1_000_000}


def test_each_open_dialog_has_a_line_in_the_log_of_the_day_that_ends(tmp_path: Path) -> None:
    directory = tmp_path / "metrics"

    async def program(daemon: Daemon) -> bytes:
        await logging(daemon, directory)
        async with await daemon.session() as session:
            ended = await talk(session, b"one")
            for _ in range(9):
                await talk(session, b"two", b"three")
            (asked,) = await take(session, "shop", 1)
            await session.end(asked.handle)
            await session.end(ended)
            await daemon.pass_time(MIDNIGHT)
            await daemon.pass_time(120)
        return ended

    play(program, tmp_path, endpoints=4)
    days = lines_by_day(directory)
    assert sorted(days) == ["2023-11-14", "2023-11-15"]
    before = [line for line in days["2023-11-14"] if line["kind"] == "dialog"]
    opened = [line for line in before if line["state"] == "open"]
    assert len(before) - len(opened) == 2
    assert (
        len(opened) == len({(one["conversation_id"], one["is_initiator"]) for one in opened}) == 18
    )
    assert {(one["sent"], one["received"]) for one in opened} == {(2, 0), (0, 2)}
    after = [line for line in days["2023-11-15"] if line["kind"] == "dialog"]
    assert len(after) == 18, "the daemon stopped"
    sequence = [line["seq"] for day in sorted(days) for line in days[day]]
    assert sequence == list(range(len(sequence)))


@pytest.mark.rule("REL-28")
def test_more_open_dialogs_than_a_stop_has_time_for_have_no_line_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PAGE", 2)
    directory = tmp_path / "metrics"

    async def program(daemon: Daemon) -> tuple[set[str], Log]:
        await logging(daemon, directory)
        async with await daemon.session() as session:
            for _ in range(10):
                await talk(session, b"one")
            await take(session, "shop", 10)
        await daemon.pass_time(6)
        store, lives = daemon.broker.store, daemon.broker.endpoints.all()
        read = store.endpoints.page

        async def take_long(limit: int, after: EndpointKey | None = None) -> list[DialogEndpoint]:
            await daemon.clock.sleep_until(daemon.clock.monotonic() + 0.4)
            return await read(limit, after)

        monkeypatch.setattr(store.endpoints, "page", take_long)
        return {show(one.endpoint.conversation_id) for one in lives}, daemon.log

    used_last, log = play(program, tmp_path, endpoints=4)
    found = [line for day in lines_by_day(directory).values() for line in day]
    opened = [line for line in found if line["kind"] == "dialog"]
    assert used_last <= {line["conversation_id"] for line in opened}
    left_out = [told for _, told in log.lines if told.get("subclass") == "dialogs_left_out"]
    assert [told["written"] for told in left_out] == [len(opened)]
    assert 4 < len(opened) < 16, "all in memory, and for a second, the grace, what is not"
    assert found[-1]["kind"] == "mark"


@pytest.mark.rule("PER-24")
def test_closing_lines_leave_the_store_at_the_next_tick_however_many_they_are(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "metrics"

    async def program(daemon: Daemon) -> None:
        await logging(daemon, directory)
        async with await daemon.session() as session:
            for _ in range(3 * journal.BATCH):  # each in a flush, and so a row, of its own
                await session.end(await talk(session, b"one"))
            store = daemon.broker.store
            assert len(await store.endpoints.closing_lines(1000)) > 2 * journal.BATCH
            await daemon.pass_time(6)
            assert await store.endpoints.closing_lines(1000) == []

    play(program, tmp_path)
    found = [line for day in lines_by_day(directory).values() for line in day]
    closed = [line for line in found if line["kind"] == "dialog" and line["state"] == "closed"]
    names = Counter(line["conversation_id"] for line in closed)
    assert len(names) == 3 * journal.BATCH
    assert set(names.values()) == {1}


@pytest.mark.of_files("it writes into the file")
@pytest.mark.rule("PER-24", "SDK-14")
def test_without_a_metrics_log_no_closing_line_is_written_and_old_ones_go(tmp_path: Path) -> None:
    async def converse(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.end(await talk(session, b"one"))
            async with session.transaction() as tx:  # no endpoint of the initiator
                mine = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
                await tx.send(mine, b"two", "Ask")
                await tx.end(mine)

    async def program(daemon: Daemon) -> None:
        store = daemon.broker.store
        await converse(daemon)
        assert await store.endpoints.closing_lines(10) == []
        await daemon.stop()
        with sqlite3.connect(tmp_path / "main.db") as file:
            file.executemany("INSERT INTO dialog_log VALUES (?, '{}')", [(n,) for n in range(99)])
        file.close()
        await daemon.start()
        store = daemon.broker.store
        await daemon.pass_time(6)
        assert await store.endpoints.closing_lines(10) == []

    play(program, tmp_path)


def test_figures_say_what_a_message_waited_for_and_how_queues_stand(tmp_path: Path) -> None:
    directory = tmp_path / "metrics"

    async def program(daemon: Daemon) -> None:
        await logging(daemon, directory)
        async with await daemon.session() as session:
            for _ in range(16):
                await talk(session, b"one")
            await daemon.pass_time(60)
            async with undone(session) as tx:
                await tx.receive("shop")
            for _ in range(15):
                async with session.transaction() as tx:
                    await tx.receive("shop", 1)
                    await daemon.pass_time(2)
            await daemon.pass_time(4_000)

    play(program, tmp_path)
    found = [line for day in lines_by_day(directory).values() for line in day]
    shop = [line for line in found if line.get("queue") == "shop"]
    assert max(line["gauges"]["oldest_s"] for line in shop if "oldest_s" in line["gauges"]) > 50
    histograms = [line["histograms"] for line in shop if "histograms" in line]
    counted = {
        name: sum(sum(one.get(name, {}).values()) for one in histograms)
        for name in ("wait_us", "queue_us", "retry_us", "handler_us")
    }
    assert counted == {"wait_us": 15, "queue_us": 1, "retry_us": 1, "handler_us": 2}
    gauges = [line["gauges"] for line in found if line["broker"] == "main" and "gauges" in line]
    states = [one for one in gauges if "endpoints" in one]
    assert len(states) == 2, "once at the start, and an hour later"
    assert states[-1]["endpoints"] == states[-1]["endpoints_CO"] == 32


def test_messages_of_applications_are_counted_by_service_pair_on_both_sides(tmp_path: Path) -> None:
    directory = tmp_path / "metrics"

    async def program(daemon: Daemon) -> None:
        await logging(daemon, directory)
        async with await daemon.session() as session:
            await session.apply(EAST)
            far = await session.begin_dialog("urn:desk", "urn:harbour", "talk")
            near = await talk(session, b"one", b"two")
            async with session.transaction() as tx:
                await tx.send(near, b"three", "Ask")
                await tx.send(far, b"one", "Ask")
            async with undone(session) as tx:
                await tx.send(near, b"never", "Ask")
            await session.send(far, b"two", "Ask")
            await daemon.pass_time(60)
            (asked, *_) = await take(session, "shop", 3)
            await session.send(asked.handle, b"four", "Answer")
            await session.end(near)
            await session.end(far)
            await daemon.pass_time(60)

    play(program, tmp_path)
    found: Counter[tuple[str, ...]] = Counter()
    for line in (line for day in lines_by_day(directory).values() for line in day):
        if line.get("scope") == "pair":
            assert line["contract"] == "talk"
            for name, count in line["counters"].items():
                found[line["broker"], line["from_service"], line["to_service"], name] += count
    assert found == {
        ("main", "urn:desk", "urn:shop", "sent"): 3,
        ("main", "urn:desk", "urn:shop", "received"): 3,
        ("main", "urn:shop", "urn:desk", "sent"): 1,
        ("main", "urn:shop", "urn:desk", "received"): 1,
        ("main", "urn:desk", "urn:harbour", "sent"): 2,
        ("east", "urn:desk", "urn:harbour", "received"): 2,
    }


def test_groups_that_have_most_messages_are_said_every_few_minutes_and_at_the_end(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "metrics"

    async def program(daemon: Daemon) -> list[str]:
        await logging(daemon, directory)
        groups = []
        async with await daemon.session() as session:
            for count, wait in ((9, 301), (4, 120)):
                await talk(session, *[b"hot"] * count)
                await talk(session, b"one")
                found = [one for _ in range(2) for one in await take(session, "shop", count)]
                groups += [show(one.group_id) for one in found if one.body == b"hot"]
                await daemon.pass_time(wait)
        return groups

    named = dict(Counter(play(program, tmp_path)))
    found = [line for day in lines_by_day(directory).values() for line in day]
    windows = [line for line in found if line.get("queue") == "shop" and "groups" in line]
    assert len(windows) == 2, "after five minutes, and when the daemon stops"
    for window, count in zip(windows, (9, 4), strict=True):
        assert sorted(window["groups"].values()) == [1, count]
        assert "groups_within" not in window, "nothing was forgotten"
    merged: Counter[str] = Counter()
    for window in windows:
        merged.update(window["groups"])
    assert {group: count for group, count in merged.items() if count > 1} == named


def test_who_holds_a_lock_for_long_is_said_with_since_when(tmp_path: Path) -> None:
    directory = tmp_path / "metrics"

    async def program(daemon: Daemon) -> tuple[str, str]:
        await logging(daemon, directory)
        async with await daemon.session() as session, await daemon.session() as other:
            await talk(session, b"one")
            await talk(session, b"two")
            async with session.transaction() as tx:
                (one,) = await tx.receive("shop", 1)
                await daemon.pass_time(30)
                daemon.clock.jump(timedelta(minutes=-5))
                async with undone(other) as short:
                    await short.receive("shop", 1)
                await daemon.pass_time(15)
                await tx.send(one.handle, b"done", "Answer")
                await daemon.pass_time(15)
            await daemon.pass_time(60)
        return show(one.group_id), show(one.conversation_id)

    group, conversation = play(program, tmp_path)
    found = [line for day in lines_by_day(directory).values() for line in day]
    held = [one for line in found for one in line.get("held", ())]
    assert all(line["queue"] == "shop" for line in found if "held" in line)
    assert 5 <= len(held) <= 7, "one line an interval while it was held"
    assert {(one["group"], one["conversation_id"]) for one in held} == {(group, conversation)}
    assert len({one["since_at"] for one in held}) == 1, "whatever the clock did meanwhile"
    assert all(
        re.match(r"client [0-9a-f]{8} \(pid \d+.*\), latest verb ", one["by"]) for one in held
    )
    assert [one["by"].rpartition(" ")[2] for one in (held[0], held[-1])] == ["receive", "send"]
