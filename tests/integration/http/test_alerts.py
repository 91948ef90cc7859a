"""Each alert fires on the fault that it is for, planted in a real daemon, and not without (MON-36).

A daemon is scraped before the fault and after it; promtool evaluates the rules on half an hour of
each. Two limits that take long to reach by themselves are counted by hand."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.outcomes import Park
from brokerd.clock import SECOND, Instant, SystemClock
from brokerd.config.settings import (
    Authentication,
    ClockSettings,
    Encryption,
    Endpoint,
    HttpSettings,
    StoreSettings,
    Transport,
)
from brokerd.storage.executors import Inline
from tests.acceptance.partners import until
from tests.integration.http.conftest import Site, Start
from tests.integration.http.rules import (
    GONE,
    Values,
    alerts,
    complaints,
    firing,
    needs_promtool,
    now,
)
from tests.integration.http.test_listener import close

OPEN = Endpoint(
    listen=("127.0.0.1",),
    port=0,
    encryption=Encryption.DISABLED,
    authentication=Authentication.NONE,
)


class Moved:
    """The clock of a machine, which a test sets forward."""

    def __init__(self) -> None:
        self.real, self.ahead = SystemClock(), 0.0

    def monotonic(self) -> float:
        return self.real.monotonic()

    def utc(self) -> Instant:
        return Instant(self.real.utc() + int(self.ahead * SECOND))

    async def sleep_until(self, deadline: float) -> None:
        await self.real.sleep_until(deadline)


class Disk:
    """A disk that fills up."""

    left = 10**12

    def free(self) -> int:
        return self.left

    def reserve(self, size: int) -> bool:
        return size <= self.left

    def release(self) -> bool:
        return False


class Held:
    """Completes no flush while it is held."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.is_held = False

    def __call__(self, function: Callable[[], None]) -> None:
        if self.is_held:
            self.waiting.append(function)
        else:
            asyncio.get_running_loop().call_soon(function)

    def release(self) -> None:
        self.is_held = False
        for one in self.waiting:
            self(one)


class Bench:
    """What a fault is planted with."""

    def __init__(self, start: Start, folder: Path) -> None:
        self.start = start
        self.folder = folder
        self.clock, self.disk, self.held = Moved(), Disk(), Held()
        self.site: Site
        self.at_end: list[Callable[[], Awaitable[object]]] = []

    async def open(self, **options: Any) -> Site:
        """The daemon that is scraped."""
        options.setdefault("http", HttpSettings(listen="TCP://127.0.0.1:0", max_connections=4))
        surroundings = {
            "clock": self.clock,
            "disk": self.disk,
            "executor": Inline(self.held),
            **options.pop("surroundings", {}),
        }
        self.site = await self.start(options.pop("http"), surroundings=surroundings, **options)
        return self.site

    async def apply(self, **objects: Any) -> None:
        await self.site.session.apply({"broker": {"name": "main"}, **objects}, ensure=True)

    async def send(self, to: str = "urn:shop") -> None:
        handle = await self.site.session.begin_dialog("urn:shop", to, "DEFAULT")
        await self.site.session.send(handle, b"1")

    async def route(self, address: str) -> None:
        await self.apply(route=[{"name": "r", "service": "urn:far", "address": address}])

    async def other(self, **options: Any) -> Site:
        """Another instance, which has the service `urn:far`."""
        far = await self.start(endpoint=OPEN, **options)
        await far.session.apply(
            {
                "broker": {"name": "main"},
                "queue": [{"name": "far"}],
                "service": [{"name": "urn:far", "queue": "far", "contracts": ["DEFAULT"]}],
            },
            ensure=True,
        )
        (listener,) = far.instance.parts.destinations.listeners
        assert listener.address is not None
        await self.route(listener.address)
        return far


async def value(bench: Bench, name: str) -> float:
    found = await now(bench.site)
    return max([each for (one, _), each in found.items() if one == name], default=0.0)


def until_exposed(bench: Bench, name: str, *, above: float = 0) -> Awaitable[None]:
    async def is_there() -> bool:
        return await value(bench, name) > above

    return until(is_there)


# The faults. Each is given a daemon that works, and yields the alerts that it causes.

Fault = Callable[[Bench], Awaitable[tuple[str, ...]]]


