"""All client connections of an instance: greeting, fencing, counting, draining (CLP-10 to 13).

Reads: HELLOs.      Calls: session, expiry, admin_gate, permissions, principals.
Never: reads a transaction; each session runs its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from brokerd.broker.broker import Broker
from brokerd.broker.poison import Undone
from brokerd.broker.store_reads import Spawn
from brokerd.broker.transaction import Transaction
from brokerd.clock import Clock
from brokerd.errors import (
    AccessDenied,
    BadRequest,
    BrokerError,
    BrokerUnavailable,
    Busy,
    InternalError,
    ObjectNotFound,
    StoreFault,
)
from brokerd.ids import ID_SIZE, BootId, ClientId, InstanceId
from brokerd.objects.declared import Kind
from brokerd.protocol import admin_verbs as admin
from brokerd.protocol import client_frames as frames
from brokerd.protocol import client_verbs as wire
from brokerd.security.grants import Grants
from brokerd.sessions.admin_gate import ClientGate, Exclusive
from brokerd.sessions.expiry import end_expired
from brokerd.sessions.flow_control import Congestion
from brokerd.sessions.options import SessionOptions
from brokerd.sessions.permissions import adds_to_own, check
from brokerd.sessions.principals import Principals, Who
from brokerd.sessions.session import ClientSession
from brokerd.telemetry.audit import Audit
from brokerd.telemetry.log import Log
from brokerd.transport.door import Door, DoorOptions

_OUTLIVED: Final = "this reader was started by the daemon that ran here before"
_SENTENCES: Final = 3
"""Most missing objects that a refusal names."""
_LET_END: Final = "let it end: the daemon that runs now starts readers of its own"
EvaluateRollback = Callable[[ClientSession, Undone], Undone | None]
"""Function that returns what a rollback means for poison (PBT-10, PSN-16).

Arguments: the session, and the meaning of the rollback for any client. None = it does not
count."""
Administer = Callable[[Broker, wire.Verb, str], Awaitable[object]]
"""Function that runs an administrative verb on a broker for the named client.

