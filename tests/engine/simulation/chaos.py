"""Chaos: injects faults at drawn moments, and repairs them.

Reads:  the plan.      Calls: nodes, clients and the network.
Never:  injects a fault once it is over; `World` repairs the network faults left then.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Final

from brokerd.client.session import Session
from brokerd.testing.rng import chance
from tests.engine.simulation import objects
from tests.engine.simulation.administration import Work, administer, altering
from tests.engine.simulation.clients import Client
from tests.engine.simulation.features import MIRRORED, PARTNER
from tests.engine.simulation.nodes import Node
from tests.engine.simulation.plan import Night
from tests.engine.simulation.surround import Surround

Fault = Callable[[], Coroutine[object, object, None]]
MOST_STOPS: Final = 32
"""Most kills and restarts of instances in one run: many seeds with a few each find more."""
STOPS: Final = ("crash", "restart", "failover")
AT_NIGHT: Final = 20.0
"""Factor by which the time between two faults, or two changes of routes, is longer at night."""
MOST_FAILURES: Final = 10
"""Problems of an instance after which it stays off: it would only fail again."""


class Chaos:
    """The faults of one run."""

    def __init__(
        self,
        shared: Surround,
        nodes: Mapping[str, Node],
        clients: list[Client],
        holder: Callable[[str], Node],
    ) -> None:
        """`holder`: returns the node that has the broker of an instance open now."""
        self._shared = shared
        self._holder = holder
        self._nodes = nodes
        self._clients = clients
        self._rng = shared.streams.stream("chaos")
        self._mending: set[asyncio.Task[None]] = set()
        self.over = False
        self._stops = 0
        self._dark: bool | None = None
        """None by day; at night whether everything is off."""
        self._faults: dict[str, Fault] = {
            "crash": self._crash,
            "restart": self._restart,
            "failover": self._failover,
            "cut": self._cut,
            "one_way_cut": self._one_way_cut,
            "reset_peer": self._reset_peer,
            "stall": self._stall,
            "half_open": self._half_open,
            "client_crash": self._client_crash,
            "client_reset": self._client_reset,
            "clock_jump": self._clock_jump,
            "queue_off": self._queue_off,
            "store_error": self._store_error,
        }

    async def run(self) -> None:
        """Inject one fault after the other until it is over."""
        names = self._shared.plan.faults
        while names and not self.over:
            slow = AT_NIGHT if self._dark is not None else 1.0
            await self._rest(slow * self._rng.expovariate(1 / self._shared.plan.mean_wait))
            if not self._is_idle():
                name = self._rng.choice(names)
                if name in STOPS and self._stops >= MOST_STOPS:
                    continue
                self._stops += name in STOPS
                self._shared.counts[f"fault: {name}"] += 1
                await self._faults[name]()

    def _is_idle(self) -> bool:
        """Return whether no fault may be injected: it is over, or everything is off."""
        return self.over or bool(self._dark)

    def died(self, node: Node) -> None:
        """Start a dead node again after a while."""
        self._mend(self._start_again(node))

    async def mended(self) -> None:
        """Return when all repairs are done: what was stopped runs again."""
        while self._mending:
            await asyncio.wait(self._mending)

    async def night(self, night: Night) -> None:
        """Let a night pass: little happens, and perhaps something is off for all of it."""
        self._shared.trace.note("world", f"night, {night.kind}")
        self._shared.counts["nights"] += 1
        self._shared.counts[f"night: {night.kind}"] += 1
        self._dark = night.kind == "dark"
        clients = [one for one in self._clients if self._dark and one.running]
        wanted = list(self._nodes.values())
        if night.kind == "down":
            wanted = [self._rng.choice(wanted)]
        off = [one for one in wanted if night.kind in ("down", "dark") and one.up]
        for client in clients:
            client.crash()
        for node in off:
            node.crash("power off", late=False)
        ends = self._two_nodes()
        if night.kind == "cut":
            self._shared.network.cut(*ends)
        await self._rest(night.seconds)
        if night.kind == "cut":
            self._shared.network.heal(*ends)
        for node in off:
            self.died(node)
        for client in clients:
            self._mend(self._client_again(client))
        self._dark = None

    # Instances.

    async def _crash(self) -> None:
        node = self._a_node()
        if node is not None:
            node.crash("kill -9", late=chance(self._rng, 0.5))
            self.died(node)

    async def _restart(self) -> None:
        node = self._a_node()
        if node is not None:
            self._mend(self._stop_and_start(node))

    async def _failover(self) -> None:
        """Kill or stop the principal for long enough that its mirror notices."""
        node = self._holder(MIRRORED)
        if not node.holds:
            return
        if chance(self._rng, 0.7):
            node.crash("kill -9", late=chance(self._rng, 0.5))
            self._mend(self._start_again(node, self._rng.uniform(3.0, 30.0)))
        else:
            self._mend(self._stop_and_start(node, self._rng.uniform(3.0, 30.0)))

    async def _stop_and_start(self, node: Node, wait: float | None = None) -> None:
        if await node.stop():
            await self._start_again(node, wait)

    async def _start_again(self, node: Node, wait: float | None = None) -> None:
        if wait is None:
            wait = self._rng.choice((0.05, 1.0, 10.0)) * self._rng.random()
        await self._rest(0.05 if self.over else wait)
        while self._dark:  # everything stays off, also a node that was off before the night
            await self._rest(5.0)
        if len(node.problems) < MOST_FAILURES:
            await node.start()

    async def _store_error(self) -> None:
        node = self._a_node()
        if node is not None:
            node.store_error_due = True

    async def _clock_jump(self) -> None:
        node = self._rng.choice(list(self._nodes.values()))
        if not self._shared.clocks_leap:
            node.clock.jump(timedelta(seconds=self._rng.choice((-90.0, -1.0, 0.5, 60.0))))
            return
        by = timedelta(days=self._rng.choice((-3650, -3, 3, 3650)))
        node.clock.jump(by)
        self._shared.counts["clocks that leap"] += 1
        self._mend(self._set_right(node, by))

    async def _set_right(self, node: Node, by: timedelta) -> None:
        """Undo a leap of a clock after at most two minutes.

        Each leap is undone by itself, so that several at a time are undone, too.
        """
        await self._rest(self._rng.uniform(1.0, 120.0))
        node.clock.jump(-by)

    async def _queue_off(self) -> None:
        node = self._a_node()
        if node is not None and node.name != PARTNER:
            self._mend(self._switch(node))

    async def _switch(self, node: Node) -> None:
        """Disable a queue and enable it again.

        It is done by a declaration of all objects, or, in runs that make objects which the
        declaration lacks and would drop, by altering the queue alone.
        """
        plan, rng = self._shared.plan, self._rng
        services = objects.services(node.name, plan.instances)
        alone = plan.features.changes_objects
        if alone and not services:
            return
        queue = f"{rng.choice(services or ['no'])}_q"
        for off, wait in ((queue, rng.uniform(0.5, 15.0)), ("", 0.0)):
            work = self._declaring(node, off)
            if alone:
                work = altering("queue", queue, status="off" if off else "on")
            while not await administer(self._holder(node.name), work):
                await self._rest(1.0 if self._dark is None else 10 * AT_NIGHT)
            await self._rest(0.0 if self.over else wait)

    def _declaring(self, node: Node, off: str) -> Work:
        declared = objects.declaration(
            node.name, self._shared.plan, off=off, broker_id=self._shared.broker_id
        )

        async def work(session: Session) -> None:
            await session.apply(declared)

        return work

    # The network between them.

    async def _cut(self) -> None:
        self._cut_off(*self._two_nodes(), both=True)

    async def _one_way_cut(self) -> None:
        self._cut_off(*self._two_nodes(), both=False)

    def _cut_off(self, a: str, b: str, *, both: bool) -> None:
        self._shared.network.cut(a, b, both=both)
        self._mend(self._heal(a, b))

    async def _heal(self, a: str, b: str) -> None:
        await self._rest(self._rng.uniform(0.5, 25.0))
        self._shared.network.heal(a, b)

    async def _reset_peer(self) -> None:
        self._shared.network.reset(*self._two_nodes())

    async def _stall(self) -> None:
        self._shared.network.stall(*self._two_nodes(), self._rng.uniform(0.1, 8.0))

    async def _half_open(self) -> None:
        self._shared.network.half_open(*self._two_nodes())

    # Clients.

    async def _client_crash(self) -> None:
        client = self._rng.choice(self._clients)
        if client.running:
            client.crash()
            self._mend(self._client_again(client))

    async def _client_again(self, client: Client) -> None:
        await self._rest(self._rng.uniform(0.05, 5.0))
        if not (self.over and client.name.startswith("writer")):
            client.start()

    async def _client_reset(self) -> None:
        client = self._rng.choice(self._clients)
        self._shared.network.reset(client.name, client.server)

    # Helpers.

    def _a_node(self) -> Node | None:
        node = self._rng.choice(list(self._nodes.values()))
        return node if node.up else None

    def _two_nodes(self) -> tuple[str, str]:
        a, b = self._rng.sample(list(self._nodes), 2)
        return a, b

    def _mend(self, work: Coroutine[object, object, None]) -> None:
        task = self._shared.loop.create_task(work, context=self._shared.context)
        self._mending.add(task)
        task.add_done_callback(self._mending.discard, context=self._shared.context)

    async def _rest(self, seconds: float) -> None:
        await self._shared.rest(seconds)
