"""Stuck: the errors of simulated time, and reports of where every task waits.

Reads:  tasks, their coroutines, and the awaitables for which these wait.
Never:  shows addresses, so that a repeated run gives an equal report.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import CoroutineType, FrameType, GeneratorType
from typing import Never


class NotSimulated(RuntimeError):
    """The error of a call that does not exist in simulated time."""


class Stuck(RuntimeError):
    """The error of a run that cannot end; the message lists where every task waits."""


class Deadlock(Stuck):
    """The error of a run without a ready callback or a timer, whose main task is not done."""


class OutOfTime(Stuck):
    """The error of a run that has passed its limit of virtual time."""


class Spinning(Stuck):
    """The error of a run whose loop turns without moving virtual time on."""


class Livelock(Stuck):
    """The error of a run with too many callbacks within a virtual second."""


def named(handle: asyncio.Handle) -> str:
    """Return the name of the coroutine of the task that a handle wakes, or of its callback."""
    callback: object = handle._callback  # type: ignore[attr-defined]  # None once cancelled
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        callback = owner.get_coro()
    while isinstance(callback, partial):
        callback = callback.func
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def rush(count: int, seconds: float, seen: Counter[str]) -> str:
    """Return the headline of a livelock, with the most frequent callbacks.

    `count`: number of callbacks within `seconds` of virtual time. `seen`: the latest of them, by
    name."""
    most = ", ".join(f"{name} {times} times" for name, times in seen.most_common(5))
    return f"livelock: {count} callbacks within {seconds:g} s; lately {most};"


def report(headline: str, now: float, tasks: list[asyncio.Task[object]]) -> str:
    """Return the headline, the time, and where each task waits, as text."""
    parts = [f"{headline} at {now:.6f} virtual seconds; {len(tasks)} tasks:"]
    parts += [f"- {task.get_name()}: {where(task)}" for task in tasks]
    return "\n".join(parts)


def where(task: asyncio.Task[object]) -> str:
    """Return the chain of coroutines of a task, outermost first."""
    steps: list[str] = []
    waiting: object = task.get_coro()
    while waiting is not None:
        frame, inner = _step_in(waiting)
        if frame is None:
            break
        code = frame.f_code
        file = "/".join(code.co_filename.split("/")[-2:])
        steps.append(f"{code.co_qualname} ({file}:{frame.f_lineno})")
        waiting = inner
    return " > ".join(steps) or "not started or done"


def _step_in(waiting: object) -> tuple[FrameType | None, object]:
    match waiting:
        case CoroutineType():
            return waiting.cr_frame, waiting.cr_await
        case GeneratorType():
            return waiting.gi_frame, waiting.gi_yieldfrom
        case _:
            return None, None


REFUSED = (
    "run_in_executor",
    "set_default_executor",
    "getaddrinfo",
    "getnameinfo",
    "create_connection",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "create_datagram_endpoint",
    "connect_accepted_socket",
    "start_tls",
    "sendfile",
    "add_reader",
    "remove_reader",
    "add_writer",
    "remove_writer",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendto",
    "sock_connect",
    "sock_accept",
    "sock_sendfile",
    "connect_read_pipe",
    "connect_write_pipe",
    "subprocess_exec",
    "subprocess_shell",
    "add_signal_handler",
    "remove_signal_handler",
)


def refusal(name: str) -> Callable[..., Never]:
    """Return a method that only raises `NotSimulated`."""

    def refuse(*_args: object, **_options: object) -> Never:
        raise NotSimulated(f"loop.{name} does not exist in simulated time")

    return refuse