It returns the value of the verb."""


class Sessions:
    """The connected clients of an instance."""

    def __init__(
        self,
        *,
        instance: str,
        instance_id: InstanceId,
        boot_id: BootId,
        brokers: Mapping[str, Broker],
        absent: Mapping[str, BrokerError],
        clock: Clock,
        options: SessionOptions,
        spawn: Spawn,
        log: Log,
        administer: Administer,
        on_receive: Callable[[ClientSession, str], bool],
        on_rollback: Callable[[Broker, str], None],
        evaluate_rollback: EvaluateRollback = lambda _session, how: how,
        grants: Grants,
        audit: Audit,
        certified: Collection[str],
    ) -> None:
        self._instance = instance
        self._instance_id = instance_id
        self._boot_id = boot_id
        self._brokers = brokers
        self._absent = absent
        self.clock = clock
        self.options = options
        self._spawn = spawn
        self.log = log
        self.audit = audit
        self._administer = administer
        self.on_receive = on_receive
        """Called with (session, queue) when a receive begins; False = it must return empty."""
        self.on_rollback = on_rollback
        """Called with (broker, queue) when a transaction that received from it rolls back."""
        self.evaluate_rollback = evaluate_rollback
        self.principals = Principals(grants, certified=certified)
        grants.watch(self._grants_changed)
        self._connected: dict[ClientSession, None] = {}
        self._known: dict[tuple[str, ClientId], ClientSession] = {}
        self._admitted: dict[ClientSession, None] = {}
        self._empty = asyncio.Event()
        self.door = Door(
            "clients",
            options=DoorOptions(
                most=options.clients + options.logins,
                per_address=options.per_address,
                logins=options.logins,
                logins_per_address=options.logins_per_address,
            ),
            refusal=lambda text: frames.encode_failed(0, Busy(text)),
            clock=clock,
            log=log,
        )
        """Limits on the connections of clients (END-18)."""
        self.exclusive = Exclusive(self._gates)
        """The brokers that are reserved for administration; their clients are kept out."""
        self.congestion = Congestion(options)
        """The pauses of clients while the writer is behind."""
        self.open_page: Callable[[Who], object] = _no_page
        """Called when a client asks for an address at which a browser is let in (MON-28); returns
        the answer. The HTTP listener sets it."""
        self.transactions = self.waiting = 0
        """Numbers of open transactions and of waiting receives, over all clients."""

    def __len__(self) -> int:
        return len(self._connected)

    def _gates(self, broker: Broker) -> list[ClientGate]:
        return [one.gate for one in self._admitted if one.broker is broker]

    def open_transactions(self) -> Iterator[tuple[ClientId, Transaction]]:
        """Yield the transactions of all clients, each with the id of its client."""
        for session in self._admitted:
            for tx in session.transactions:
                yield session.client_id, tx

    def factory(self) -> ClientSession:
        """Return a protocol object for an accepted connection."""
        return ClientSession(self)

    def opened(self, session: ClientSession) -> None:
        """Register an accepted connection."""
        self._connected[session] = None

    @property
    def span_limit(self) -> int:
        """Largest size of a request in bytes: one transaction plus one frame (CLP-22)."""
        most = max(broker.options.max_bytes for broker in self._brokers.values())
        return most + frames.FRAME_LIMIT

    def add_transaction(self, session: ClientSession) -> None:
        """Count a transaction about to open; raise `Busy` if too many are open.

        Transactions whose commit or rollback is pending do not count."""
        own, most = session.not_ending, self.options.transactions
        if own >= most:
            raise Busy(f"{own} transactions of this client are open")
        if self.transactions >= self.options.transactions_in_all:
            in_all = sum(one.not_ending for one in self._connected)
            if in_all >= self.options.transactions_in_all:
                raise Busy(f"{in_all} transactions are open")
        self.transactions += 1

    def remove_transaction(self) -> None:
        """Uncount a transaction that is no longer open."""
        self.transactions -= 1

    def start_waiting(self, own: int) -> None:
        """Count one more waiting receive of a client; raise `Busy` if too many wait.

        `own`: the number of receives of this client that wait already."""
        if own >= self.options.waiting:
            raise Busy(f"{own} receives of this client wait")
        if self.waiting >= self.options.waiting_in_all:
            raise Busy(f"{self.waiting} receives wait")
        self.waiting += 1

    def stop_waiting(self) -> None:
        """Uncount a receive that no longer waits."""
        self.waiting -= 1

    def stop_for(self, error: Exception) -> None:
        """Stop the instance with an error, because memory and store may differ (REL-5)."""
        self._spawn(_raise(error))

    def ended(self, session: ClientSession) -> None:
        """Unregister a connection that has ended."""
        self._connected.pop(session, None)
        self._admitted.pop(session, None)
        if self.is_known(session):
            del self._known[session.broker.name, session.client_id]
        if not self._connected:
            self._empty.set()

    def is_known(self, session: ClientSession) -> bool:
        """Return whether the session has sent HELLO and has not been replaced since."""
        client_id = getattr(session, "client_id", None)
        return client_id is not None and (
            self._known.get((session.broker.name, client_id)) is session
        )

    def greet(self, session: ClientSession, hello: frames.Hello) -> None:
        """Answer HELLO; an older connection of the same client ends first (CLP-13)."""
        if hello.version != frames.VERSION:
            session.refuse(BadRequest(f"version {hello.version}: this daemon speaks 1"))
            return
        broker = self._brokers.get(hello.broker)
        if (reason := self._absent.get(hello.broker)) is not None:
            unavailable = BrokerUnavailable.because(hello.broker, reason)
            session.refuse(_for_strangers(unavailable) if session.is_stranger else unavailable)
            return
        if broker is None:
            names = ", ".join(sorted(self._brokers))
            hint = f"this instance has: {names}; say which, as with --broker"
            unknown = ObjectNotFound(f"there is no broker {hello.broker!r} here", hint=hint)
            session.refuse(_for_strangers(unknown) if session.is_stranger else unknown)
            return
        if len(hello.client_id) != ID_SIZE:
            session.refuse(BadRequest("client_id: 16 bytes are expected"))
            return
        # Checked before the client id is used: a reader that outlived its daemon must not replace
        # a connection.
        if _outlived(token := _token(hello.info), self._instance_id, self._boot_id):
            session.refuse(AccessDenied(_OUTLIVED, hint=_LET_END))
            return
        client_id = ClientId(hello.client_id)
        # The older connection ends before the clients are counted, so that a client which
        # reconnects at the limit gets its own place back.
        older = self._known.get((broker.name, client_id))
        if older is not None:
            older.close(frames.REPLACED)
        if len(self._admitted) >= self.options.clients:
            most = f"{self.options.clients} clients are connected"
            session.refuse(Busy(most, hint="disconnect those that need none; more are not taken"))
            return
        session.admit(broker, client_id, token, hello.info)
        self._known[broker.name, client_id] = session
        self._admitted[session] = None
        if self.exclusive.holds(broker):
            session.gate.close()
        self._spawn(self._welcome(session))

    async def _welcome(self, session: ClientSession) -> None:
        """Write WELCOME once the older connection's commits are decided (CLP-13)."""
        broker, client_id = session.broker, session.client_id
        await broker.store.settled(client_id)
        if session.closed:  # a newer connection has replaced it
            return
        session.welcome(
            frames.Welcome(
                request=0,
                version=frames.VERSION,
                instance=self._instance,
                instance_id=self._instance_id,
                boot_id=self._boot_id,
                broker=broker.name,
                broker_id=broker.broker_id,
                limits=frames.Limits(
                    outstanding=self.options.outstanding,
                    body=broker.options.max_message,
                    transactions=self.options.transactions,
                    waiting=self.options.waiting,
                ),
                highest_token=broker.store.highest_token(client_id),
            )
        )

    def administer(self, session: ClientSession, request: int, verb: wire.Verb) -> None:
        """Run an administrative verb in its own task."""
        self._spawn(self._run(session, request, verb))

    async def _run(self, session: ClientSession, request: int, verb: wire.Verb) -> None:
        try:
            session.responses.answer(request, await self._perform(session, verb))
        except StoreFault:
            raise  # the instance stops (REL-5)
        except BrokerError as error:
            session.responses.failed(request, error)
        except Exception as error:  # noqa: BLE001  # per command (design, The code)
            session.responses.failed(request, self._unforeseen(verb, session.owner, error))

    async def _perform(self, session: ClientSession, verb: wire.Verb) -> object:
        """Return the answer to an administrative verb, if the client may use it."""
        broker, owner = session.broker, session.owner
        try:
            if session.rights is not None:
                check(session.rights, broker, verb, owner, self._brokers)
        except AccessDenied as denied:
            if not isinstance(verb, wire.Apply) or not adds_to_own(verb, broker.name):
                raise
            try:
                changes = await self._administer(broker, replace(verb, dry_run=True), owner)
            except StoreFault:
                raise
            except BrokerError:  # it would say what is here, a principal for one
                raise denied from None
            if changes:
                raise _lacking(denied, changes) from None
            return changes
        if isinstance(verb, admin.OpenPage):
            return self.open_page(Who(session.names, session.user))
        return await self._administer(broker, verb, owner)

    def _unforeseen(self, verb: wire.Verb, client: str, error: Exception) -> InternalError:
        """Log an unforeseen error once, and return the daemon's internal error for it (CLP-120)."""
        asked = wire.NAMES[type(verb)]
        self.log.error(
            "broker.daemon", subclass="client_failed", client=client, verb=asked, exc_info=error
        )
        return InternalError(f"{asked} failed with {type(error).__name__}: {error}")

    def _grants_changed(self) -> None:
        """Take changed grants over on every connection, at once (SX-3)."""
        for session in list(self._connected):
            session.grants_changed()

    # Passes and stopping.

    def sweep(self) -> int:
        """Close silent clients and roll back transactions that are too old (CLP-61).

        Return the number of closed clients and rolled-back transactions."""
        connected = list(self._connected)
        return end_expired(connected, self.options, self.clock.monotonic(), self.log)

    def end_all(self) -> None:
        """End every connection now; open transactions roll back."""
        for session in list(self._connected):
            session.close(None)

    async def drain(self, grace: float) -> None:
        """Let open transactions finish, at most `grace` seconds, then end every connection."""
        self._empty.clear()
        for session in list(self._connected):
            session.drain()
        if self._connected:
            try:
                await asyncio.wait_for(self._empty.wait(), grace)
            except TimeoutError:
                for session in list(self._connected):
                    session.close(None)


