"""The tasks of an instance: what a failed task or store does to it."""

import asyncio
from typing import Any

import pytest

from brokerd.errors import BAD_FILE, IO_FAULT, StoreFault, StoreFull
from brokerd.instance.tasks import InstanceTasks
from brokerd.model import MSDB


def tasks(*brokers: str) -> InstanceTasks:
    named: Any = dict.fromkeys(brokers)
    return InstanceTasks(named)


async def fails_with(error: BaseException) -> None:
    raise error


@pytest.mark.rule("PER-5")
def test_the_first_error_of_a_task_fails_the_instance() -> None:
    async def program() -> None:
        made, first = tasks(), ZeroDivisionError("by nought")
        await asyncio.wait({made.spawn(fails_with(first))})
        await asyncio.wait({made.spawn(fails_with(ValueError("a second one")))})
        assert await made.failed is first
        assert made.condition == "failed"
        assert not made.is_serving

    asyncio.run(program())


@pytest.mark.rule("REL-26")
def test_a_full_disk_does_not_fail_the_instance() -> None:
    async def program() -> None:
        made = tasks()
        await asyncio.wait({made.spawn(fails_with(StoreFull("no room")))})
        assert not made.failed.done()
        assert made.is_serving

    asyncio.run(program())


@pytest.mark.rule("REL-28")
def test_cancelling_ends_the_tasks_that_a_cancelled_task_spawns() -> None:
    async def program() -> None:
        made, ended = tasks(), list[str]()

        async def waits(name: str, *, spawns: bool) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)
                if spawns:
                    made.spawn(waits("second", spawns=False))

        made.spawn(waits("first", spawns=True))
        await asyncio.sleep(0)
        await made.cancel_tasks()
        assert ended == ["first", "second"]
        assert not made.failed.done()

    asyncio.run(program())


@pytest.mark.rule("CLK-6")
@pytest.mark.parametrize(
    ("name", "brokers", "status"),
    [
        ("east", (MSDB, "east"), BAD_FILE),
        ("east", (MSDB, "east", "west"), IO_FAULT),
        (MSDB, (MSDB, "east"), BAD_FILE),
    ],
)
def test_a_bad_file_prevents_a_restart_only_if_no_other_broker_can_run(
    name: str, brokers: tuple[str, ...], status: int
) -> None:
    async def program() -> None:
        made = tasks(*brokers)
        fault = StoreFault("a page is damaged", exit_status=BAD_FILE)
        made.fail_store(name, fault)
        assert await made.failed is fault
        assert fault.exit_status == status

    asyncio.run(program())
