"""Handlers: finds the user's async callable that reads a queue (ACT-20).

Calls:  import of the user's module.
Never:  runs a handler.
"""

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, cast

from brokerd.errors import BrokerError, Refusal
from brokerd.objects.declared import Declared


class ReaderSession(Protocol):
    """A client session, opened by the SDK; leaving it rolls back open transactions (ACT-23)."""

    drain_wait: float
    """Seconds that a reader waits for a further message before it ends (PBT-7)."""

    @property
    def client_id(self) -> bytes:
        """Client id of the session; `receive_issued` identifies the reader by it."""
        ...

    @property
    def open_transactions(self) -> int:
        """Number of transactions that the session has begun but not ended (ACT-23)."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None: ...


Handler = Callable[[object], Awaitable[object]]
"""An async callable that gets its session; its return value is ignored (ACT-21)."""

_FORM = "a handler is written module:function, for instance warehouse.orders:handle"
_SHAPE = "a handler is: async def handle(session)"


class HandlerError(Refusal):
    """The handler of a queue cannot be used (ACT-24)."""

    code = "handler"


class ByQueue(Protocol):
    """An object that has a handler for each of several queues, such as a `brokerd.App`."""

    def handler_for(self, queue: str) -> Handler:
        """Return the handler of this queue; raise `BrokerError` if the queue has none."""
        ...


def load_handler(path: str, queue: str = "") -> Handler:
    """Import `module:function` and return the async callable that takes one argument.

    The module is imported into this process, using the import path of the process. From an
    object with handlers for several queues, such as a `brokerd.App`, return the handler of `queue`.

    Raises:
        HandlerError: the path is malformed, the module does not import or lacks the attribute,
            or the attribute is not an async callable of one argument; the message says which.
    """
    found = find(path)
    if hasattr(found, "handler_for"):
        return _for_queue(path, cast("ByQueue", found), queue)
    if not callable(found) or not _is_async(found):
        kind = "a plain function" if inspect.isfunction(found) else type(found).__name__
        raise HandlerError(f"handler {path}: it is {kind}, not an async callable", hint=_SHAPE)
    _check_signature(path, found)
    return found


def find(path: str) -> object:
    """Import a module and return an attribute of it; `path`: `module:attribute`.

    Raise `HandlerError` if either is missing."""
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise HandlerError(f"handler {path!r} is not of the form module:function", hint=_FORM)
    return _attribute(_module(path, module_name), module_name, attribute)


def handler_problems(declared: Declared) -> list[str]:
    """Return the problems of the handlers that a declaration names, queue by queue (BI-C5).

    The check imports the handlers, so the code of their modules runs."""
    problems = []
    for queue in [queue for one in declared.brokers for queue in one.queues.values()]:
        if queue.activation is not None and not queue.activation.command:
            try:
                load_handler(queue.activation.handler, queue.name)
            except HandlerError as error:
                problems.append(f"queue {queue.name}: {error.message}")
                problems += [f"  {error.hint}"] if error.hint else []
    return problems


def import_from_here() -> None:
    """Append the working directory to the import path: installed modules are found first."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _for_queue(path: str, found: ByQueue, queue: str) -> Handler:
    try:
        return found.handler_for(queue)
    except BrokerError as error:
        raise HandlerError(f"handler {path}: {error.message}", hint=error.hint) from error


def _module(path: str, name: str) -> object:
    importlib.invalidate_caches()  # the module may have been written since the last attempt
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        cause = f"{type(error).__name__}: {error}"
        hint = (
            "run the command in the directory of the module, or put that on PYTHONPATH; a daemon "
            "searches its own packages, PYTHONPATH and working directory"
        )
        raise HandlerError(
            f"handler {path}: module {name} does not import: {cause}",
            hint=hint if isinstance(error, ModuleNotFoundError) else f"mend module {name}",
        ) from error


def _attribute(found: object, module_name: str, path: str) -> object:
    where = module_name
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise HandlerError(
                f"handler {module_name}:{path}: {where} has no attribute {name!r}",
                hint="is it spelt as in the module?",
            ) from error
        where = f"{where}.{name}"
    return found


def _is_async(found: Callable[..., object]) -> bool:
    """Return whether the object is an async function, or has an async `__call__`."""
    if inspect.iscoroutinefunction(found):
        return True
    return not inspect.isclass(found) and inspect.iscoroutinefunction(type(found).__call__)


def _check_signature(path: str, found: Callable[..., object]) -> None:
    signature = inspect.signature(found)
    try:
        signature.bind(None)
    except TypeError as error:
        raise HandlerError(
            f"handler {path}: it cannot be called with one argument, its session: {error}",
            hint=f"{_SHAPE}; its signature is {signature}",
        ) from error