def _token(info: Mapping[str, str | int]) -> bytes:
    """Return the token of a reader process from its HELLO (ACT-20); empty = not a reader."""
    try:
        return bytes.fromhex(str(info.get("reader", "")))
    except ValueError:
        return b""


def reader_token(instance_id: InstanceId, boot_id: BootId, drawn: bytes) -> bytes:
    """Return the token of a reader process: the instance id, the boot id, and the drawn bytes.

    The ids let a daemon refuse readers that a killed daemon left behind. These must not work
    alongside its own, and the guard that ends them may be late, or dead as well (ACT-33)."""
    return instance_id + boot_id + drawn


def _outlived(token: bytes, instance_id: InstanceId, boot_id: BootId) -> bool:
    """Return whether a token was made by this instance, but before its current start."""
    return token.startswith(instance_id) and not token.startswith(instance_id + boot_id)


def _for_strangers(error: BrokerError) -> BrokerError:
    """Return a refusal without the names and paths of this machine (SX-17)."""
    if isinstance(error, BrokerUnavailable):
        return BrokerUnavailable("the broker cannot be opened", hint="ask its administrator")
    return ObjectNotFound("there is no such broker", hint="ask the administrator for its name")


def _no_page(_who: Who) -> object:
    raise ObjectNotFound(
        "the daemon has no HTTP listener",
        hint='set http.enabled = true and http.listen = "TCP://127.0.0.1:8022"; then restart it',
    )


def _lacking(denied: AccessDenied, changes: object) -> AccessDenied:
    """Return the refusal of a declaration, with the changes that an administrator has to make.

    If a binding is among them there are none: a binding of an unknown principal has no plan, and
    the difference would say which principals exist (SEC-82)."""
    if any(one.get("kind") == Kind.REMOTE_SERVICE_BINDING for one in _rows(changes)):
        return denied
    sentences = [str(one.get("sentence")) for one in _rows(changes)]
    wanted = "; ".join(sentences[:_SENTENCES]) + ("; ..." if len(sentences) > _SENTENCES else "")
    return AccessDenied(
        denied.message,
        hint=f"what is declared is not all there, and has to be made by somebody who may: {wanted}",
    )


def _rows(changes: object) -> list[dict[str, object]]:
    """Return the changes of a plan."""
    return changes if isinstance(changes, list) else []


async def _raise(error: Exception) -> None:
    raise error
