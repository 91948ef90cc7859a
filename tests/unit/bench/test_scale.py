"""One thing grows, the rest stays; and the picture of it."""

import tomllib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from xml.etree import ElementTree as ET

import msgspec
import pytest

from brokerd.bench.drawing import Panel, growth, short, top_of
from brokerd.bench.load import opened
from brokerd.bench.opening import numbered
from brokerd.bench.scale import (
    LIMITS,
    POINTS,
    By,
    Cost,
    Point,
    ScaleOptions,
    Shape,
    checked,
    objects,
    picture,
    scale,
    sender,
    shape,
)
from brokerd.client.session import Session
from brokerd.errors import UsageError
from brokerd.objects.declarations import parse

SVG = "{http://www.w3.org/2000/svg}"


def different(by: By, value: int) -> set[str]:
    usual = msgspec.structs.asdict(Shape())
    found = msgspec.structs.asdict(shape(by, value))
    return {name for name in usual if found[name] != usual[name]}


def test_the_usual_load_is_a_point_of_what_can_have_it() -> None:
    for by, value in ((By.SIZE, 256), (By.QUEUES, 1), (By.CONNECTIONS, 8)):
        assert not different(by, value)


def test_only_what_grows_is_different() -> None:
    assert different(By.SIZE, 4096) == {"size"}
    assert different(By.QUEUES, 100) == {"queues"}
    assert different(By.BACKLOG, 100_000) == {"primed"}
    assert different(By.DIALOGS, 100_000) == {"dialogs", "primed"}
    assert different(By.CONNECTIONS, 100) == {"clients", "dialogs", "more_dialogs", "outstanding"}


@pytest.mark.parametrize("by", list(By))
def test_the_load_is_the_same_at_all_points_and_its_memory_is_bounded(by: By) -> None:
    for value in (*POINTS[by], *LIMITS[by]):
        one = shape(by, value)
        assert one.clients * one.outstanding * one.size <= 128 * 2**20
        assert one.clients * one.batch * one.size <= 128 * 2**20
        assert min(one.clients, one.dialogs, one.outstanding, one.batch) >= 1


class Begun:
    """A session that notes to whom dialogs are begun, and how much is sent on each."""

    def __init__(self) -> None:
        self.services: list[str] = []
        self.sent: Counter[bytes] = Counter()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Begun"]:
        yield self

    async def begin_dialog(self, _from: str, to_service: str, _contract: str) -> bytes:
        self.services.append(to_service)
        return b"%d" % len(self.services)

    async def send(self, handle: bytes, _body: bytes, _type: str) -> None:
        self.sent[handle] += 1


async def begun(one: Shape) -> list[Begun]:
    """What the clients of a point have done before the load begins."""
    sessions = [Begun() for _ in range(one.clients)]
    load = sender(one, "")
    for at, session in enumerate(sessions):
        await opened(cast("Session", session), load, at)
    return sessions


@pytest.mark.parametrize("queues", [1, 10, 100, 1000, 1001, 10_000])
async def test_every_queue_is_used_and_all_alike(queues: int) -> None:
    names = [name for one in await begun(shape(By.QUEUES, queues)) for name in one.services]
    used = Counter(names)
    assert set(used) == set(numbered("bench_sink", queues))
    assert max(used.values()) - min(used.values()) <= 1
    assert len(names) == max(512, queues)


@pytest.mark.parametrize("value", [1, 10, 100, 1000])
async def test_there_are_as_many_dialogs_each_with_a_message_as_was_asked_for(value: int) -> None:
    sessions = await begun(shape(By.DIALOGS, value))
    assert sum(len(one.services) for one in sessions) == value
    assert [n for one in sessions for n in one.sent.values()] == [1] * value


@pytest.mark.parametrize("value", [1, 10, 100, 999])
async def test_as_many_messages_wait_and_as_many_dialogs_are_there_as_was_said(value: int) -> None:
    waiting = shape(By.BACKLOG, value)
    sent = sum(one.sent.total() for one in await begun(waiting))
    assert sent == waiting.all_primed == value
    dialogs = sum(len(one.services) for one in await begun(shape(By.CONNECTIONS, value)))
    assert dialogs == max(512, value)


def test_points_beyond_the_limits_are_refused_with_those_that_are_not() -> None:
    assert checked(ScaleOptions(by=By.SIZE)) == POINTS[By.SIZE]
    assert checked(ScaleOptions(by=By.BACKLOG, points=(10_000_000,))) == (10_000_000,)
    with pytest.raises(UsageError, match="7 is no point of --by size: it goes from 8 to"):
        checked(ScaleOptions(by=By.SIZE, points=(64, 7)))


async def test_the_points_are_told_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    async def measure(*_: object) -> Point:
        return point()

    monkeypatch.setattr("brokerd.bench.scale._measure", measure)
    result = await scale(ScaleOptions(by=By.QUEUES), said.append)
    assert cast("dict[str, object]", result["settings"])["points"] == POINTS[By.QUEUES]
    assert said[0] == "queues, each with a service: 1"


def point() -> Point:
    cost = Cost(rate=20_000, processor_us_per_message=30, client_us_per_message=10)
    return Point(send=cost, receive=cost, memory_bytes=80 * 2**20)


def test_each_queue_has_its_service() -> None:
    declared = parse(tomllib.loads(objects(3)))
    assert {name: declared.services[name].queue for name in numbered("bench_sink", 3)} == {
        "bench_sink0": "bench_q0",
        "bench_sink1": "bench_q1",
        "bench_sink2": "bench_q2",
    }
    assert numbered("bench_sink", 1) == ["bench_sink"]


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (0.5, 0.6), (1, 1), (3, 4), (10, 10), (61, 100), (25_000, 40_000)]
)
def test_an_axis_has_room_and_round_levels(most: float, top: float) -> None:
    assert top_of(most) == pytest.approx(top)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (950, "950"), (1500, "1.5k"), (2e7, "20M"), (3e9, "3G")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_points_stand_where_their_logarithm_is_and_higher_is_higher() -> None:
    svg = growth("<a>", "x", [10, 100, 1000], [Panel("p", {"one": [1, 2, 4]})])
    root = ET.fromstring(svg)
    places = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]
    (a, low), (b, middle), (c, high) = places
    assert b - a == pytest.approx(c - b, abs=0.2)
    assert low > middle > high
    assert low - middle == pytest.approx((middle - high) / 2, abs=0.2)
    assert "&lt;a&gt;" in svg
    assert growth("<a>", "x", [10, 100, 1000], [Panel("p", {"one": [1, 2, 4]})]) == svg


def test_a_result_is_drawn_with_all_it_has_and_one_point_is_enough() -> None:
    svg = picture({"settings": {"by": "queues"}, "points": {"10": point()}})
    texts = {one.text for one in ET.fromstring(svg).iter(f"{SVG}text")}
    assert {"How cost grows with queues", "sent", "received", "daemon's memory, MiB", "10"} <= texts
    assert len(list(ET.fromstring(svg).iter(f"{SVG}circle"))) == 7
