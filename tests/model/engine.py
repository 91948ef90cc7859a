"""The real thing for the model to be held against: an instance on virtual time, and its clients.

The instance runs on real SQLite files in line; it can be killed between two instructions, and its
disk can be held so that nothing becomes durable. Each client is a link of the SDK, so that every
request of a transaction has an answer of its own to look at, and reconnects as any program would.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from brokerd.broker.blocked import Blocked
from brokerd.broker.options import BrokerOptions
from brokerd.broker.state import LockWait
from brokerd.broker.transaction import Transaction
from brokerd.broker.window import WindowOptions
from brokerd.client.link import Link
from brokerd.client.messages import Message, read_page
from brokerd.client.session import Session, connect
from brokerd.clock import Instant
from brokerd.config.settings import Clients, ClockSettings, Settings
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.ids import BootId, ClientId, Handle, SeededIds, show
from brokerd.instance.instance import Instance, Surroundings
from brokerd.objects.declarations import parse
from brokerd.protocol.admin_verbs import View, ViewOptions
from brokerd.protocol.client_verbs import MAX_PAGE, Browse, Verb
from brokerd.sessions import work
from brokerd.sessions.options import SessionOptions
from brokerd.sessions.responses import Responses
from brokerd.sessions.session import ClientSession
from brokerd.sessions.verb_dispatch import perform
from brokerd.sessions.work import OneShot
from brokerd.storage.postgresql.executor import InlineOnServer
from brokerd.storage.postgresql.opening import ServerOptions
from brokerd.telemetry.log import NullLog
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import VirtualLoop
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams
from tests.engine.simulation.machine import Machine

START = Instant(1_700_000_000_000_000)
ADDRESS = "TCP://daemon:7001"
LOCK_TIMEOUT = 30.0
TICK = 2.0
SMALL = WindowOptions(window_messages=6, page_messages=3, locked_factor=1000)
"""So small that most messages are beyond it."""
_ANSWERS = ("done", "answer", "failed")
"""How a daemon says what came of a request that is no commit."""
_NUMBERS = count(1)
_FOLDER = Path("/dev/shm")  # memory, where there is such a thing


class Turn(NamedTuple):
    """A verb of a whole transaction in one request was performed, has locked its group and reads
    on, or began to wait for a lock."""

    moment: int
    """Rises from one thing that the engine did to the next."""
    client: str
    verbs: int
    """How many of the request had been by then, this one included."""
    reads: bool = False
    """It has locked its group and reads on: what it does is to be seen later."""


class Log(NullLog):
    """Keeps every line above debug."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.errors: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        """Keep the line."""
        self.lines.append((event, fields))

    warning = info

    def error(self, event: str, **fields: object) -> None:
        """Keep the line; a machine that wrote one has failed."""
        self.lines.append((event, fields))
        self.errors.append(f"{event} {fields}")


def temporary_folder() -> Path:
    """A new folder, in memory if possible."""
    return Path(tempfile.mkdtemp(prefix="model-", dir=_FOLDER if _FOLDER.is_dir() else None))


class ServerMachine(InlineOnServer):
    """The executor of stores on a server, over all boots: a session ends with its boot."""

    async def scrap(self) -> None:
        """Do nothing: no connection is kept."""


class Engine:
    """One daemon, its clients, and the loop both live on."""

    server = ""
    """URL of the database of all stores; empty = they are in files (`--engine`)."""

    def __init__(
        self,
        objects: dict[str, Any],
        clients: Sequence[str],
        *,
        window: WindowOptions,
        declares: bool = False,
        fast_paths: bool = True,
    ) -> None:
        """`declares`: it makes the objects itself, and has nobody to speak to it."""
        self._window = window
        self._fast_paths = fast_paths
        self.loop = VirtualLoop(max_idle_turns=20_000)
        self.clock = SimClock(self.loop, utc_start=START)
        self.log = Log()
        self._objects = objects
        self._streams = Streams(1)
        self._network = SimNetwork(self.loop, self._streams.stream("network"))
        self._folder = temporary_folder()
        self._machine = self._machine_for(window)
        self._boots = 0
        self._held: list[tuple[Callable[[], None], Context]] | None = None
        self._clients: dict[str, Session] = {}
        self.this_moment = 0
        """Rises with each thing that is noted."""
        self._decided: dict[tuple[ClientId, bool], int] = {}
        self._flushes: dict[ClientId, object] = {}
        self._told: list[tuple[str, int]] = []
        self.turns: list[Turn] = []
        self._shots: dict[Transaction, Turn] = {}
        self._watching: list[Any] = []
        self._watch()
        self.instance: Instance
        if declares:
            self.start(declare=True)
            return
        if self.server:
            self.start(declare=True)
        else:
            for name, data in self._prepared().items():
                (self._folder / name).write_bytes(data)
            self.start()
        for name in (*clients, "looker"):
            self._clients[name] = self.run(self._connect(name))

    def _machine_for(self, window: WindowOptions) -> Machine | ServerMachine:
        if self.server:
            options = ServerOptions(require_durable=False, schema_prefix=f"m{next(_NUMBERS)}_")
            return ServerMachine(self.server, options, self._schedule)
        return Machine(self._schedule, keep=window is SMALL)  # else SQLite recovers too

    # Life.

    def _prepared(self) -> dict[str, bytes]:
        """Stores that have the objects already, made once for a process, by another one: the first
        machine of a process is to be as it would be later."""
        key = repr(self._objects)
        if key not in _PREPARED:
            other = Engine(self._objects, (), window=self._window, declares=True)
            other.run(other.instance.stop(timedelta(seconds=1)))
            _PREPARED[key] = {one.name: one.read_bytes() for one in other._folder.glob("*.db")}
            other.close()
        return _PREPARED[key]

    def start(self, *, declare: bool = False) -> None:
        """Boot on the files as they are."""
        self._boots += 1
        self._held = None
        self.turns.clear()
        self._told.clear()
        self._shots.clear()
        self._scope = f"daemon/{self._boots}"
        context = self.loop.scope(self._scope)
        self.run(self.loop.create_task(self._boot(declare=declare), context=context))

    async def _boot(self, *, declare: bool) -> None:
        boot = self._streams.child(f"boot{self._boots}")

        def options(**given: Any) -> SessionOptions:
            return SessionOptions(**(given | {"transaction_age": 1e6, "transaction_idle": 1e6}))

        with patch("brokerd.instance.part_options.SessionOptions", options):
            self.instance = Instance(
                Settings(
                    instance=InstanceSettings(name="daemon", data_dir=self._folder),
                    clients=Clients(listen=ADDRESS, trust_network=True),
                    clock=ClockSettings(tick=timedelta(seconds=TICK)),
                ),
                Surroundings(
                    clock=self.clock,
                    ids=SeededIds(boot.stream("ids")),
                    rng=boot.stream("rng"),
                    network=self._network.for_node("daemon"),
                    executor=self._machine,
                    log=self.log,
                    boot_id=BootId(boot.stream("boot").randbytes(16)),
                    keys=None,
                    limits=BrokerOptions(
                        lock_timeout=LOCK_TIMEOUT, window=self._window, fast_paths=self._fast_paths
                    ),
                ),
            )
            await self.instance.start(parse(self._objects) if declare else None)

    def kill(self) -> None:
        """Stop it between two instructions; whatever is on disk stays, nothing else does."""
        self.loop.kill(self._scope)
        self._network.crash("daemon", late=False)
        for broker in self.instance.brokers.values():
            self.run(broker.store.abandon())

    def stop(self) -> Path:
        """Stop it in order; where its files are until `close`."""
        self.run(self.instance.stop(timedelta(seconds=1)))
        return self._folder

    def close(self) -> None:
        """End everything without a word and remove the files."""
        self.kill()
        self.run(self._machine.scrap())
        self.loop.cancel_left_over()
        self.loop.close()
        for watching in self._watching:
            watching.stop()
        shutil.rmtree(self._folder)

    # The disk.

    def _schedule(self, function: Callable[[], None]) -> None:
        if self._held is None:
            self.loop.call_later(0.0002, function)
        else:
            self._held.append((function, copy_context()))  # it goes with the daemon's end

    @property
    def disk_is_held(self) -> bool:
        """Whether nothing becomes durable now."""
        return self._held is not None

    def hold_disk(self) -> None:
        """From now on nothing becomes durable."""
        self._held = []

    def release_disk(self) -> None:
        """What was held goes on."""
        held, self._held = self._held or [], None
        for function, context in held:
            self.loop.call_soon(function, context=context)

    # What was first.

    def _watch(self) -> None:
        """Note when a client's request is decided: its answer comes later, a commit's when it is
        durable."""
        for of, name in ((Transaction, "commit"), *((Responses, one) for one in _ANSWERS)):
            self._wrap(of, name, self._noting(getattr(of, name), name))
        self._wrap(OneShot, "__init__", self._noting_shot(OneShot.__init__))
        self._wrap(work, "perform", self._noting_turn(perform))
        self._wrap(LockWait, "grant", self._noting_told(LockWait.grant))

    def _wrap(self, of: Any, name: str, by: Callable[..., Any]) -> None:
        watching = patch.object(of, name, by)
        watching.start()
        self._watching.append(watching)

    def _noting_shot(self, make: Callable[..., None]) -> Callable[..., None]:
        def noting(shot: OneShot, session: ClientSession, *args: Any) -> None:
            make(shot, session, *args)
            clients = {one.client_id: name for name, one in self._clients.items()}
            self._shots[shot.tx] = Turn(0, clients[session.client_id], 0)

        return noting

    def _noting_told(self, tell: Callable[[LockWait], None]) -> Callable[[LockWait], None]:
        def noting(wait: LockWait) -> None:
            if not wait._over and isinstance(wait.holder, Transaction):
                self._told.append((wait.holder.owner, self._next()))
            tell(wait)

        return noting

    def _noting_turn(self, perform: Callable[..., Blocked | None]) -> Callable[..., Any]:
        def noting(tx: Transaction, verb: Any, by: Any) -> Blocked | None:
            _, client, verbs, _ = self._shots[tx]
            turn = Turn(self._next(), client, verbs + 1)
            self.turns.append(turn)
            locked = len(tx.locked)
            blocked = perform(tx, verb, by)
            if blocked is None:
                self._shots[tx] = turn
            elif blocked.what != "lock":  # it reads, and is done later
                self.turns.remove(turn)
                if len(tx.locked) > locked:  # others have to wait for it from now on
                    self.turns.append(turn._replace(reads=True))
            return blocked

        return noting

    def _noting(self, act: Callable[..., Any], name: str) -> Callable[..., Any]:
        def noting(by: Any, *args: Any, **given: Any) -> Any:
            client = given.get("client") if name == "commit" else by._client.client_id
            if client is not None:
                self._decided[client, name == "commit"] = self._next()
            if name == "commit" and client is not None:
                self._flushes[client] = by.broker.store._pipeline._gathering
            return act(by, *args, **given)

        return noting

    def _next(self) -> int:
        self.this_moment += 1
        return self.this_moment

    def moment(self, name: str, *, commits: bool) -> int:
        """A number that rises: when the latest commit of this client was decided, or its latest
        other answer; else now."""
        decided = self._decided.pop((self._clients[name].client_id, commits), None)
        return self._next() if decided is None else decided

    def told(self, name: str, since: int) -> list[int]:
        """When this client was told that it has a lock it waited for, each time after a moment."""
        owner = f"client {show(self._clients[name].client_id)[:8]} "
        return [at for one, at in self._told if at > since and one.startswith(owner)]

    def flush_of(self, name: str) -> object:
        """The flush that the latest commit of this client has joined."""
        return self._flushes.get(self._clients[name].client_id)

    # Time.

    def run(self, what: Any) -> Any:
        """Run something on the loop."""
        return self.loop.run_until_complete(what)

    def rest(self, seconds: float) -> None:
        """Let virtual time go by."""
        self.run(self.clock.sleep_until(self.loop.time() + seconds))
        if self.instance.failed.done():
            raise self.instance.failed.result()
        assert not self.loop.unhandled, self.loop.unhandled
        assert not self.log.errors, self.log.errors

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.loop.time()

    # Clients.

    async def _connect(self, name: str) -> Session:
        network = self._network.for_node(name)

        async def connector(
            factory: Callable[[], asyncio.Protocol],
        ) -> tuple[asyncio.Transport, asyncio.Protocol]:
            return await network.connect(factory, ADDRESS)

        ids = SeededIds(self._streams.stream(f"ids of {name}"))
        return await connect(
            broker="main", connector=connector, clock=self.clock, ids=ids, rng=Random(1), retry=1e6
        )

    def link(self, name: str) -> Link:
        """The line of a client to the daemon."""
        return self._clients[name]._link

    def begin(self, name: str) -> int:
        """Open a transaction; its number on the wire."""
        number: int = self.run(self.link(name).begin())[0]
        return number

    def drop(self, name: str) -> None:
        """Cut the connection of a client."""
        connection = self.link(name)._connection
        assert connection is not None
        connection.abort()

    def is_connected(self) -> bool:
        """Whether every client is."""
        return all(one._link._ready for one in self._clients.values())

    def alter_queue(self, name: str, option: str, value: str) -> None:
        """Alter a queue, as an administrator does."""
        options: dict[str, Any] = {option: value}
        self.run(self._clients["looker"].alter("queue", name, **options))

    def clean_up(self, handle: bytes) -> None:
        """Remove an endpoint, as an administrator does."""
        self.run(self._clients["looker"].admin.clean_up(handle, "the machine says so"))

    def group_id(self, handle: bytes) -> bytes:
        """The group of a conversation in memory, committed or not; empty if it is not there."""
        live = self.instance.brokers["main"].endpoints.find(Handle(handle))
        return b"" if live is None else live.group.group_id

    def browse(self, queue: str) -> list[Message]:
        """Everything on a queue, as a client would see it; the line to the daemon is left out,
        which a program of a machine uses enough."""
        found: list[Message] = []
        after: tuple[int, int] | None = None
        while True:
            page = read_page(self._look(Browse(queue, after, MAX_PAGE)))
            found += page.messages
            if page.after is None:
                return found
            after = page.after

    def view(self, name: str) -> list[dict[str, Any]]:
        """The rows of a view, as a client would see them."""
        rows: list[dict[str, Any]] = []
        options = ViewOptions(limit=MAX_PAGE)
        while True:
            page = self._look(View(name, options))
            rows += page["rows"]
            if page["next"] is None:
                return rows
            options = ViewOptions(limit=MAX_PAGE, after=page["next"])

    def _look(self, verb: Verb) -> Any:
        """A verb that changes nothing, in line: it reads, and so has nobody to wait for."""
        asked = self.instance.parts.administration.run(
            self.instance.brokers["main"], verb, "looker"
        )
        try:
            asked.send(None)
        except StopIteration as answer:
            return answer.value
        raise AssertionError(f"{verb} had to wait")


_PREPARED: dict[str, dict[str, bytes]] = {}
