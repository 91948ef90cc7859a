"""VirtualLoop: asyncio's own loop on virtual time, for simulations (HK-5).

The loop is asyncio's selector loop with its own turns: when no callback is ready, time jumps to the
next timer; when no timer is set either, the run is stuck, and `Deadlock` lists where every task
waits. Calls that would leave the process (executors, sockets, children, signals) raise.

Calls:  nothing but asyncio.
Never:  sleeps, opens a descriptor, or lets an order depend on addresses or on PYTHONHASHSEED.
"""

import asyncio
import heapq
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, TypeVar, TypeVarTuple

from brokerd.testing.handles import Handle, NoSelector, Task, Timer, bury
from brokerd.testing.rng import Streams
from brokerd.testing.stuck import (
    REFUSED,
    Deadlock,
    Livelock,
    NotSimulated,
    OutOfTime,
    Spinning,
    named,
    refusal,
    report,
    rush,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MANY = 100
"""Number of cancelled timers kept before a clean-up, and of a scope's new tasks between two
clean-ups."""
_SPAN = 1.0
"""Virtual seconds over which callbacks are counted."""

SCOPE: ContextVar[str | None] = ContextVar("scope", default=None)
"""Scope of the running code, such as one boot of one node; see `VirtualLoop.kill`."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, which starts at 0."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    get_debug = bool
    """A function that returns False. It is called for each handle and future, and `bool` is faster
    than a method."""

    def __init__(
        self,
        *,
        limit: float = math.inf,
        max_idle_turns: int = 1_000_000,
        max_callbacks: int = 10_000_000,
        shuffle: Random | None = None,
    ) -> None:
        """Create the loop.

        `limit`: last virtual second of the run. `max_idle_turns`: most turns at one moment of
        virtual time. `max_callbacks`: most callbacks in a virtual second; more are a livelock
        (HK-5). `shuffle`: draws the order of the tasks that wake up in one turn; callbacks of
        transports and timers keep their order.
        """
        self._now = 0.0
        self._limit = limit
        self._max_idle_turns = max_idle_turns
        self._shuffle = shuffle
        self._idle_turns = 0
        self._max_callbacks = max_callbacks
        self._callbacks = 0
        self._span_ends = 0.0
        self._seen: Counter[str] = Counter()
        """Callbacks by name, counted once half of `max_callbacks` has run within the span."""
        self._serial = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """Heap of timers; of two timers due at the same time, the one set first comes first."""
        self._cancelled_timers = 0
        self._tasks_made = 0
        self._killed: set[str | None] = set()
        self._dead: list[Task[Any]] = []
        self._scoped: dict[str, list[Task[Any]]] = {}
        """Tasks by scope; ended tasks are removed from time to time."""
        self._thread = threading.get_ident()
        super().__init__(NoSelector())
        self.unhandled: list[Exception] = []
        """Errors of callbacks, and of tasks that no code awaited; `run` raises them at the end."""
        self.set_exception_handler(self._keep_error)
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]  # its hint lacks the loop

    # Time.

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._now

    def _run_once(self) -> None:
        """Run turns until the loop is stopped."""
        while True:
            self._turn()
            if self._stopping:
                return

    def _turn(self) -> None:
        """Run the ready handles; if none is ready, move time on to the next timer and run it.

        The handles are run here, not by `Handle._run`, because this takes most of a simulation's
        time.
        """
        timers, ready = self._timers, self._ready
        if ready or self._stopping:
            if self._shuffle is not None and len(ready) > 1:
                self._permute(self._shuffle)
            self._idle_turns += 1
            if self._idle_turns > self._max_idle_turns:
                self._give_up()
        else:
            self._move_on()
        if timers and timers[0][0] <= self._now:
            self._fall_due()
        self._callbacks += len(ready)
        if 2 * self._callbacks > self._max_callbacks:
            self._watch()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:  # a call of `cancelled()` costs more
                try:
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]  # inside
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  # as `Handle._run`, without the call
                    found = {"message": f"{error!r} in {handle!r}", "exception": error}
                    self._keep_error(self, found)

    def _fall_due(self) -> None:
        timers, now = self._timers, self._now
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False  # type: ignore[attr-defined]  # as the base class does
            if timer._cancelled:
                self._cancelled_timers -= 1
            else:
                self._ready.append(timer)

    def _move_on(self) -> None:
        """Jump to the next timer; raise if no timer is set, or `limit` has passed."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if not timers:
            raise Deadlock(self._report("nothing is ready and nothing is scheduled"))
        self._idle_turns = 0
        when = timers[0][0]
        if when > self._limit:
            passed, self._limit = self._limit, math.inf  # the clean-up may take longer
            raise OutOfTime(self._report(f"not done after {passed} virtual seconds"))
        self._now = max(when, self._now)
        if when >= self._span_ends:
            self._span_ends = when + _SPAN
            self._callbacks = 0
            self._seen.clear()

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        """Count a cancelled timer; when there are many, remove all cancelled timers."""
        if not timer._scheduled:  # type: ignore[attr-defined]  # it has run
            return
        self._cancelled_timers += 1
        if self._cancelled_timers > _MANY and 2 * self._cancelled_timers > len(self._timers):
            self._timers[:] = [found for found in self._timers if not found[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def _give_up(self) -> None:
        self._idle_turns = 0
        raise Spinning(self._report(f"{self._max_idle_turns} turns at one moment"))

    def _watch(self) -> None:
        """Count callbacks by name; raise `Livelock` if there are more than `max_callbacks`."""
        self._seen.update(named(handle) for handle in self._ready)
        if self._callbacks > self._max_callbacks:
            headline = rush(self._callbacks, _SPAN, self._seen)
            self._callbacks = 0
            raise Livelock(self._report(headline))

    def _permute(self, rng: Random) -> None:
        ready = self._ready
        places = [at for at, handle in enumerate(ready) if _wakes_task(handle)]
        if len(places) < 2:  # noqa: PLR2004  # nothing to permute
            return
        handles = [ready[at] for at in places]
        rng.shuffle(handles)
        for at, handle in zip(places, handles, strict=True):
            ready[at] = handle

    # Scheduling.

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Schedule a callback after those already ready, as asyncio does."""
        handle = Handle(callback, args, self, context)
        # A callback that a killed scope schedules must never run: a dead process does nothing.
        if self._killed and handle._context.get(SCOPE) in self._killed:
            handle.cancel()
        else:
            self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call `call_soon`; raise `NotSimulated` in any thread but the loop's."""
        if threading.get_ident() != self._thread:
            raise NotSimulated("another thread called into simulated time")
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer, as asyncio does; timers of one moment run in the order they were set."""
        self._serial += 1
        timer = Timer(when, callback, args, self, context)
        if self._killed and timer._context.get(SCOPE) in self._killed:
            timer.cancel()
            return timer
        heapq.heappush(self._timers, (when, self._serial, timer))
        timer._scheduled = True
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer, as asyncio does; `delay` is in virtual seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[object, object, T],
        *,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        self._tasks_made += 1
        number = self._tasks_made
        mine = copy_context() if context is None else context  # an empty one counts as false
        task = Task(coroutine, loop=loop, number=number, context=mine)
        scope = mine.get(SCOPE)
        if scope in self._killed:
            self._dead.append(task)
        elif scope is not None:
            self._remember(task, scope)
        return task

    def _remember(self, task: "Task[Any]", scope: str) -> None:
        found = self._scoped.setdefault(scope, [])
        found.append(task)
        if len(found) % _MANY == 0:
            found[:] = [one for one in found if not one.done()]

    def cancel_left_over(self) -> None:
        """Cancel the remaining tasks and run until they have ended.

        The exception handler gets their errors, and keeps them in `unhandled`.
        """
        tasks = [task for task in asyncio.all_tasks(self) if not self._was_killed(task)]
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        self._limit = math.inf
        self.run_until_complete(asyncio.wait(tasks))
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.call_exception_handler(
                    {"message": "a task failed at the end", "exception": error, "task": task}
                )

    # Scopes: a crashed node stops between two instructions, without running its clean-up.

    def scope(self, name: str) -> Context:
        """Return a context in which to start the tasks of a scope (`create_task(…, context=…)`).

        Tasks and callbacks that these tasks start belong to the scope. A name is used only once: a
        restarted node gets a new scope, such as `"east/2"`.
        """
        context = copy_context()
        context.run(SCOPE.set, name)
        return context

    def kill(self, name: str) -> None:
        """Stop all code of a scope at once: no callback, `finally` or cancellation runs.

        The tasks of the scope are kept until the loop closes, so that garbage collection runs none
        of their code during the run.
        """
        self._killed.add(name)
        self._dead += [task for task in self._scoped.pop(name, ()) if not task.done()]
        for handle in (*self._ready, *(timer for _, _, timer in self._timers)):
            if not handle.cancelled() and _scope_of(handle) == name:
                handle.cancel()

    def close(self) -> None:
        """Close the loop, after closing the coroutines of killed tasks."""
        if not self.is_closed():
            asyncio._set_running_loop(self)  # clean-up may start tasks, which are closed too
            while self._dead:
                dead, self._dead = sorted(self._dead, key=lambda task: task.number), []
                bury(dead)
            asyncio._set_running_loop(None)
            self._timers.clear()
        super().close()

    # Reports of a run that is stuck.

    def _report(self, headline: str) -> str:
        found = (task for task in asyncio.all_tasks(self) if not self._was_killed(task))
        tasks = sorted(found, key=lambda task: task.number if isinstance(task, Task) else 0)
        return report(headline, self._now, tasks)

    def _keep_error(self, _loop: asyncio.AbstractEventLoop, found: dict[str, Any]) -> None:
        error = found.get("exception")
        if not isinstance(error, Exception):
            error = RuntimeError(str(found.get("message")))
        self.unhandled.append(error)

    def _was_killed(self, task: asyncio.Task[object]) -> bool:
        return isinstance(task, Task) and (task.context.get(SCOPE) or "") in self._killed

    # The base class creates a socket pair so that other threads can wake the loop up; in simulated
    # time no other thread may.

    def _make_self_pipe(self) -> None:
        pass

    _close_self_pipe = _write_to_self = _make_self_pipe


def run(
    main: Callable[[VirtualLoop, Streams], Coroutine[object, object, T]],
    *,
    seed: int,
    limit: float = math.inf,
    shuffle: bool = False,
    max_idle_turns: int = 1_000_000,
    max_callbacks: int = 10_000_000,
) -> T:
    """Run `main(loop, streams)` on a fresh virtual loop and return its result.

    Every error has the seed as a note (HK-8). Errors of callbacks, and of tasks that no code
    awaited, are raised at the end, as an `ExceptionGroup`. Remaining tasks are cancelled, as
    `asyncio.run` does; a run that cannot end raises a subclass of `Stuck`. The other arguments are
    those of `VirtualLoop`; `shuffle`: whether tasks run in a drawn order.
    """
    streams = Streams(seed)
    loop = VirtualLoop(
        limit=limit,
        shuffle=streams.stream("shuffle") if shuffle else None,
        max_idle_turns=max_idle_turns,
        max_callbacks=max_callbacks,
    )
    try:
        return _run_and_clear(loop, main(loop, streams))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        loop.close()


def _run_and_clear(loop: VirtualLoop, main: Coroutine[object, object, T]) -> T:
    try:
        result = loop.run_until_complete(main)
    finally:
        loop.cancel_left_over()
        loop.run_until_complete(loop.shutdown_asyncgens())
    if loop.unhandled:
        raise ExceptionGroup("raised where nobody waited", loop.unhandled)
    return result


def _wakes_task(handle: asyncio.Handle) -> bool:
    callback: object = handle._callback  # type: ignore[attr-defined]  # None once cancelled
    return type(getattr(callback, "__self__", None)) is Task


def _scope_of(handle: asyncio.Handle) -> str | None:
    context: Context = handle._context  # type: ignore[attr-defined]  # every handle has one
    return context.get(SCOPE)


for _name in REFUSED:
    setattr(VirtualLoop, _name, refusal(_name))
