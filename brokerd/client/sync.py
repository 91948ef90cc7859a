"""The same session without `await`: `with brokerd.sync.connect(…) as session`.

Reads:  nothing itself.     Calls: client.session, on a loop in a private thread.
Never:  shares its loop with the caller, or waits for ever: misuse is an error (BI-R8).
Any number of threads may use one session; a process made by fork has to connect anew.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from brokerd.client.admin import BrokerState, CleanedUp
from brokerd.client.messages import ABSENT, Body, Message, Wait
from brokerd.client.session import Session as AsyncSession
from brokerd.client.session import connect as _connect
from brokerd.client.transaction import Transaction as AsyncTransaction
from brokerd.client.views import ViewPage
from brokerd.errors import ConnectionLost, InvalidState
from brokerd.ids import Handle

_T = TypeVar("_T")


class _Thread:
    """A thread that does nothing but run a loop, in the process that started it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self.closed = False
        self._thread = threading.Thread(target=self._run, name="brokerd-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run it there and return its result; a wait that is interrupted cancels it."""
        try:
            self._check()
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and its thread."""
        self.closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise InvalidState("this session belongs to the parent process: connect after fork")
        if self.closed or sys.is_finalizing() or not self._thread.is_alive():
            raise ConnectionLost("the session is closed", hint="connect again")
        if _loop_runs_here():
            raise InvalidState("inside a running event loop use brokerd.connect, not brokerd.sync")


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Transaction:
    """A transaction; see the class of the same name without `sync`."""

    def __init__(self, thread: _Thread, tx: AsyncTransaction) -> None:
        self._thread = thread
        self._tx = tx

    def __enter__(self) -> Self:
        """Nothing is asked of the daemon yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit; roll back if the block ended with an exception."""
        self._thread.call(self._tx.__aexit__(kind, error, trace))

    def begin_dialog(
        self,
        from_service: str,
        to_service: str,
        contract: str | None = None,
        lifetime: float | timedelta | None = None,
        *,
        broker_id: bytes | str | None = None,
        related_conversation: bytes | None = None,
        related_group: bytes | None = None,
        encryption: bool | None = None,
    ) -> Handle:
        """Begin a dialog and return its handle."""
        begun = self._tx.begin_dialog(
            from_service,
            to_service,
            contract,
            lifetime,
            broker_id=broker_id,
            related_conversation=related_conversation,
            related_group=related_group,
            encryption=encryption,
        )
        return self._thread.call(begun)

    def send(
        self, handle: bytes | list[bytes], body: Body = ABSENT, message_type: str | None = None
    ) -> None:
        """Send on one conversation, or on several at once."""
        self._thread.call(self._tx.send(handle, body, message_type))

    def end(self, handle: bytes, error: int | None = None, description: str | None = None) -> None:
        """End this side of a dialog."""
        self._thread.call(self._tx.end(handle, error, description))

    def state(self, group: bytes) -> bytes | None:
        """Return the state of a group that this transaction has locked."""
        return self._thread.call(self._tx.state(group))

    def set_state(self, group: bytes, state: bytes | None) -> None:
        """Replace it; None deletes it."""
        self._thread.call(self._tx.set_state(group, state))

    def receive(
        self,
        queue: str,
        max_messages: int | None = None,
        *,
        conversation: bytes | None = None,
        group: bytes | None = None,
        wait: Wait = None,
    ) -> list[Message]:
        """Receive messages of one group."""
        received = self._tx.receive(
            queue, max_messages, conversation=conversation, group=group, wait=wait
        )
        return self._thread.call(received)

    def commit(self) -> None:
        """Make it durable; leaving the block does this."""
        self._thread.call(self._tx.commit())

    def rollback(self) -> None:
        """Undo everything; leaving the block by an exception does this."""
        self._thread.call(_later(self._tx.rollback))


class Session:
    """A client of one broker; see the class of the same name without `sync`."""

    def __init__(self, thread: _Thread, session: AsyncSession) -> None:
        self._thread = thread
        self._session = session

    def __enter__(self) -> Self:
        """The session itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session."""
        self.close()

    def close(self) -> None:
        """Close the connection and end the private thread. A second call does nothing."""
        if self._thread.closed:
            return
        self._thread.call(self._session.close())
        self._thread.stop()

    def transaction(self) -> Transaction:
        """Return a transaction, to be entered with `with`."""
        return Transaction(self._thread, self._session.transaction())

    def begin_dialog(
        self,
        from_service: str,
        to_service: str,
        contract: str | None = None,
        lifetime: float | timedelta | None = None,
        *,
        broker_id: bytes | str | None = None,
        related_conversation: bytes | None = None,
        related_group: bytes | None = None,
        encryption: bool | None = None,
    ) -> Handle:
        """Begin a dialog; durable when this returns its handle."""
        begun = self._session.begin_dialog(
            from_service,
            to_service,
            contract,
            lifetime,
            broker_id=broker_id,
            related_conversation=related_conversation,
            related_group=related_group,
            encryption=encryption,
        )
        return self._thread.call(begun)

    def send(
        self, handle: bytes | list[bytes], body: Body = ABSENT, message_type: str | None = None
    ) -> None:
        """Send; durable when this returns."""
        self._thread.call(self._session.send(handle, body, message_type))

    def end(self, handle: bytes, error: int | None = None, description: str | None = None) -> None:
        """End this side of a dialog; durable when this returns."""
        self._thread.call(self._session.end(handle, error, description))

    def receive(
        self,
        queue: str,
        max_messages: int | None = None,
        *,
        conversation: bytes | None = None,
        group: bytes | None = None,
        wait: Wait = None,
        autocommit: bool = False,
    ) -> list[Message]:
        """Receive in a transaction of its own, which `autocommit=True` must say."""
        received = self._session.receive(
            queue,
            max_messages,
            conversation=conversation,
            group=group,
            wait=wait,
            autocommit=autocommit,
        )
        return self._thread.call(received)

    def status(self) -> dict[str, object]:
        """The state of the instance."""
        return self._thread.call(self._session.status())

    def apply(self, objects: dict[str, object], *, dry_run: bool = False) -> list[object]:
        """Make this broker match a declaration of objects; the changes."""
        return self._thread.call(self._session.apply(objects, dry_run=dry_run))

    def view(self, name: str, limit: int | None = None, **chosen: Any) -> list[Any]:  # noqa: ANN401  # as `view_page` has them
        """The rows of a view, a map each; all of them unless `limit` says how many."""
        return self._thread.call(self._session.view(name, limit, **chosen))

    def view_page(self, name: str, **chosen: Any) -> ViewPage:  # noqa: ANN401
        """A page of the rows of a view; options as without `sync`."""
        return self._thread.call(self._session.view_page(name, **chosen))

    @property
    def admin(self) -> "Admin":
        """What an administrator asks: delivery, identity, cleaning up, backups (MAN)."""
        return Admin(self._thread, self._session)


class Admin:
    """`session.admin`; see the class of the same name without `sync`."""

    def __init__(self, thread: _Thread, session: AsyncSession) -> None:
        self._thread = thread
        self._admin = session.admin

    def enable(self, broker: str | None = None, **how: Any) -> BrokerState:  # noqa: ANN401
        """Switch delivery on (MAN-2)."""
        return self._thread.call(self._admin.enable(broker, **how))

    def disable(self, broker: str | None = None, **how: Any) -> BrokerState:  # noqa: ANN401
        """Switch delivery off (MAN-3)."""
        return self._thread.call(self._admin.disable(broker, **how))

    def error_conversations(self, broker: str | None = None, **how: Any) -> BrokerState:  # noqa: ANN401
        """End every dialog with an error (MAN-5)."""
        return self._thread.call(self._admin.error_conversations(broker, **how))

    def new_broker(self, broker: str | None = None, **how: Any) -> BrokerState:  # noqa: ANN401
        """Remove every dialog and take a new identifier (MAN-6)."""
        return self._thread.call(self._admin.new_broker(broker, **how))

    def clean_up(self, reason: str, broker: str | None = None, **chosen: Any) -> CleanedUp:  # noqa: ANN401
        """Remove the dialog endpoints that fit (MAN-15)."""
        return self._thread.call(self._admin.clean_up(reason, broker, **chosen))

    def backup(self, path: str | Path, broker: str | None = None) -> int:
        """Have the daemon write a copy of a broker's store to a new file (MAN-11)."""
        return self._thread.call(self._admin.backup(path, broker))


def connect(address: str | None = None, *, broker: str, **options: Any) -> Session:  # noqa: ANN401
    """Connect; the options are those of `brokerd.connect`."""
    thread = _Thread()
    try:
        session = thread.call(_open(address, broker, options))
    except BaseException:
        thread.stop()
        raise
    return Session(thread, session)


async def _open(address: str | None, broker: str, options: dict[str, Any]) -> AsyncSession:
    return await _connect(address, broker=broker, **options)


async def _later(action: Callable[[], None]) -> None:
    action()
