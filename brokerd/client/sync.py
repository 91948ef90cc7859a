"""The same session without `await`: `with brokerd.sync.connect(…) as session`.

Reads:  nothing itself.     Calls: client.session, on a loop in a private thread.
Never:  shares its loop with the caller, or waits for ever: misuse is an error (BI-R8).
Any number of threads may use one session; a process made by fork has to connect anew.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from brokerd.client.groups import LockedGroup as AsyncLockedGroup
from brokerd.client.messages import ABSENT, Body, Message, Page, Resent, Wait
from brokerd.client.savepoint import Savepoint as AsyncSavepoint
from brokerd.client.session import Session as AsyncSession
from brokerd.client.session import connect as _connect
from brokerd.client.transaction import Transaction as AsyncTransaction
from brokerd.errors import ConnectionLost, InvalidState
from brokerd.ids import GroupId, Handle
from brokerd.status import TransmissionStatus

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

    def post(
        self,
        from_service: str,
        to_service: str,
        body: Body = ABSENT,
        message_type: str | None = None,
        *,
        contract: str | None = None,
        lifetime: float | timedelta | None = None,
        error_queue: str = "",
        broker_id: bytes | str | None = None,
        encryption: bool | None = None,
    ) -> Handle:
        """Send one message on a dialog of its own that the broker ends."""
        posted = self._tx.post(
            from_service,
            to_service,
            body,
            message_type,
            contract=contract,
            lifetime=lifetime,
            error_queue=error_queue,
            broker_id=broker_id,
            encryption=encryption,
        )
        return self._thread.call(posted)

    def send(
        self, handle: bytes | list[bytes], body: Body = ABSENT, message_type: str | None = None
    ) -> None:
        """Send on one conversation, or on several at once."""
        self._thread.call(self._tx.send(handle, body, message_type))

    def end(self, handle: bytes, error: int | None = None, description: str | None = None) -> None:
        """End this side of a dialog."""
        self._thread.call(self._tx.end(handle, error, description))

    def set_timer(
        self, handle: bytes, after: float | timedelta | None, name: str | None = None
    ) -> None:
        """Set a timer of a dialog; None cancels it."""
        self._thread.call(self._tx.set_timer(handle, after, name))

    def move(self, handle: bytes, group: bytes) -> None:
        """Put a conversation into another group of its service."""
        self._thread.call(self._tx.move(handle, group))

    def get_group(self, queue: str, wait: Wait = None) -> GroupId | None:
        """Lock the best group of a queue and return its id, None if there is none."""
        return self._thread.call(self._tx.get_group(queue, wait))

    def savepoint(self) -> "Savepoint":
        """Return a block, to be entered with `with`, that can be undone alone."""
        return Savepoint(self._thread, self._tx.savepoint())

    def state(self, group: bytes, *, take_lock: bool = False) -> bytes | None:
        """Return the state of a group that this transaction has locked, or locks first."""
        return self._thread.call(self._tx.state(group, take_lock=take_lock))

    def set_state(self, group: bytes, state: bytes | None) -> None:
        """Replace it; None deletes it."""
        self._thread.call(self._tx.set_state(group, state))

    def resend_pending(self, old: bytes, new: bytes) -> list[Resent]:
        """Send on one dialog what another one holds back."""
        return self._thread.call(self._tx.resend_pending(old, new))

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


class Savepoint:
    """A part of a transaction that can be undone alone; see the class without `sync`."""

    def __init__(self, thread: _Thread, savepoint: AsyncSavepoint) -> None:
        self._thread = thread
        self._savepoint = savepoint

    def __enter__(self) -> Self:
        """Set it."""
        self._thread.call(self._savepoint.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Keep what was done, if all of it succeeded; else undo it and let the error through."""
        self._thread.call(self._savepoint.__aexit__(kind, error, trace))

    def undo(self) -> None:
        """Undo what was done in the block so far; it goes on."""
        self._thread.call(self._savepoint.undo())


