"""Errors that nobody foresaw: they cost one request, not the connection (CLP-120)."""

import asyncio
from pathlib import Path

import pytest

from brokerd.clock import Clock
from brokerd.errors import InternalError, StoreFull
from tests.integration.one_daemon import Daemon, play


@pytest.mark.rule("CLP-120")
@pytest.mark.parametrize("view", ["brokers", "service_queues", "conversation_endpoints"])
def test_an_error_in_a_view_is_answered_once_and_the_connection_stays(
    view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            boot = session.welcome
            with monkeypatch.context() as broken:
                broken.setattr("brokerd.admin.views.views.Views.page", _breaks)
                with pytest.raises(InternalError) as caught:
                    await session.view(view)
            assert session.welcome is boot, "the client had to connect again"
            await session.view(view)
        assert "view failed with ZeroDivisionError: by nought" in caught.value.message
        assert not caught.value.retryable
        assert "log" in caught.value.hint
        told = [fields for name, fields in daemon.log.lines if fields.get("subclass") == FAILED]
        assert [one["verb"] for one in told] == ["view"]
        assert isinstance(told[0]["exc_info"], ZeroDivisionError)

    play(program, tmp_path)


@pytest.mark.rule("CLP-120")
def test_an_error_in_a_verb_of_administration_is_answered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            boot = session.welcome
            with monkeypatch.context() as broken:
                broken.setattr("brokerd.sessions.admin_gate.Exclusive.hold", _breaks)
                with pytest.raises(InternalError, match="disable failed with ZeroDivisionError"):
                    await session.admin.disable("main")
            assert session.welcome is boot
            assert (await session.admin.disable("main")).is_broker_enabled is False

    play(program, tmp_path)


@pytest.mark.rule("PER-5", "REL-5")
def test_an_error_in_a_task_of_the_instance_ends_the_instance(tmp_path: Path) -> None:
    """Memory and store may differ then; a disk that is full is a state that passes (REL-26)."""

    async def fails_with(error: Exception) -> None:
        raise error

    async def program(daemon: Daemon) -> None:
        instance, unforeseen = daemon.instance, ZeroDivisionError("by nought")
        await asyncio.wait({instance.parts.tasks.spawn(fails_with(StoreFull("no room")))})
        await daemon.pass_time(0.1)
        assert not instance.failed.done()
        await asyncio.wait({instance.parts.tasks.spawn(fails_with(unforeseen))})
        assert await instance.failed is unforeseen
        assert instance.condition == "failed"
        await asyncio.wait({instance.parts.tasks.spawn(fails_with(ValueError("a second one")))})
        assert instance.failed.result() is unforeseen
        instance.failed = daemon.loop.create_future()  # it was seen here

    play(program, tmp_path)


FAILED = "client_failed"


async def _breaks(*_given: object, **_options: Clock) -> None:
    raise ZeroDivisionError("by nought")
