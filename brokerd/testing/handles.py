"""Handles: the tasks, handles and timers of a virtual loop, and its stand-in for a selector.

A simulation makes them by the million, so each is made in one step, without a call to the base
class. Tasks are hashed by number, so that no order depends on an address.
Calls:  nothing but asyncio.      Never:  runs anything by itself.
"""

import asyncio
import contextlib
import selectors
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextvars import Context, copy_context
from typing import Any, Never, TypeVar

from brokerd.testing.stuck import NotSimulated

T = TypeVar("T")


class Task(asyncio.Task[T]):
    """A task hashed by its number: task groups keep sets, and walk them when they cancel."""

    def __init__(
        self,
        coroutine: Coroutine[object, object, T],
        *,
        loop: asyncio.AbstractEventLoop,
        number: int,
        context: Context,
    ) -> None:
        self.number = number
        self.context = context
        super().__init__(coroutine, loop=loop, name=f"task-{number}", context=context)

    def __hash__(self) -> int:
        return self.number

    __eq__ = object.__eq__

    def bury(self) -> None:
        """Close the coroutine of a killed task; ignore what its clean-up raises."""
        self._log_destroy_pending = False
        with contextlib.suppress(BaseException):
            self.context.run(self.get_coro().close)


@contextlib.contextmanager
def unawaited() -> Iterator[None]:
    """Suppress warnings of coroutines never awaited: those of killed processes are no mistake."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        yield


def bury(dead: Iterable[Task[Any]]) -> None:
    """Close the coroutines of killed tasks."""
    with unawaited():
        for task in dead:
            task.bury()


class Handle(asyncio.Handle):
    """A handle made in one step: every wake-up and every callback has one."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._loop = loop
        self._cancelled = False
        self._repr = self._source_traceback = None


class Timer(asyncio.TimerHandle):
    """A timer made without a call to the base class, like `Handle`."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._when = when
        self._scheduled = False
        self._context = copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._loop = loop
        self._cancelled = False
        self._repr = self._source_traceback = None


class NoSelector(selectors.BaseSelector):
    """A selector without descriptors: the base class needs one, the virtual loop never uses it."""

    def select(self, timeout: float | None = None) -> Never:
        raise NotSimulated("descriptors do not exist in simulated time")

    def register(self, fileobj: object, events: int, data: object = None) -> Never:
        raise NotSimulated("descriptors do not exist in simulated time")

    def unregister(self, fileobj: object) -> Never:
        raise NotSimulated("descriptors do not exist in simulated time")

    def get_map(self) -> Mapping[object, selectors.SelectorKey]:  # type: ignore[override]  # nothing is ever registered
        return {}
