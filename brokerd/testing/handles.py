"""Handles: the tasks, handles and timers of a virtual loop, and its stand-in for a selector.

A simulation creates millions of them, so each is created in one step, without a call of the base
class's constructor. Tasks are hashed by number, so that no order depends on an address.
Calls:  nothing but asyncio.      Never:  runs a callback by itself.
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
    """A task hashed by its number, because task groups cancel tasks by iterating over a set."""

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
        """Close the coroutine of a killed task; ignore errors of its clean-up."""
        self._log_destroy_pending = False
        with contextlib.suppress(BaseException):
            self.context.run(self.get_coro().close)


@contextlib.contextmanager
def unawaited() -> Iterator[None]:
    """Suppress warnings of coroutines never awaited: in killed processes they are not mistakes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        yield


def bury(dead: Iterable[Task[Any]]) -> None:
    """Close the coroutines of killed tasks."""
    with unawaited():
        for task in dead:
            task.bury()


class Handle(asyncio.Handle):
    """A handle created in one step, because every wake-up and every callback has a handle."""

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
    """A timer created without a call of the base class's constructor, like `Handle`."""

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
    """A selector without descriptors: the base class needs it, the virtual loop never uses it."""

    def select(self, timeout: float | None = None) -> Never:
        raise NotSimulated("descriptors do not exist in simulated time")

    def register(self, fileobj: object, events: int, data: object = None) -> Never:
        raise NotSimulated("descriptors do not exist in simulated time")

    def unregister(self, fileobj: object) -> Never:
        raise NotSimulated("descriptors do not exist in simulated time")

    def get_map(self) -> Mapping[object, selectors.SelectorKey]:  # type: ignore[override]  # nothing is ever registered
        return {}
