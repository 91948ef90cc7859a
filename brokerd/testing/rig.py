"""Rig: real instances for tests of programs, on virtual time and a breakable network (SDK-16).

The engine is that of the daemon, with its protocol, its timers and its SQLite files. The rig
replaces only the clock, the network and the executor: stores are written without threads.
Reads:  one directory of the machine, nothing else.      Calls: loop, network, instance.
Never:  sleeps: when every task waits, virtual time jumps to the next timer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from brokerd.app import bodies
from brokerd.app.app import App
from brokerd.app.contract import Contract
from brokerd.app.session import Session
from brokerd.client.connecting import open_session
from brokerd.clock import Instant, as_datetime
from brokerd.config.settings import (
    Authentication,
    Clients,
    Encryption,
    Endpoint,
    Settings,
    Transport,
)
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.ids import BootId, SeededIds
from brokerd.instance.instance import Instance, Surroundings
from brokerd.objects.declarations import parse
from brokerd.storage.executors import Executor, Inline
from brokerd.telemetry.log import NullLog
from brokerd.testing import left
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import VirtualLoop
from brokerd.testing.mangler import BoxcarMangler
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams
from brokerd.units import parse_duration

BROKER: Final = "main"
PORT: Final = 4022
UTC_START: Final = Instant(1_800_000_000_000_000)
SETTLE_WITHIN: Final = 300.0
"""Longest wait of `assert_settled`, in virtual seconds (REL-21)."""

_T = TypeVar("_T")
Duration = float | str | timedelta
"""Duration as a number of seconds, a text such as "2h" or "200ms", or a timedelta."""


class RigClock:
    """The clock of all instances of a rig."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock

    @property
    def now(self) -> datetime:
        """The current virtual UTC."""
        return as_datetime(self._clock.utc())

    async def advance(self, duration: Duration) -> None:
        """Let virtual time pass, and run every timer due in it, without waiting in real time."""
        seconds = parse_duration(_plain(duration)).total_seconds()
        await self._clock.sleep_until(self._clock.monotonic() + seconds)


class RigLink:
    """The network link between two instances, in both directions."""

    def __init__(self, network: SimNetwork, ends: tuple[str, str], rng: Random) -> None:
        self._network = network
        self._ends = ends
        self._manglers = [BoxcarMangler(rng), BoxcarMangler(rng)]
        for mangler, (a, b) in zip(self._manglers, (ends, ends[::-1]), strict=True):
            network.mangle(a, b, mangler)

    def cut(self) -> None:
        """Drop all traffic until `heal`; connections stay open, and report no error."""
        self._network.cut(*self._ends)

    def heal(self, *, drop: float = 0.0, duplicate: float = 0.0, reorder: float = 0.0) -> None:
        """End the cut; lose, repeat and reorder further frames with the given probabilities."""
        self._network.heal(*self._ends)
        self.lossy(drop=drop, duplicate=duplicate, reorder=reorder)

    def lossy(self, *, drop: float = 0.0, duplicate: float = 0.0, reorder: float = 0.0) -> None:
        """Lose, repeat and reorder further frames with the given probabilities."""
        for mangler in self._manglers:
            mangler.set(drop=drop, duplicate=duplicate, reorder=reorder)

    def reset(self) -> None:
        """Reset the open connections; new connections are possible immediately."""
        self._network.reset(*self._ends)


