"""Tests that are programs against a daemon of their own, on virtual time.

`scenario` gives a test the daemon and a client. Where the tests of a file want something else, it
is made by `given`, from a context that begins and ends with each.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, TypeVarTuple
from unittest.mock import patch

from brokerd.client.session import Session
from brokerd.sessions.options import SessionOptions
from tests.integration.one_daemon import Daemon, closing, play

Ts = TypeVarTuple("Ts")
Program = Callable[[*Ts], Awaitable[None]]
Collected = Callable[[Path], None]
"""What pytest collects: a test that asks for a folder alone."""


def given(
    place: Callable[[Daemon, Path], AbstractAsyncContextManager[tuple[*Ts]]],
    *,
    sessions: dict[str, Any] | None = None,
    **limits: Any,
) -> Callable[[Callable[[*Ts], Awaitable[None]]], Collected]:
    """Run a test with what the context yields, which knows the daemon and its folder.

    `sessions`: options of the daemon's sessions; `limits`: those of its brokers."""

    def decorate(test: Callable[[*Ts], Awaitable[None]]) -> Collected:
        @wraps(test)
        def run(tmp_path: Path) -> None:
            async def program(daemon: Daemon) -> None:
                async with place(daemon, tmp_path) as arguments:
                    await test(*arguments)

            with nullcontext() if sessions is None else session_options(sessions):
                play(program, tmp_path, **limits)

        del run.__wrapped__  # its arguments are not fixtures
        return run

    return decorate


def session_options(options: dict[str, Any]) -> Any:
    """Daemons that start meanwhile have these options of sessions."""

    def made(**others: Any) -> SessionOptions:
        return SessionOptions(**(others | options))

    return patch("brokerd.instance.part_options.SessionOptions", made)


@asynccontextmanager
async def alone(daemon: Daemon, _folder: Path) -> AsyncIterator[tuple[Daemon]]:
    """The daemon, and nobody who speaks to it."""
    yield (daemon,)


@asynccontextmanager
async def with_client(daemon: Daemon, _folder: Path) -> AsyncIterator[tuple[Daemon, Session]]:
    """The daemon and a client."""
    session = await daemon.session()
    async with closing(session):
        yield daemon, session


def with_limits(**limits: Any) -> Callable[[Program[Daemon, Session]], Collected]:
    """Run a test with a daemon of its own, whose brokers have these limits, and a client."""
    return given(with_client, **limits)


scenario = with_limits()
"""Runs a test with a daemon of its own and a client."""
