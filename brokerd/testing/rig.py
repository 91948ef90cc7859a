"""Rig: real instances for tests of programs, on virtual time and a breakable network (SDK-16).

The engine is the one that the daemon runs: its stores are SQLite files, its protocol, its timers.
Only the clock, the sockets and the moment at which a commit is done are the rig's.
Reads:  nothing of the machine but a directory.      Calls: the simulation's loop and network.
Never:  sleeps: when all wait, time moves on to the next thing that is due.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from brokerd.app import bodies
from brokerd.app.app import App
from brokerd.app.contract import Contract
from brokerd.app.session import Session
from brokerd.client.session import open_session
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
from brokerd.storage.engine import Inline
from brokerd.telemetry.log import NullLog
from brokerd.testing import left
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import VirtualLoop
from brokerd.testing.mangler import BoxcarMangler
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams
from brokerd.testing.seen import Seen
from brokerd.units import parse_duration

BROKER: Final = "main"
PORT: Final = 4022
UTC_START: Final = Instant(1_800_000_000_000_000)
SETTLE_WITHIN: Final = 300.0
"""Virtual seconds that `assert_settled` gives: REL-21."""

_T = TypeVar("_T")
Duration = float | str | timedelta
"""Seconds, or text such as "2h" or "200ms"."""


class RigClock:
    """The time of all instances of a rig."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock

    @property
    def now(self) -> datetime:
        """UTC."""
        return as_datetime(self._clock.utc())

    async def advance(self, duration: Duration) -> None:
        """Let so much time pass, with everything that is due in it; takes no real time."""
        seconds = parse_duration(_plain(duration)).total_seconds()
        await self._clock.sleep_until(self._clock.monotonic() + seconds)


class RigLink:
    """The way between two instances, in both directions."""

    def __init__(self, network: SimNetwork, ends: tuple[str, str], rng: Random) -> None:
        self._network = network
        self._ends = ends
        self._manglers = [BoxcarMangler(rng), BoxcarMangler(rng)]
        for mangler, (a, b) in zip(self._manglers, (ends, ends[::-1]), strict=True):
            network.mangle(a, b, mangler)

    def cut(self) -> None:
        """Let nothing through, and tell nobody, until `heal`."""
        self._network.cut(*self._ends)

    def heal(self, *, drop: float = 0.0, duplicate: float = 0.0, reorder: float = 0.0) -> None:
        """Let everything through again, or lose, repeat and reorder with these probabilities."""
        self._network.heal(*self._ends)
        self.lossy(drop=drop, duplicate=duplicate, reorder=reorder)

    def lossy(self, *, drop: float = 0.0, duplicate: float = 0.0, reorder: float = 0.0) -> None:
        """Lose, repeat and reorder what is sent from now on, with these probabilities."""
        for mangler in self._manglers:
            mangler.set(drop=drop, duplicate=duplicate, reorder=reorder)

    def reset(self) -> None:
        """Break the connections that are there; new ones can be made at once."""
        self._network.reset(*self._ends)