class RigInstance:
    """One instance with a broker and a session; it also has the attributes of the session.

    The instance starts with a service of the instance's name, from which `dialog` and `post` send.
    """

    link: RigLink
    """The link to the other instance of a pair; with more instances, the newest link."""
    session: Session

    def __init__(self, rig: "Rig", name: str) -> None:
        self._rig = rig
        self.name = name
        self._boots = self._sessions = 0
        self._instance: Instance | None = None
        self._apps: list[asyncio.Task[None]] = []
        self.seen = CommittedMessages()
        """Counts of the messages that sessions of this instance sent and received."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever a session has
        if name in ("session", "link") or name.startswith("__"):
            raise AttributeError(f"{self.name} has no {name} yet")
        return getattr(self.session, name)

    @property
    def is_started(self) -> bool:
        """Whether the instance has ever been started."""
        return "session" in vars(self)

    @property
    def instance(self) -> Instance:
        """The running engine; raises `AssertionError` between `crash` and `start`."""
        assert self._instance is not None, f"{self.name} is down"
        return self._instance

    # Starting and stopping.

    async def start(self) -> None:
        """Boot the instance on its existing files; the first boot also declares its objects."""
        rig = self._rig
        self._boots += 1
        streams = rig.streams.child(f"{self.name}/{self._boots}")
        done: asyncio.Future[None] = rig.loop.create_future()

        async def boot() -> None:
            instance = Instance(rig.settings(self.name), self._surroundings(streams))
            first = parse(_objects(self.name)) if self._boots == 1 else None
            try:
                await instance.start(first)
            except BaseException as error:
                done.set_exception(error)
                raise
            self._instance = instance
            done.set_result(None)

        rig.loop.create_task(boot(), context=rig.loop.scope(self._scope))
        await done
        if self._boots == 1:
            self.session = await self.connect()
            await rig.route_to(self, [self.name])

    def crash(self) -> None:
        """Kill the instance between two instructions; only durable data survives.

        Sessions lose their connections, and retry until `start`.
        """
        instance, rig = self.instance, self._rig
        self._instance = None
        rig.loop.kill(self._scope)
        rig.network.crash(self.name)
        for broker in instance.brokers.values():
            left.run_now(broker.store.abandon())
        instance.parts.sessions.end_all()

    async def restart(self) -> None:
        """Crash the instance and start it again."""
        self.crash()
        await self.start()

    async def stop(self) -> None:
        """Stop the apps, the session and the instance, in this order.

        Raise the error of the instance if it had failed."""
        for task in self._apps:
            task.cancel()
        await asyncio.gather(*self._apps, return_exceptions=True)
        if self._instance is not None:
            await self.session.close()
            await self._instance.stop(timedelta(seconds=1))
            if self._instance.failed.done():
                raise self._instance.failed.result()

    @property
    def _scope(self) -> str:
        return f"{self.name}/{self._boots}"

    def _surroundings(self, streams: Streams) -> Surroundings:
        return Surroundings(
            clock=self._rig.sim_clock,
            ids=SeededIds(streams.stream("ids")),
            rng=streams.stream("rng"),
            network=self._rig.network.for_node(self.name),
            executor=self._rig.executor(self.name),
            log=NullLog(),
            boot_id=BootId(streams.stream("boot").randbytes(16)),
            keys=streams.stream("keys").randbytes,
            recorder=self.seen,
        )

    async def connect(self, **options: Any) -> Session:  # noqa: ANN401  # those of a session
        """Open another session, as another program would; the test must close this session."""
        self._sessions += 1
        streams = self._rig.streams.child(f"{self.name}/session {self._sessions}")
        session = await open_session(
            Session,
            self.name,
            BROKER,
            connector=self._connector,
            clock=self._rig.sim_clock,
            ids=SeededIds(streams.stream("ids")),
            rng=streams.stream("rng"),
            retry=timedelta(days=365),
            recorder=self.seen,
            **options,
        )
        session.service = self.name
        return session

    async def _connector(
        self, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        if self._instance is None:
            raise ConnectionRefusedError(f"{self.name} is down")
        return await self._instance.local_clients.connector(factory)

    # Programs.

    async def declare(self, *needed: Contract | App, **options: Any) -> None:  # noqa: ANN401
        """Call `Session.declare`, then declare the contracts, and routes, at all other instances.

        The routes lead to the services that this call has created.
        """
        before = set(self.instance.brokers[BROKER].services)
        await self.session.declare(*needed, **options)
        contracts = [one for one in needed if isinstance(one, Contract)]
        contracts += [found for one in needed if isinstance(one, App) for found in one.contracts]
        for other in self._rig.others(self):
            await other.session.declare(*contracts)
        await self._rig.route_to(self, set(self.instance.brokers[BROKER].services) - before)

    async def run(self, app: App) -> None:
        """Declare an app, and run it on this session until the test ends.

        It runs as `brokerd worker run` would run it."""
        await self.declare(app)
        self._apps.append(asyncio.ensure_future(app.run(self.session)))

    # Assertions.

    def assert_once(self, kind: bodies.Kind) -> None:
        """Fail unless each sent message of this type was handled by this instance exactly once.

        Messages sent anywhere in the rig count. Also fail if no message was sent.
        """
        name = kind if isinstance(kind, str) else bodies.type_name(kind)
        sent = sum(one.seen.sent(name) for one in self._rig.instances.values())
        handled = self.seen.received(name)
        twice = [place for place, count in handled.items() if count > 1]
        if sent and len(handled) == sent and not twice:
            return
        lines = [f"{name}: {sent} sent, {len(handled)} handled by {self.name}"]
        lines += [f"{len(twice)} of them more than once: {', '.join(twice)}"] if twice else []
        for one in self._rig.instances.values():
            lines += [f"left at {one.name}: {text}" for text in one.left()]
        raise AssertionError("\n  ".join(lines))

    async def assert_settled(self, within: Duration = SETTLE_WITHIN) -> None:
        """Wait until no dialog is open and no message waits; fail after `within` (virtual time)."""
        clock = self._rig.sim_clock
        deadline = clock.monotonic() + parse_duration(_plain(within)).total_seconds()
        while found := self.left():
            if clock.monotonic() >= deadline:
                lines = "\n  ".join(found)
                raise AssertionError(f"{self.name} is not settled; left are\n  {lines}")
            await clock.sleep_until(clock.monotonic() + 0.5)

    def left(self) -> list[str]:
        """Return a sentence for each unfinished item; an empty list means that all is settled."""
        if self._instance is None:
            return [f"{self.name} is down"]
        broker = self._instance.brokers[BROKER]
        return left.waiting(self._instance, broker) + left.open_dialogs(broker)


class Rig:
    """A set of instances with routes to each other, on their own virtual loop.

    `directory`: directory for the instances' data. `seed`: seed of all random draws."""

    def __init__(self, directory: Path, *, seed: int = 1) -> None:
        self.seed = seed
        self.streams = Streams(seed)
        self.loop = VirtualLoop()
        self.network = SimNetwork(self.loop, self.streams.stream("network"))
        self.sim_clock = SimClock(self.loop, utc_start=UTC_START)
        self.clock = RigClock(self.sim_clock)
        self.instances: dict[str, RigInstance] = {}
        self._directory = directory

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the rig's loop; an error gets the seed as a note."""
        try:
            return self.loop.run_until_complete(work)
        except BaseException as error:
            error.add_note(f"brokerd seed {self.seed}")
            raise

    async def add(self, *names: str) -> list[RigInstance]:
        """Start an instance for each name, with a link and routes between every two instances."""
        made = [RigInstance(self, name) for name in names]
        for one in made:
            for other in self.instances.values():
                rng = self.streams.stream(f"link {one.name} {other.name}")
                one.link = other.link = RigLink(self.network, (one.name, other.name), rng)
            self.instances[one.name] = one
        for one in made:
            await one.start()
        # `start` added routes only at instances that ran already: now all run, so add the others.
        for one in made:
            await self.route_to(one, [one.name])
        return made

    def others(self, but: RigInstance) -> list[RigInstance]:
        """Return the instances that have been started, except `but`."""
        return [one for one in self.instances.values() if one is not but and one.is_started]

    async def route_to(self, one: RigInstance, services: Iterable[str]) -> None:
        """Add routes to `services` of an instance at all other instances."""
        routes = [
            {"name": f"to_{name}", "service": name, "address": f"TCP://{one.name}:{PORT}"}
            for name in sorted(services)
        ]
        for other in self.others(one):
            if routes:
                wanted: dict[str, object] = {"broker": {"name": BROKER}, "route": routes}
                await other.session.apply(wanted, ensure=True)

    def settings(self, name: str) -> Settings:
        """Return the settings of an instance: unencrypted connections, mostly defaults."""
        return Settings(
            instance=InstanceSettings(name=name, data_dir=self._directory / name),
            clients=Clients(listen=f"unix:{name}.sock"),
            endpoint=Endpoint(
                listen=("all",),
                port=PORT,
                encryption=Encryption.DISABLED,
                authentication=Authentication.NONE,
            ),
            transport=Transport(allow_plaintext=True),
        )

    def executor(self, name: str) -> Executor:
        """Return what runs the SQL of the stores of an instance."""
        del name
        return Inline()

    def close(self) -> None:
        """Stop the instances; raise the errors of callbacks, and of tasks that no code awaited."""
        try:
            for one in self.instances.values():
                self.run(one.stop())
            self.loop.cancel_left_over()
            self.run(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
        if self.loop.unhandled:
            raise ExceptionGroup("raised where nobody waited", self.loop.unhandled)


def _objects(name: str) -> dict[str, object]:
    return {
        "broker": {"name": BROKER, "default_encryption": "off"},
        "queue": [{"name": f"{name}_q"}],
        "service": [{"name": name, "queue": f"{name}_q"}],
    }


def _plain(duration: Duration) -> float | str:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


class CommittedMessages:
    """The recorder of an instance's sessions, which counts messages of committed transactions."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._received: Counter[tuple[str, str]] = Counter()
        self._under_way: dict[tuple[bytes, int], list[tuple[str, str, str]]] = {}

    def sent(self, message_type: str) -> int:
        """Return the number of messages of this type sent in committed transactions."""
        return self._sent[message_type]

    def received(self, message_type: str) -> dict[str, int]:
        """Return the number of committed receipts of each message of this type.

        The keys are text: the dialog and the sequence number of the message.
        """
        return {place: n for (name, place), n in self._received.items() if name == message_type}

    def event(self, **fields: Any) -> None:  # noqa: ANN401  # the recorder's own form
        """Record one event of a session."""
        key = (fields["client"], fields["tx"])
        match fields["op"], fields["kind"]:
            case "send", "invoke":
                self._keep(key, "sent", fields.get("message_type") or "DEFAULT", "")
            case "receive", "ok" if fields.get("seq") is not None:
                place = f"{fields['dialog'].hex()[:8]}/{fields['seq']}"
                self._keep(key, "received", fields["message_type"], place)
            case "commit", "ok":
                self._count(key)
            case ("rollback", _) | ("commit", "fail" | "info"):
                self._under_way.pop(key, None)
            case _:
                pass

    def _keep(self, key: tuple[bytes, int], what: str, name: str, place: str) -> None:
        self._under_way.setdefault(key, []).append((what, name, place))

    def _count(self, key: tuple[bytes, int]) -> None:
        for what, name, place in self._under_way.pop(key, []):
            if what == "sent":
                self._sent[name] += 1
            else:
                self._received[name, place] += 1