async def not_ready(bench: Bench) -> tuple[str, ...]:
    bench.site.instance.parts.tasks.condition = "draining"
    return ("BrokerdNotReady",)


async def full_disk(bench: Bench) -> tuple[str, ...]:
    bench.disk.left = 1
    bench.site.instance.parts.disk_space.check()
    return ("BrokerdDiskLow", "BrokerdStoreFull")


async def low_disk(bench: Bench) -> tuple[str, ...]:
    bench.disk.left = 300 * 2**20
    bench.site.instance.parts.disk_space.check()
    return ("BrokerdDiskLow",)


async def slow_disk(bench: Bench) -> tuple[str, ...]:
    bench.held.is_held = True
    sending = asyncio.ensure_future(bench.send())
    await until(lambda: bool(bench.held.waiting))

    async def let_go() -> None:
        bench.held.release()
        await sending

    bench.at_end.append(let_go)
    await until(lambda: bench.site.instance.brokers["main"].store.oldest_unflushed_age > 0.001)
    return ("BrokerdStoreSlow",)


async def delivery_off(bench: Bench) -> tuple[str, ...]:
    await bench.site.session.admin.disable("main")
    return ("BrokerdDeliveryOff",)


async def queue_off(bench: Bench) -> tuple[str, ...]:
    await bench.site.session.alter("queue", "box", status="off")
    return ("BrokerdQueueOff",)


async def full_queue(bench: Bench) -> tuple[str, ...]:
    await bench.site.session.alter("queue", "box", max_messages=1)
    await bench.send()
    return ("BrokerdQueueFull",)


async def nobody_reads(bench: Bench) -> tuple[str, ...]:
    await bench.send()
    bench.clock.ahead += 600
    await until_exposed(bench, "brokerd_queue_oldest_message_age_seconds", above=300)
    return ("BrokerdQueueStalled",)


async def readers_fail(bench: Bench) -> tuple[str, ...]:
    handler = {"handler": "tests.integration.http.test_alerts:broken", "status": "on"}
    await bench.site.session.alter("queue", "box", activation=handler)
    await bench.send()
    await until_exposed(bench, "brokerd_queue_readers_failing")
    return ("BrokerdReadersFail",)


async def broken(_session: Any) -> None:
    """A handler that fails."""
    raise RuntimeError("planted")


async def parked(bench: Bench) -> tuple[str, ...]:
    await bench.send()
    async with bench.site.session.transaction() as tx:
        assert await tx.receive("box")
        tx.rollback(Park("planted"))
    await until_exposed(bench, "brokerd_queue_parked_messages")
    return ("BrokerdGroupsParked",)


async def peer_gone(bench: Bench) -> tuple[str, ...]:
    far = await bench.other()
    await far.session.admin.alter_endpoint(state="stopped")
    await bench.send("urn:far")
    await until_exposed(bench, "brokerd_destination_suppressed")
    return ("BrokerdPeerUnreachable",)


async def peer_refuses(bench: Bench) -> tuple[str, ...]:
    far = await bench.other()
    await far.session.alter("queue", "far", status="off")
    await bench.send("urn:far")
    await until_exposed(bench, "brokerd_refused_dialogs")
    return ("BrokerdMessagesRefused", "BrokerdPeerSilent")


async def clocks_apart(bench: Bench) -> tuple[str, ...]:
    ahead = Moved()
    ahead.ahead = 600
    await bench.other(surroundings={"clock": ahead})
    await bench.send("urn:far")
    await until_exposed(bench, "brokerd_destination_clock_ahead_seconds")
    await until_empty(bench)
    return ("BrokerdClocksApart",)


async def until_empty(bench: Bench) -> None:
    async def is_empty() -> bool:
        return await value(bench, "brokerd_destination_waiting_messages") == 0

    await until(is_empty)


async def no_route(bench: Bench) -> tuple[str, ...]:
    await bench.send("urn:nowhere")
    await until_exposed(bench, "brokerd_delayed_dialogs")
    return ("BrokerdDialogsDelayed",)


async def too_many(bench: Bench) -> tuple[str, ...]:
    held = []
    for _ in range(5):  # the fifth takes the place of one that is idle
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.site.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        held.append(writer)
    assert bench.site.listener.door.refused
    await close(*held)
    await until(lambda: len(bench.site.listener.door) == 0)
    return ("BrokerdConnectionsRefused",)


