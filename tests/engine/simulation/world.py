"""World: one run from its seed to its verdict.

A run has two phases: first faults happen while writers write, then everything is healed until it
has settled (REL-21). Afterwards the history is checked against the stores, and nothing may be left
over (CHK-9).
Reads:  the plan of the seed.      Calls: nodes, clients, chaos, routes, verdict, the checker.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from brokerd.ids import parse
from brokerd.storage.connections import Connection
from brokerd.testing.check import check
from brokerd.testing.evidence import Stored
from brokerd.testing.history import History, HistoryUnusable, Kind
from brokerd.testing.link import Conditions
from brokerd.testing.loop import VirtualLoop
from brokerd.testing.mangler import BoxcarMangler
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams, chance
from brokerd.testing.trace import Trace
from tests.engine.simulation import objects, verdict, workers
from tests.engine.simulation.chaos import AT_NIGHT, Chaos
from tests.engine.simulation.clients import Client, Program, ender, sweep, worker
from tests.engine.simulation.configuration import NAME, Configuration
from tests.engine.simulation.features import MIRRORED, PARTNER
from tests.engine.simulation.furnishing import furnish
from tests.engine.simulation.nodes import Node
from tests.engine.simulation.plan import Night, Plan
from tests.engine.simulation.recording import OWN, Label, Recording
from tests.engine.simulation.routes import DOUBLED, SECOND, Routes
from tests.engine.simulation.surround import Surround
from tests.engine.simulation.tap import Nonces, Tap
from tests.engine.simulation.wire import Wire
from tests.engine.simulation.writers import Writer

WILD: Final = 60.0
"""Virtual seconds for which writers are waited for while faults happen, after the nights."""
SETTLE: Final = 300.0
"""Virtual seconds within which all committed work must settle once everything runs (REL-21)."""
KEPT_STEPS: Final = 100_000
"""Steps of the trace that are kept."""
CALM: Final = Conditions()
_SIZES: Final = (0, 0, 0, 60, 300, 1_500, 5_000)
_LARGE: Final = 40_000
_MOST_FRAGMENTS: Final = 60


class Result(msgspec.Struct, frozen=True):
    """The result of one seed."""

    seed: int
    problems: tuple[str, ...]
    digest: str
    seconds: float
    counts: dict[str, int]
    trace: tuple[str, ...] = ()
    artefacts: str = ""
    """The folder with the history, stores and trace of a failed run."""
    fast_paths: bool = True


class World:
    """The run of one seed; it also implements `workers.Crew`."""

    def __init__(
        self,
        loop: VirtualLoop,
        streams: Streams,
        plan: Plan,
        directory: Path,
        kept: Mapping[Path, Connection],
    ) -> None:
        """Make the nodes and clients of the plan.

        `kept`: open connections to stores in the directory.
        """
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self.nonces = Nonces()
        self.trace = Trace(loop.time, keep=KEPT_STEPS)
        self.history = History(loop.time)
        self.network = SimNetwork(
            loop, streams.stream("network"), conditions=plan.conditions, trace=self.trace
        )
        self.recording = Recording(self.history, self.trace, self.counts)
        self.recording.passed = self._passed
        self._shared = Surround(
            loop=loop,
            streams=streams,
            plan=plan,
            network=self.network,
            trace=self.trace,
            counts=self.counts,
            recording=self.recording,
        )
        steps = "clock_jump" in plan.faults and not self._shared.clocks_leap
        self.recording.judges_time = not steps
        self.rng: Random = streams.stream("crew")
        self._points = streams.stream("points")
        self.problems: list[str] = []
        self.loose: set[str] = set()
        """Names of dialogs that may end before all their messages are received."""
        self._uids: Counter[str] = Counter()
        self._readers: dict[tuple[str, str], int] = {}
        self.nodes = {
            name: Node(name, directory, self._shared, enter=self._enter, died=self._died, kept=kept)
            for name in plan.instances
        }
        self.clock = self.nodes["east"].clock
        self.recording.was_down_at = self.nodes["east"].was_down_at
        if plan.features.doubled:
            self.recording.second_home = (SECOND, f"{DOUBLED}_q")
        self._writer = Writer(self._shared, self.loose)
        self.writers = [
            self._client(f"writer{number}", "east", self._writer.program)
            for number in range(plan.writers)
        ]
        self.workers = [] if plan.activated else self._workers()
        self._routes = Routes(self._shared, self.holder)
        self._configuration = Configuration(self._shared)
        if plan.features.asking:
            program = self._configuration.program
            self.workers.append(self._client(NAME, plan.features.asking, program))
        self._chaos = Chaos(self._shared, self.nodes, self.writers + self.workers, self.holder)
        self._manglers = self._mangle(streams)

    # Called by workers (workers.Crew).

    def fresh_uid(self, writer: str) -> str:
        """Return the next uid of a writer."""
        self._uids[writer] += 1
        return f"{writer}-{self._uids[writer]}"

    @property
    def wait(self) -> float:
        """Seconds to wait for messages: by the plan, but short in the second phase."""
        return 5.0 if self._writer.hurry else self.plan.wait

    def body_size(self) -> int:
        """Draw a size in bytes: mostly small, sometimes several fragments, by the plan many."""
        if "large" in self.plan.features.work and chance(self.rng, 0.15):
            return min(_LARGE, _MOST_FRAGMENTS * self.plan.fragment_size)
        return self.rng.choice(_SIZES)

    def undoes(self) -> bool:
        """Draw, by the plan, whether to do something below a savepoint and undo it."""
        if "savepoints" not in self.plan.features.work:
            return False
        wanted = not self._writer.hurry and chance(self.rng, 0.3)
        self.counts["undone to a savepoint"] += wanted
        return wanted

    def dialog_of(self, label: Label, conversation_id: bytes) -> str:
        """Return the name of the dialog of a message."""
        return self.recording.dialog_of(label, conversation_id)

    def rolls_back(self) -> bool:
        """Draw, by the plan, whether to roll a transaction back on purpose."""
        wanted = not self._writer.hurry and self.rng.random() < self.plan.rollbacks
        self.counts["rolled back on purpose"] += wanted
        return wanted

    def fails(self, name: str) -> bool:
        """Draw, by the plan, whether a handler fails at this failpoint."""
        return not self._writer.hurry and self._shared.happens(name, self._points)

    def is_loose(self, dialog: str) -> bool:
        """Return whether the dialog, or the one whose orders it carries on, is loose."""
        return dialog.partition(OWN)[0].removesuffix("+") in self.loose

    def problem(self, text: str) -> None:
        """Add a problem to the verdict."""
        self.problems.append(text)

    def holder(self, name: str) -> Node:
        """Return the node that has the broker of this instance open.

        That is the partner if it stands in for a mirrored instance, and otherwise the instance
        itself, whether it has the broker open or not."""
        node, partner = self.nodes[name], self.nodes.get(PARTNER)
        stands_in = partner is not None and name == MIRRORED and not node.holds
        return partner if partner is not None and stands_in and partner.holds else node

    # Making.

    def _enter(self) -> None:
        workers.CREW.set(self)

    def _passed(self, name: str, home: str) -> None:
        if home in self.nodes:
            self.holder(home).passes(name)

    def _died(self, node: Node) -> None:
        self._chaos.died(node)

    def _client(self, name: str, server: str, program: Program) -> Client:
        return Client(name, server, program, self._shared, enter=self._enter, holder=self.holder)

    def _workers(self) -> list[Client]:
        instances = self.plan.instances
        made = [
            self._client(f"{service}{number}", objects.home(service, instances), worker(service))
            for service in ("warehouse", "depot", "audit")
            for number in range(2 if service == "warehouse" else 1)
        ]
        if self.plan.features.doubled:
            made.append(self._client("depot1", SECOND, worker(DOUBLED)))
        return made

    def _mangle(self, streams: Streams) -> list[BoxcarMangler]:
        made = []
        for a in self.plan.instances:
            for b in self.plan.instances:
                if a != b:
                    mangler = BoxcarMangler(
                        streams.stream(f"mangler {a} {b}"),
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
                        nonces=self.nonces,
                    )
                    wire = Wire(self._shared, self.nodes[a], tap, streams.stream(f"wire {a} {b}"))
                    self.network.mangle(a, b, wire if self.plan.features.wire else tap)
                    made.append(mangler)
        return made

    # Running.

    async def run(self) -> None:
        """Run both phases and the checks; problems are added to `problems`."""
        for node in self.nodes.values():
            await node.start()
        await self._set_up()
        for client in self.writers + self.workers:
            client.start()
        chaos = self._shared.loop.create_task(self._break())
        for night in self.plan.nights:
            await self._until(self._writers_done, self.rng.uniform(2.0, 20.0))
            await self._sleep(night)
        await self._until(self._writers_done, WILD)
        await self._heal()
        await chaos
        await self._chaos.mended()
        await self._drain()
        await self._finish()

    async def _set_up(self) -> None:
        """Create the objects that an administrator makes before any writer starts."""
        if PARTNER in self.nodes:
            while not self.holder(MIRRORED).holds:  # it may have died while it started
                await self._shared.rest(1.0)
            self._shared.broker_id = self.holder(MIRRORED).broker.broker_id.hex()
        if self.plan.features.doubled:
            await self._routes.second_home()
        if self.plan.features.asking:
            await self._configuration.set_up(self.holder)
        await furnish(self._shared, self.holder)

    async def _break(self) -> None:
        """Inject faults, and changes of routes, until the first phase is over."""
        routes = self._routes.run() if self.plan.features.routes else self._shared.rest(0.0)
        await asyncio.gather(self._chaos.run(), routes)

    async def _sleep(self, night: Night) -> None:
        """Let a night pass, in which writers begin nothing."""
        morning = self._writer.morning = asyncio.Event()
        self._routes.slow = AT_NIGHT
        await self._chaos.night(night)
        self._routes.slow = 1.0
        self._writer.morning = None
        morning.set()

    async def _heal(self) -> None:
        self._chaos.over = self._routes.over = True
        self._writer.hurry = self._configuration.hurry = True
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
        """Wait until all committed work has settled, now that everything runs (REL-21).

        The order is that of the work: the writers finish; the sweeper reads what they left; then
        each instance ends the dialogs that are still open; then nothing may be left.
        """
        began = self._shared.loop.time()
        if not await self._until(self._writers_done, SETTLE):
            self.problem("REL-21: the writers were not done in time")
        sweeper = self._client("sweeper", "east", sweep)
        sweeper.start()
        if not await self._until(self._is_drained, SETTLE):
            self.problem(f"REL-21: not settled: {self._what_is_left()}")
        for name in [one for one in self.nodes if one != PARTNER]:
            handles = list(self.recording.begun)
            one = self._client(f"ender-{name}", name, ender(handles))
            one.start()
            if not await self._until(partial(_is_done, one), SETTLE):
                self.problem("REL-21: the left dialogs could not be ended in time")
        if not await self._until(self._is_over, SETTLE):
            self._note_left()
        self.counts["settled after ms"] += round((self._shared.loop.time() - began) * 1000)

    async def _finish(self) -> None:
        """Check the run, then stop everything in an orderly way.

        The stores are read while the instances still run: a stop would end their connections.
        """
        verdict.account(self.history, self.is_loose, self.recording.undone)
        for node in self.nodes.values():
            for text in node.imbalance():
                self._left(node.name, text)
        holders = [node for node in self.nodes.values() if node.holds]
        stores = [await verdict.stored(node, self._left) for node in holders]
        self._judge(stores)
        self._judge_warnings()
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
        self.problems += self.recording.problems + self.nonces.problems

    async def _until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Poll a condition twice a second; return whether it became true in time."""
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
                self._left(node.name, text)

    def _left(self, node: str, reason: str) -> None:
        self.history.add("left", Kind.INFO, node=node, reason=reason)

    def _sample(self) -> None:
        """Whether anything waits without a reason (REL-22), and how many readers run where, if that
        has changed (CHK-11)."""
        for node in self.nodes.values():
            for text in node.unexplained():
                self.problem(f"REL-22: {node.name}: {text}")
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
        served = all(self.holder(name).holds for name in self.nodes if name != PARTNER)
        return served and all(node.is_drained() for node in self.nodes.values())

    def _is_over(self) -> bool:
        return self._is_drained() and all(node.is_over() for node in self.nodes.values())

    def _what_is_left(self) -> str:
        return "; ".join(text for node in self.nodes.values() for text in node.left())

    # Checking.

    def _judge(self, stores: list[Stored]) -> None:
        try:
            self.problems += [found.show() for found in check(self.history, stores)]
        except HistoryUnusable as error:
            self.problem(f"the history is unusable: {error}")

    def _judge_warnings(self) -> None:
        """Add a problem for each warning of lost messages in a dialog that lost none.

        The warning is that of PBT-4; after DLG-T31 no message counts as lost.
        """
        warned = [
            (self.recording.name_of_conversation(parse(conversation)), role)
            for node in self.nodes.values()
            for conversation, role in node.log.lost
        ]
        self.counts["warnings of lost messages"] += len(warned)
        self.problems += verdict.false_alarms(self.history.events, warned, self.recording.undone)

    def _collect_counts(self) -> None:
        for mangler in self._manglers:
            for name, count in mangler.counts.items():
                self.counts[f"boxcars {name}"] += count
        for node in self.nodes.values():
            self.counts["boots"] += node.boots


def _is_done(client: Client) -> bool:
    return not client.running