class RigInstance:
    """One instance with a broker, and a session on it; what it lacks the session has.

    It is born with a service of its own name, in whose name `dialog` and `post` speak.
    """

    link: RigLink
    """The way to the other one of a pair."""
    session: Session

    def __init__(self, rig: "Rig", name: str) -> None:
        self._rig = rig
        self.name = name
        self._boots = self._sessions = 0
        self._instance: Instance | None = None
        self._apps: list[asyncio.Task[None]] = []
        self.seen = Seen()
        """Every message that a session of this rig instance has sent or received."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever a session has
        if name in ("session", "link") or name.startswith("__"):
            raise AttributeError(f"{self.name} has no {name} yet")
        return getattr(self.session, name)

    @property
    def is_started(self) -> bool:
        """Whether it has been started, ever."""
        return "session" in vars(self)

    @property
    def instance(self) -> Instance:
        """The engine; it is down between `crash` and `start`."""
        assert self._instance is not None, f"{self.name} is down"
        return self._instance

    # Life.

    async def start(self) -> None:
        """Boot on the files as they are."""
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
        """Kill it between two instructions: what was confirmed stays, nothing else does.

        Sessions notice and try again until `start`.
        """
        instance, rig = self.instance, self._rig
        self._instance = None
        rig.loop.kill(self._scope)
        rig.network.crash(self.name)
        for broker in instance.brokers.values():
            left.run_now(broker.store.abandon())
        instance.sessions.end_all()

    async def restart(self) -> None:
        """Crash and start."""
        self.crash()
        await self.start()

    async def stop(self) -> None:
        """Stop everything of it in an orderly way."""
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
            ids=SeededIds(streams.of("ids")),
            rng=streams.of("rng"),
            network=self._rig.network.for_node(self.name),
            executor=Inline(),
            log=NullLog(),
            boot_id=BootId(streams.of("boot").randbytes(16)),
            recorder=self.seen,
        )

    async def connect(self, **options: Any) -> Session:  # noqa: ANN401  # those of a session
        """A session of its own, as another program would have it; to be closed by the test."""
        self._sessions += 1
        streams = self._rig.streams.child(f"{self.name}/session {self._sessions}")
        session = await open_session(
            Session,
            self.name,
            BROKER,
            connector=self._connector,
            clock=self._rig.sim_clock,
            ids=SeededIds(streams.of("ids")),
            rng=streams.of("rng"),
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
        return await self._instance.connector(factory)

    # Programs.

    async def declare(self, *needed: Contract | App, **options: Any) -> None:  # noqa: ANN401
        """As `Session.declare`; and the others of the rig learn the contracts and the way here."""
        before = set(self.instance.brokers[BROKER].services)
        await self.session.declare(*needed, **options)
        contracts = [one for one in needed if isinstance(one, Contract)]
        contracts += [found for one in needed if isinstance(one, App) for found in one.contracts]
        for other in self._rig.others(self):
            await other.session.declare(*contracts)
        await self._rig.route_to(self, set(self.instance.brokers[BROKER].services) - before)

    async def run(self, app: App) -> None:
        """Run an app here until the end of the test, as `brokerd worker run` would."""
        await self.declare(app)
        self._apps.append(asyncio.ensure_future(app.run(self.session)))

    # Assertions.

    def assert_once(self, kind: bodies.Kind) -> None:
        """Each value of this type that was sent in the rig was handled here, exactly once."""
        name = kind if isinstance(kind, str) else bodies.type_name(kind)
        sent = sum(one.seen.sent(name) for one in self._rig.instances.values())
        handled = self.seen.received(name)
        twice = [place for place, count in handled.items() if count > 1]
        if sent and len(handled) == sent and not twice:
            return
        told = [f"{name}: {sent} sent, {len(handled)} handled by {self.name}"]
        told += [f"{len(twice)} of them more than once: {', '.join(twice)}"] if twice else []
        for one in self._rig.instances.values():
            told += [f"left at {one.name}: {text}" for text in one.left()]
        raise AssertionError("\n  ".join(told))

    async def assert_settled(self, within: Duration = SETTLE_WITHIN) -> None:
        """Nothing is open here, waits, or is on its way; gives it so much virtual time."""
        clock = self._rig.sim_clock
        deadline = clock.monotonic() + parse_duration(_plain(within)).total_seconds()
        while found := self.left():
            if clock.monotonic() >= deadline:
                lines = "\n  ".join(found)
                raise AssertionError(f"{self.name} is not settled; left are\n  {lines}")
            await clock.sleep_until(clock.monotonic() + 0.5)

    def left(self) -> list[str]:
        """What is not settled, in words."""
        if self._instance is None:
            return [f"{self.name} is down"]
        broker = self._instance.brokers[BROKER]
        return left.waiting(self._instance, broker) + left.open_dialogs(broker)


class Rig:
    """Instances that know each other, on a loop of their own."""

    def __init__(self, directory: Path, *, seed: int = 1) -> None:
        self.seed = seed
        self.streams = Streams(seed)
        self.loop = VirtualLoop()
        self.network = SimNetwork(self.loop, self.streams.of("network"))
        self.sim_clock = SimClock(self.loop, utc_start=UTC_START)
        self.clock = RigClock(self.sim_clock)
        self.instances: dict[str, RigInstance] = {}
        self._directory = directory

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the loop of the rig; an error carries the seed as a note."""
        try:
            return self.loop.run_until_complete(work)
        except BaseException as error:
            error.add_note(f"brokerd seed {self.seed}")
            raise

    async def add(self, *names: str) -> list[RigInstance]:
        """Start instances of these names, with a link between each two."""
        made = [RigInstance(self, name) for name in names]
        for one in made:
            for other in self.instances.values():
                rng = self.streams.of(f"link {one.name} {other.name}")
                one.link = other.link = RigLink(self.network, (one.name, other.name), rng)
            self.instances[one.name] = one
        for one in made:
            await one.start()
        for one in made:
            await self.route_to(one, [one.name])
        return made

    def others(self, but: RigInstance) -> list[RigInstance]:
        """All instances but one."""
        return [one for one in self.instances.values() if one is not but and one.is_started]

    async def route_to(self, one: RigInstance, services: Iterable[str]) -> None:
        """Tell the others the way to services of an instance."""
        routes = [
            {"name": f"to_{name}", "service": name, "address": f"TCP://{one.name}:{PORT}"}
            for name in sorted(services)
        ]
        for other in self.others(one):
            if routes:
                wanted: dict[str, object] = {"broker": {"name": BROKER}, "route": routes}
                await other.session.apply(wanted, ensure=True)

    def settings(self, name: str) -> Settings:
        """The settings of an instance: plain connections, everything else as by default."""
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

    def close(self) -> None:
        """Stop the instances; raise what went wrong where nobody waited for it."""
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