async def clock_jumps(bench: Bench) -> tuple[str, ...]:
    bench.clock.ahead += 7200
    bench.site.instance.parts.clock_watch.check()
    return ("BrokerdClockJumped",)


async def certificates_expire(bench: Bench) -> tuple[str, ...]:
    days = bench.site.instance.parts.certificate_expiry.days_left()["own_certificate_days"]
    bench.clock.ahead += (days - 10) * 86_400
    bench.site.instance.parts.clock_watch.check()
    await bench.site.session.admin.confirm_clock()
    return ("BrokerdCertificateExpires",)


async def out_of_memory(bench: Bench) -> tuple[str, ...]:
    bench.site.instance.parts.dispatcher.dropped["dispatcher_memory"] += 1
    return ("BrokerdFragmentsDropped",)


async def no_checks(bench: Bench) -> tuple[str, ...]:
    bench.site.instance.parts.checker.counts.unavailable += 1
    return ("BrokerdChecksFail",)


FAULTS: tuple[Fault, ...] = (
    *(not_ready, full_disk, low_disk, slow_disk, delivery_off),
    *(queue_off, full_queue, nobody_reads, readers_fail, parked),
    *(peer_gone, peer_refuses, clocks_apart, no_route),
    *(too_many, clock_jumps, certificates_expire, out_of_memory, no_checks),
)
PASSING = (too_many, out_of_memory, no_checks)
"""Faults that are over at once: their alerts fire for ten minutes."""


@pytest.fixture
async def bench(start: Start, tmp_path: Path) -> Any:
    made = Bench(start, tmp_path)
    yield made
    for one in made.at_end:
        await one()
    if hasattr(made, "site"):
        made.site.instance.parts.tasks.condition = "ready"


@needs_promtool
@pytest.mark.rule("MON-36")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.__name__)
async def test_a_fault_causes_its_alerts_and_no_others(
    bench: Bench, tmp_path: Path, fault: Fault
) -> None:
    await bench.open(
        endpoint=OPEN,
        clock=ClockSettings(tick=timedelta(milliseconds=100)),
        store=StoreSettings(slow_after=timedelta(milliseconds=1)),
        transport=Transport(connect_timeout=timedelta(seconds=1)),
    )
    before = await now(bench.site)
    expected = await fault(bench)
    after = await now(bench.site)
    minute = 20 if fault in PASSING else 40
    timeline = [(before, 15), (after, 30)]
    assert await complaints(tmp_path, timeline, [firing(14), firing(minute, *expected)]) == ""


@needs_promtool
@pytest.mark.rule("MON-36")
async def test_a_daemon_that_does_not_answer_is_down(bench: Bench, tmp_path: Path) -> None:
    before = await now(await bench.open())
    timeline = [(before, 10), (GONE, 10)]
    assert await complaints(tmp_path, timeline, [firing(9), firing(18, "BrokerdDown")]) == ""


@needs_promtool
@pytest.mark.rule("MON-36")
async def test_a_daemon_that_starts_again_and_again_is_named(tmp_path: Path) -> None:
    site, starts = Site(tmp_path / "d"), []
    for _ in range(4):
        await site.start()
        starts.append(await now(site))
        await site.stop()
    once = [(starts[0], 20), (starts[1], 10)]
    assert await complaints(tmp_path, once, [firing(29)]) == ""
    often: list[tuple[Values, int]] = [(one, 3) for one in starts]
    assert await complaints(tmp_path, often, [firing(11, "BrokerdRestarts")]) == ""


@needs_promtool
@pytest.mark.rule("MON-36")
async def test_a_store_that_is_gone_is_named(tmp_path: Path) -> None:
    site = Site(tmp_path / "d")
    await site.start()
    await site.session.apply({"broker": {"name": "second"}})
    before = await now(site)
    await site.stop()
    (site.folder / "second.db").unlink()
    await site.start()
    after = await now(site)
    await site.stop()
    timeline = [(before, 10), (after, 10)]
    expected = firing(15, "BrokerdStoreUnavailable")
    assert await complaints(tmp_path, timeline, [firing(9), expected]) == ""


@pytest.mark.rule("MON-36")
def test_every_alert_is_shown_by_a_test() -> None:
    source = Path(__file__).read_text()
    assert [one for one in alerts() if f'"{one}"' not in source] == []
