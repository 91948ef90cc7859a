"""World: one run from its seed to its verdict.

Two phases: with faults while writers write, then healed until all has settled (REL-21). Then the
history is checked against what the stores hold, and nothing may be left over (CHK-9).
Reads:  the plan of the seed.      Calls: nodes, clients, chaos, the checker.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from brokerd.storage.engine import Connection
from brokerd.testing.check import check
from brokerd.testing.evidence import Stored
from brokerd.testing.history import Event, History, HistoryUnusable, Kind
from brokerd.testing.link import Conditions
from brokerd.testing.loop import VirtualLoop
from brokerd.testing.mangler import BoxcarMangler
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams
from brokerd.testing.simulation import objects, workers
from brokerd.testing.simulation.chaos import Chaos
from brokerd.testing.simulation.clients import Client, Program, Writer, ender, sweep, worker
from brokerd.testing.simulation.nodes import Node, Surround
from brokerd.testing.simulation.plan import Night, Plan
from brokerd.testing.simulation.recording import Recording, read_label
from brokerd.testing.simulation.tap import Tap
from brokerd.testing.trace import Trace

WILD: Final = 60.0
"""Virtual seconds with faults, at most."""
SETTLE: Final = 300.0
"""Virtual seconds within which all committed work settles once everything is up (REL-21)."""
KEPT_STEPS: Final = 100_000
"""Steps of the trace that are kept."""
CALM: Final = Conditions()
_SIZES: Final = (0, 0, 0, 60, 300, 1_500, 5_000)
_PAGE: Final = 10_000


class Result(msgspec.Struct, frozen=True):
    """What one seed came to."""

    seed: int
    problems: tuple[str, ...]
    digest: str
    seconds: float
    counts: dict[str, int]
    trace: tuple[str, ...] = ()
    artefacts: str = ""
    """The folder with what a failed run left."""


class World:
    """The run of one seed; it is the crew's world as well (`workers.Crew`)."""

    def __init__(
        self,
        loop: VirtualLoop,
        streams: Streams,
        plan: Plan,
        directory: Path,
        kept: Mapping[Path, Connection],
    ) -> None:
        """`kept`: connections to the stores in the directory that are open already."""
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self.trace = Trace(loop.time, keep=KEPT_STEPS)
        self.history = History(loop.time)
        self.network = SimNetwork(
            loop, streams.of("network"), conditions=plan.conditions, trace=self.trace
        )
        self.recording = Recording(self.history, self.trace, self.counts)
        self._shared = Surround(
            loop=loop,
            streams=streams,
            plan=plan,
            network=self.network,
            trace=self.trace,
            counts=self.counts,
            recording=self.recording,
        )
        self.rng: Random = streams.of("crew")
        self.problems: list[str] = []
        self.loose: set[str] = set()
        """Dialogs that somebody ended before everything of them was read."""
        self._uids: Counter[str] = Counter()
        self._readers: dict[tuple[str, str], int] = {}
        self.nodes = {
            name: Node(name, directory, self._shared, enter=self._enter, died=self._died, kept=kept)
            for name in plan.instances
        }
        self.clock = self.nodes["east"].clock
        self._writer = Writer(self._shared, self.loose)
        self.writers = [
            self._client(f"writer{number}", "east", self._writer.program)
            for number in range(plan.writers)
        ]
        self.workers = [] if plan.activated else self._workers()
        self._chaos = Chaos(self._shared, self.nodes, self.writers + self.workers)
        self._manglers = self._mangle(streams)

    # What workers ask (workers.Crew).

    def fresh_uid(self, writer: str) -> str:
        """The next number of that writer."""
        self._uids[writer] += 1
        return f"{writer}-{self._uids[writer]}"

    @property
    def wait(self) -> float:
        """By the plan; not for long when the run is to come to its end."""
        return 5.0 if self._writer.hurry else self.plan.wait

    def body_size(self) -> int:
        """Mostly small, sometimes several fragments."""
        return self.rng.choice(_SIZES)

    def rolls_back(self) -> bool:
        """By the plan."""
        wanted = not self._writer.hurry and self.rng.random() < self.plan.rollbacks
        self.counts["rolled back on purpose"] += wanted
        return wanted

    def is_loose(self, dialog: str) -> bool:
        """Also where the dialog that caused it is."""
        return dialog.removesuffix("+") in self.loose

    def problem(self, text: str) -> None:
        """Keep it for the verdict."""
        self.problems.append(text)

    # Making.

    def _enter(self) -> None:
        workers.CREW.set(self)

    def _died(self, node: Node) -> None:
        self._chaos.died(node)

    def _client(self, name: str, server: str, program: Program) -> Client:
        return Client(name, self.nodes[server], program, self._shared, self._enter)

    def _workers(self) -> list[Client]:
        instances = self.plan.instances
        return [
            self._client(f"{service}{number}", objects.home(service, instances), worker(service))
            for service in ("warehouse", "depot", "audit")
            for number in range(2 if service == "warehouse" else 1)
        ]

    def _mangle(self, streams: Streams) -> list[BoxcarMangler]:
        made = []
        for a in self.plan.instances:
            for b in self.plan.instances:
                if a != b:
                    mangler = BoxcarMangler(
                        streams.of(f"mangler {a} {b}"),
                        drop=self.plan.drop,
                        duplicate=self.plan.duplicate,
                        reorder=self.plan.reorder,
                    )
                    tap = Tap(
                        a,
                        mangler,
                        store=self.nodes[a].committed,
                        history=self.history,
                        counts=self.counts,
                    )
                    self.network.mangle(a, b, tap)
                    made.append(mangler)
        return made

    # Running.

    async def run(self) -> None:
        """Both phases; what is wrong stands in `problems`."""
        for node in self.nodes.values():
            await node.start()
        for client in self.writers + self.workers:
            client.start()
        chaos = self._shared.loop.create_task(self._chaos.run())
        for night in self.plan.nights:
            await self._until(self._writers_done, self.rng.uniform(2.0, 20.0))
            await self._sleep(night)
        await self._until(self._writers_done, WILD)
        await self._heal()
        await chaos
        await self._chaos.mended()
        await self._drain()
        await self._finish()

    async def _sleep(self, night: Night) -> None:
        """Writers begin nothing until it is over."""
        morning = self._writer.morning = asyncio.Event()
        await self._chaos.night(night)
        self._writer.morning = None
        morning.set()

    async def _heal(self) -> None:
        self._chaos.over = True
        self._writer.hurry = True
        self.trace.note("world", "healed")
        for mangler in self._manglers:
            mangler.calm()
        for a in self.nodes:
            for b in self.nodes:
                if a != b:
                    self.network.shape(a, b, CALM)
        self.network.heal()
        for node in self.nodes.values():
            node.calm = True
            node.store_error_due = False
        await self._chaos.mended()

    async def _drain(self) -> None:
        """Everything is up: all committed work settles (REL-21)."""
        began = self._shared.loop.time()
        if not await self._until(self._writers_done, SETTLE):
            self.problem("REL-21: the writers were not done in time")
        sweeper = self._client("sweeper", "east", sweep)
        sweeper.start()
        if not await self._until(self._is_drained, SETTLE):
            self.problem(f"REL-21: not settled: {self._what_is_left()}")
        for name in self.nodes:
            handles = list(self.recording.begun)
            one = self._client(f"ender-{name}", name, ender(handles))
            one.start()
            if not await self._until(partial(_is_done, one), SETTLE):
                self.problem("REL-21: the left dialogs could not be ended in time")
        if not await self._until(self._is_over, SETTLE):
            self._note_left()
        self.counts["settled after ms"] += round((self._shared.loop.time() - began) * 1000)

    async def _finish(self) -> None:
        """Judge, then stop everything in an orderly way."""
        self._account()
        for node in self.nodes.values():
            for text in node.imbalance():
                self._left(node, text)
        stores = [await self._stored(node) for node in self.nodes.values()]
        self._judge(stores)
        self._collect_counts()
        for client in self.writers + self.workers:
            client.crash()
        for node in self.nodes.values():
            if node.up:
                await asyncio.wait_for(node.stop(), SETTLE)
        for client in self.writers + self.workers:
            self.problems += client.problems
        for node in self.nodes.values():
            self.problems += node.problems + node.log.errors
        self.problems += self.recording.problems

    async def _until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition, looking twice a second; whether it came true in time."""
        deadline = self._shared.loop.time() + seconds
        while not reached():
            self._sample()
            if self._shared.loop.time() > deadline:
                return False
            await self._shared.rest(0.5)
        return True

    def _note_left(self) -> None:
        for node in self.nodes.values():
            for text in node.left():
                self._left(node, text)

    def _left(self, node: Node, reason: str) -> None:
        self.history.add("left", Kind.INFO, node=node.name, reason=reason)

    def _sample(self) -> None:
        """How many readers run where, if that has changed (CHK-11)."""
        for node in self.nodes.values():
            for queue, running, most in node.readers():
                if self._readers.get((node.name, queue)) != running:
                    self._readers[node.name, queue] = running
                    self.history.add(
                        "readers", Kind.INFO, node=node.name, queue=queue, seq=running, stored=most
                    )

    # Conditions.

    def _writers_done(self) -> bool:
        return not any(writer.running for writer in self.writers)

    def _is_drained(self) -> bool:
        return all(node.is_drained() for node in self.nodes.values())

    def _is_over(self) -> bool:
        return self._is_drained() and all(node.is_over() for node in self.nodes.values())

    def _what_is_left(self) -> str:
        return "; ".join(text for node in self.nodes.values() for text in node.left())

    # Judging.

    def _account(self) -> None:
        """Messages of a dialog that was ended early need not have been read."""
        done = committed(self.history.events)
        for event in self.history.events:
            loose = event.dialog is not None and self.is_loose(event.dialog)
            if event.op == "send" and loose and (event.client, event.tx) in done:
                self.history.add("account", Kind.OK, uid=event.uid, reason="ended early")

    async def _stored(self, node: Node) -> Stored:
        store = node.broker.store
        queued = [
            row
            for state in node.broker.queues.values()
            for row in (await store.browse(state.queue.key, _PAGE, _PAGE * _PAGE)).rows
        ]
        waiting = (await store.transmission_queue(_PAGE, _PAGE * _PAGE)).rows
        if waiting:
            self._left(node, f"{len(waiting)} messages are in the transmission queue")
        return Stored(
            store=node.name,
            queued=tuple(label.uid for row in queued if (label := read_label(row.body))),
            transmission=tuple(label.uid for row in waiting if (label := read_label(row.body))),
        )

    def _judge(self, stores: list[Stored]) -> None:
        try:
            self.problems += [found.show() for found in check(self.history, stores)]
        except HistoryUnusable as error:
            self.problem(f"the history is unusable: {error}")

    def _collect_counts(self) -> None:
        for mangler in self._manglers:
            for name, count in mangler.counts.items():
                self.counts[f"boxcars {name}"] += count
        for node in self.nodes.values():
            self.counts["boots"] += node.boots


def _is_done(client: Client) -> bool:
    return not client.running


def committed(events: tuple[Event, ...]) -> set[tuple[str, int | None]]:
    """Transactions that committed: they were told so, or what others saw says so.

    Whose client died is believed to have committed if a message of it arrived, or if nobody else
    took anything of what it received.
    """
    taken: dict[str, tuple[str, int | None]] = {}
    for event in events:
        if event.op == "receive" and event.uid is not None:
            taken[event.uid] = (event.client, event.tx)  # the latest
    failed = {
        (event.client, event.tx)
        for event in events
        if event.op == "rollback" or (event.op == "commit" and event.kind is Kind.FAIL)
    }
    done = {
        (event.client, event.tx)
        for event in events
        if event.op == "commit" and event.kind is Kind.OK
    }
    asked = {(event.client, event.tx) for event in events if event.op == "commit"}
    seen = {
        (event.client, event.tx) for event in events if event.op == "send" and event.uid in taken
    }
    handed_out_again = {
        (event.client, event.tx)
        for event in events
        if event.op == "receive" and event.uid is not None
        if taken[event.uid] != (event.client, event.tx)
    }
    kept = set(taken.values()) - handed_out_again
    return done | ((seen | kept) & (asked - failed))
