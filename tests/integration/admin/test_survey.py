"""The survey of many queues, and the doctor inside the daemon."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerd.admin.doctor.own import MOST_ROWS
from brokerd.admin.views.survey import SHARE, SLICE, WORST, Sample, rates
from brokerd.client.session import Session
from brokerd.clock import SECOND, Instant
from tests.integration.one_daemon import Daemon
from tests.integration.scenarios import given
from tests.integration.shorthand import talk

MANY = 700


@asynccontextmanager
async def with_many(daemon: Daemon, _folder: Path) -> AsyncIterator[tuple[Daemon, Session]]:
    session = await daemon.session()
    async with session:
        queues = [{"name": f"q{number:04d}"} for number in range(MANY)]
        await session.apply({"broker": {"name": "main"}, "queue": queues}, ensure=True)
        yield daemon, session


many = given(with_many)


@pytest.mark.rule("MON-43")
@many
async def test_a_survey_keeps_the_queues_that_need_somebody(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"one")
    await session.alter("queue", "q0699", status="off")
    await session.alter("queue", "shop", status="off")
    survey = await daemon.instance.parts.surveys.survey()
    assert survey.queues == MANY + 3
    assert len(survey.worst) == WORST
    assert [(one.name, one.why) for one in survey.worst[:2]] == [("shop", "off"), ("q0699", "off")]
    assert (survey.ready, survey.busy, survey.ill) == (1, 1, 2)


@pytest.mark.rule("MON-43")
@many
async def test_a_survey_is_shared_and_lets_others_run(daemon: Daemon, session: Session) -> None:
    surveys = daemon.instance.parts.surveys
    turns: list[float] = []
    clock: Any = surveys._clock
    sleep = clock.sleep_until

    async def count(deadline: float) -> None:
        turns.append(deadline)
        await sleep(deadline)

    surveys._clock = type("Counting", (), {"sleep_until": staticmethod(count),
                          "utc": clock.utc, "monotonic": clock.monotonic})()  # fmt: skip
    first = await surveys.survey()
    assert len(turns) >= MANY // SLICE
    assert await surveys.survey() is first
    surveys.expire()
    second = await surveys.survey()
    assert second is not first
    surveys._elapsed = iter(range(1_000_000)).__next__  # each slice takes a second
    surveys.expire()
    slow = await surveys.survey()
    assert surveys._kept._fresh_until >= clock.monotonic() + slow.seconds * SHARE - 1
    assert slow.seconds >= MANY // SLICE


@pytest.mark.rule("MON-46")
def test_rates_are_those_of_the_last_minute() -> None:
    at = Instant(1_000 * SECOND)
    assert rates(()) == {}
    assert rates((Sample(at, 1, 1, 1, 1),)) == {}
    samples = tuple(
        Sample(Instant(at + number * 10 * SECOND), number * 100, number * 50, 0, 0)
        for number in range(20)
    )
    found = rates(samples)
    assert (found["enqueued"], found["received"], found["sent"]) == (10.0, 5.0, 0.0)
    back = (*samples[:-1], Sample(samples[-1].at, 0, 0, 0, 0))  # a broker was closed
    assert rates(back)["enqueued"] == 0.0


@pytest.mark.rule("MON-45")
@many
async def test_the_doctor_inside_says_what_it_leaves_out(daemon: Daemon, session: Session) -> None:
    await session.alter("queue", "q0001", status="off")
    doctor = daemon.instance.parts.own_doctor
    found = await doctor.diagnosis()
    assert [one.code for one in found.found if one.level == "error"] == ["D06"]
    assert found.left_out == ()
    assert await doctor.diagnosis() is found
    shop = [{"name": "shop"}]
    services = [{"name": f"urn:{number}", "queue": "shop"} for number in range(MOST_ROWS + 10)]
    await session.apply(
        {"broker": {"name": "main"}, "queue": shop, "service": services}, ensure=True
    )
    doctor.expire()
    found = await doctor.diagnosis()
    assert [one for one in found.left_out if "services of broker main" in one]
    assert [one.code for one in found.found if one.level == "error"] == ["D06"]