class LockedGroup:
    """A transaction that begins by locking one group; see the class without `sync`."""

    def __init__(self, thread: _Thread, group: AsyncLockedGroup) -> None:
        self._thread = thread
        self._group = group
        self.group_id = group.group_id

    def __enter__(self) -> Self:
        """Take the lock."""
        self._thread.call(self._group.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit; roll back if the block ended with an exception."""
        self._thread.call(self._group.__aexit__(kind, error, trace))

    @property
    def tx(self) -> Transaction:
        """The transaction, for every other verb."""
        return Transaction(self._thread, self._group.tx)

    @property
    def state(self) -> bytes | None:
        """What the application keeps for the group, as read under the lock or set since."""
        return self._group.state

    def set_state(self, state: bytes | None) -> None:
        """Replace it; None deletes it."""
        self._thread.call(self._group.set_state(state))


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

    def post(
        self,
        from_service: str,
        to_service: str,
        body: Body = ABSENT,
        message_type: str | None = None,
        *,
        contract: str | None = None,
        lifetime: float | timedelta | None = None,
        error_queue: str = "",
        broker_id: bytes | str | None = None,
        encryption: bool | None = None,
    ) -> Handle:
        """Send one message on a dialog of its own that the broker ends."""
        posted = self._session.post(
            from_service,
            to_service,
            body,
            message_type,
            contract=contract,
            lifetime=lifetime,
            error_queue=error_queue,
            broker_id=broker_id,
            encryption=encryption,
        )
        return self._thread.call(posted)

    def send(
        self, handle: bytes | list[bytes], body: Body = ABSENT, message_type: str | None = None
    ) -> None:
        """Send; durable when this returns."""
        self._thread.call(self._session.send(handle, body, message_type))

    def end(self, handle: bytes, error: int | None = None, description: str | None = None) -> None:
        """End this side of a dialog; durable when this returns."""
        self._thread.call(self._session.end(handle, error, description))

    def set_timer(
        self, handle: bytes, after: float | timedelta | None, name: str | None = None
    ) -> None:
        """Set a timer of a dialog, or cancel it with None; durable when this returns."""
        self._thread.call(self._session.set_timer(handle, after, name))

    def resend_pending(self, old: bytes, new: bytes) -> list[Resent]:
        """Send on one dialog what another one holds back."""
        return self._thread.call(self._session.resend_pending(old, new))

    def move(self, handle: bytes, group: bytes) -> None:
        """Put a conversation into another group; durable when this returns."""
        self._thread.call(self._session.move(handle, group))

    def group(self, group: bytes) -> LockedGroup:
        """Return a transaction that begins by locking this group, to be entered with `with`."""
        return LockedGroup(self._thread, self._session.group(group))

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

    def apply(
        self,
        objects: Mapping[str, object],
        *,
        dry_run: bool = False,
        terminate_existing: bool = False,
    ) -> list[object]:
        """Make brokers match a declaration of objects; the changes."""
        asked = self._session.apply(objects, dry_run=dry_run, terminate_existing=terminate_existing)
        return self._thread.call(asked)

    def objects(self, kind: str | None = None) -> list[dict[str, object]]:
        """The declared objects of this broker, each as a file declares it, with its kind."""
        return self._thread.call(self._session.objects(kind))

    def create(self, kind: str, name: str, **declared: object) -> list[object]:
        """Create an object; the changes."""
        return self._thread.call(self._session.create(kind, name, **declared))

    def alter(
        self, kind: str, name: str, *, terminate_existing: bool = False, **declared: object
    ) -> list[object]:
        """Alter an object: what is said changes, the rest stays; the changes."""
        asked = self._session.alter(kind, name, terminate_existing=terminate_existing, **declared)
        return self._thread.call(asked)

    def drop(self, kind: str, name: str, *, terminate_existing: bool = False) -> list[object]:
        """Drop an object; the changes."""
        asked = self._session.drop(kind, name, terminate_existing=terminate_existing)
        return self._thread.call(asked)

    def transmission_status(self, handle: bytes) -> TransmissionStatus:
        """How the transmission of a dialog stands, and why it does not get on."""
        return self._thread.call(self._session.transmission_status(handle))

    def clean_up(self, handle: bytes, reason: str, *, tell_peer: bool = False) -> None:
        """End a dialog WITH CLEANUP; see `client.admin`."""
        cleaned = self._session.admin.clean_up(handle, reason, tell_peer=tell_peer)
        self._thread.call(cleaned)

    def view(self, name: str) -> list[object]:
        """The rows of a view, a map each."""
        return self._thread.call(self._session.view(name))

    def browse(self, queue: str, *, bodies: bool = True) -> Iterator[Message]:
        """Look at all that is in a queue, taking and locking nothing; a page at a time."""
        after: tuple[int, int] | None = None
        while True:
            page = self.browse_page(queue, after, bodies=bodies)
            yield from page.messages
            if page.after is None:
                return
            after = page.after

    def browse_page(
        self,
        queue: str,
        after: tuple[int, int] | None = None,
        limit: int = 100,
        *,
        bodies: bool = True,
    ) -> Page:
        """One page of a queue's contents, from where the last one ended."""
        return self._thread.call(self._session.browse_page(queue, after, limit, bodies=bodies))


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
