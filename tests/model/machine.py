"""The machine: random verbs of three clients, done to the engine and to the model (MODEL tier).

Each rule draws small numbers and turns them into one verb on something that is there, so that most
verbs mean something and a failing program shrinks to few lines.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.model import administering
from tests.model.choosing import CLIENTS, Choosing, Made
from tests.model.driver import APART
from tests.model.objects import PAIRS
from tests.model.reference.model import Verb
from tests.model.reference.state import Endpoint, Received

FEW = st.integers(0, 7)
MANY = st.integers(0, 63)
CLIENT = st.integers(0, 2)
WAIT = st.sampled_from([None, None, 0.0, 2.0, 9.0])

Rule = Callable[..., None]


def step(act: Rule) -> Rule:
    """If the step fails, the error shows the whole program."""

    @wraps(act)
    def told(machine: "Machine", **given: Any) -> None:
        try:
            act(machine, **given)
        except BaseException as error:
            if hasattr(machine, "driver"):
                error.add_note("\n".join(["The program:", *machine.driver.program]))
            raise

    return told


class Machine(Choosing, RuleBasedStateMachine):
    """One engine, one model, three clients."""

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()

    # Rules: dialogs.

    @initialize(first=st.lists(st.tuples(FEW, FEW), min_size=1, max_size=4), small=st.booleans())
    @step
    def some_dialogs(self, first: list[tuple[int, int]], small: bool) -> None:
        """Something to begin with: dialogs, some in one group, with messages on both sides."""
        self.start(small=small)
        for pair, many in first:
            begin = self._begin_dialog("ann", pair, many // 4, None)
            handle = begin[0][1]["handle"]
            kind = 3 if PAIRS[pair % len(PAIRS)].contract is None else 0
            made = [begin]
            made += [self._send("ann", [handle], kind, begun=pair) for _ in range(many % 3)]
            self._transact("ann", made)
        for endpoint in [one for one in self.model.endpoints if not one.is_initiator]:
            if endpoint.handle is not None and endpoint.state == "CO":
                self._transact("ann", [self._send("ann", [endpoint.handle], 3)])

    def _transact(self, client: str, made: list[Made]) -> None:
        text = "; ".join(one[2] for one in made)
        self.driver.transact(client, text, [one[0] for one in made], [one[1] for one in made])

    @precondition(lambda self: self.idle())
    @rule(client=CLIENT, pair=FEW, relation=FEW, lifetime=st.sampled_from([None, None, 40, 90, 0]))
    @step
    def begin_dialog(self, client: int, pair: int, relation: int, lifetime: int | None) -> None:
        name = self._client(client)
        self._ask(name, self._begin_dialog(name, pair, relation, lifetime))

    @precondition(lambda self: self.idle())
    @rule(client=CLIENT, handle=MANY, kind=FEW)
    @step
    def send(self, client: int, handle: int, kind: int) -> None:
        name = self._client(client)
        self._ask(name, self._send(name, [self._handle(name, handle)], kind))

    @precondition(lambda self: self.idle())
    @rule(client=CLIENT, handles=st.lists(MANY, min_size=2, max_size=3), kind=st.integers(0, 3))
    @step
    def send_to_many(self, client: int, handles: list[int], kind: int) -> None:
        name = self._client(client)
        self._ask(name, self._send(name, [self._handle(name, one) for one in handles], kind))

    @precondition(lambda self: self.idle())
    @rule(client=CLIENT, handle=MANY, error=st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3]))
    @step
    def end(self, client: int, handle: int, error: int) -> None:
        name = self._client(client)
        self._ask(name, self._end(self._handle(name, handle), error))

    @precondition(lambda self: self.idle())
    @rule(
        client=CLIENT,
        sends=st.lists(st.tuples(MANY, FEW), max_size=3),
        pair=FEW,
        ends=st.integers(0, 3),
    )
    @step
    def transact(self, client: int, sends: list[tuple[int, int]], pair: int, ends: int) -> None:
        """A whole transaction in one request, beside the one the client may have open."""
        name = self._client(client)
        if name in self.driver.txs:
            self.driver.commit(name)
        made = []
        if ends == 1 or not sends:
            made.append(self._begin_dialog(name, pair, 0, None))
            made.append(self._send(name, [made[0][0][1]["handle"]], 0))
        made += [self._send(name, [self._handle(name, one)], kind) for one, kind in sends]
        if ends == 2:
            made.append(self._end(self._handle(name, pair), 0))
        self._transact(name, made)

    # Rules: receiving.

    @precondition(lambda self: self.idle())
    @rule(
        client=CLIENT,
        queue=FEW,
        limit=st.sampled_from([None, None, 1, 2, 0]),
        selector=st.sampled_from([0, 0, 0, 1, 2]),
        number=MANY,
        wait=WAIT,
    )
    @step
    def receive(
        self, *, client: int, queue: int, limit: int | None, selector: int, number: int,
        wait: float | None,
    ) -> None:  # fmt: skip
        name = self._client(client)
        verb, args, text = self._receive_args(name, queue, limit, selector, number)
        wait = self.driver.apart(wait) if wait else wait
        wire = ("receive", *args, None if wait is None else round(wait * 1000))
        self.driver.ask(
            name, text if wait is None else f"{text[:-1]}, wait={wait})", verb, wire, wait
        )

    @precondition(lambda self: self.idle())
    @rule(client=CLIENT, queue=FEW, limit=st.sampled_from([None, 1, 2]))
    @step
    def receive_alone(self, client: int, queue: int, limit: int | None) -> None:
        name = self._client(client)
        if name in self.driver.txs:
            self.driver.commit(name)
        verb, args, text = self._receive_args(name, queue, limit, 0, 0)
        self.driver.receive_alone(name, f"{text}, alone", verb, (*args, None))

    @precondition(lambda self: self.idle())
    @rule(
        client=CLIENT,
        handle=MANY,
        seconds=st.sampled_from([2, 5, 20, 35, 60, None]),
        timer=st.sampled_from([None, None, "tea"]),
    )
    @step
    def set_timer(self, client: int, handle: int, seconds: int | None, timer: str | None) -> None:
        name = self._client(client)
        which = self._handle(name, handle)
        after = None if seconds is None else self.driver.apart(seconds)
        verb: Verb = ("set_timer", {"handle": which, "after": after, "name": timer})
        wire = ("set_timer", which, None if after is None else round(after * 1000), timer)
        text = f"set_timer({self.driver.names.of(which)}, {after}, {timer!r})"
        self.driver.ask(name, text, verb, wire)

    # Rules: the state of a group.

    @precondition(lambda self: self._with_locks())
    @rule(number=MANY, writes=st.booleans())
    @step
    def group_state(self, number: int, writes: bool) -> None:
        client = self._with_locks()[number % len(self._with_locks())]
        groups = [one for one in self.driver.txs[client].locked if one.id is not None]
        group = groups[number % len(groups)].id
        assert group is not None
        if writes:
            state = None if number % 5 == 0 else b"state %d" % next(self._bodies)
            verb: Verb = ("set_state", {"group_id": group, "state": state})
            text = f"set_state({self.driver.names.of(group)}, {state!r})"
            self.driver.ask(client, text, verb, ("set_state", group, state))
        else:
            text = f"get_state({self.driver.names.of(group)})"
            verb = ("get_state", {"group_id": group, "take_lock": False})
            self.driver.ask(client, text, verb, ("get_state", group, False))

    @precondition(lambda self: self.idle())
    @rule(client=CLIENT, number=MANY)
    @step
    def look_at_group(self, client: int, number: int) -> None:
        name = self._client(client)
        group = self._group(name, number)
        verb: Verb = ("get_state", {"group_id": group, "take_lock": True})
        text = f"get_state({self.driver.names.of(group)}, take_lock)"
        self.driver.ask(name, text, verb, ("get_state", group, True))

    @precondition(lambda self: self.idle())
    @rule(client=CLIENT, queue=FEW, wait=WAIT)
    @step
    def get_group(self, client: int, queue: int, wait: float | None) -> None:
        name = self._client(client)
        where = self._queue(queue)
        wait = self.driver.apart(wait) if wait else wait
        wire = ("get_group", where, None if wait is None else round(wait * 1000))
        text = f"get_group({where}, wait={wait})"
        self.driver.ask(name, text, ("get_group", {"queue": where}), wire, wait)

    @precondition(lambda self: self.idle())
    @rule(client=CLIENT, handle=MANY, number=MANY)
    @step
    def move(self, client: int, handle: int, number: int) -> None:
        name = self._client(client)
        which, group = self._handle(name, handle), self._group(name, number)
        text = f"move({self.driver.names.of(which)}, {self.driver.names.of(group)})"
        verb: Verb = ("move", {"handle": which, "group_id": group})
        self.driver.ask(name, text, verb, ("move", which, group))

    @precondition(lambda self: self._with_tx())
    @rule(client=CLIENT)
    @step
    def savepoint(self, client: int) -> None:
        name = self._with_tx()[client % len(self._with_tx())]
        number = next(self._bodies)
        verb: Verb = ("savepoint", {"number": number})
        self.driver.ask(name, f"savepoint {number}", verb, ("savepoint", number))

    @precondition(lambda self: self._with_savepoints())
    @rule(client=CLIENT, number=FEW)
    @step
    def roll_back_to(self, client: int, number: int) -> None:
        name = self._with_savepoints()[client % len(self._with_savepoints())]
        points = list(self.driver.txs[name].savepoints)
        self.driver.roll_back_to(name, points[number % len(points)])

    def _with_savepoints(self) -> list[str]:
        """Clients whose transaction has one; a request of it may wait."""
        txs = self.driver.txs
        return [one for one in CLIENTS if one in txs and txs[one].savepoints]

    @precondition(lambda self: self.driver.asked)
    @rule(number=FEW)
    @step
    def cancel(self, number: int) -> None:
        waiting = list(self.driver.asked.values())
        name = waiting[number % len(waiting)].client
        if not self.driver.asked[name].request.commits:
            self.driver.cancel(name)

    def _with_locks(self) -> list[str]:
        """Idle clients whose transaction has locked a group that they can name."""
        txs = self.driver.txs
        return [
            one
            for one in self.idle()
            if one in txs and any(each.id is not None for each in txs[one].locked)
        ]

    # Rules: ends of transactions.

    @precondition(lambda self: self._with_tx())
    @rule(client=CLIENT, commits=st.sampled_from([True, True, True, False]))
    @step
    def finish(self, client: int, commits: bool) -> None:
        name = self._with_tx()[client % len(self._with_tx())]
        if commits:
            self.driver.commit(name)
        else:
            self.driver.roll_back(name)

    def _with_tx(self) -> list[str]:
        return [one for one in self.idle() if one in self.driver.txs]

    @precondition(lambda self: self._with_reads())
    @rule(client=CLIENT, other=FEW, crashes=st.booleans())
    @step
    def commit_on_a_held_disk(self, client: int, other: int, crashes: bool) -> None:
        """Until a commit is durable its locks stay, and nobody is told (GRP-4, REL-1)."""
        name = self._with_reads()[client % len(self._with_reads())]
        others = [one for one in self.idle() if one != name]
        groups = [one.id for one in self.driver.txs[name].locked]
        self.driver.commit_held(
            name,
            (lambda: self._probe(others[other % len(others)], groups[0], other))
            if others
            else None,
            crashes=crashes,
        )

    def _probe(self, client: str, group: bytes | None, queue: int) -> None:
        if group is not None and queue % 2:
            verb: Verb = ("get_state", {"group_id": group, "take_lock": True})
            text = f"get_state({self.driver.names.of(group)}, take_lock)"
            self.driver.ask(client, text, verb, ("get_state", group, True))
            return
        verb, args, text = self._receive_args(client, queue, None, 0, 0)
        self.driver.probe(client, text, verb, ("receive", *args, None))

    def _with_reads(self) -> list[str]:
        """Idle clients whose transaction has received: it keeps its locks until it is durable."""
        return [
            one
            for one in self._with_tx()
            if any(isinstance(each, Received) for each in self.driver.txs[one].done)
        ]

    # Rules: administration.

    @rule(queue=FEW, on=st.booleans())
    @step
    def switch_retention(self, queue: int, on: bool) -> None:
        queues = list(self.model.retains)
        administering.switch_retention(self.driver, queues[queue % len(queues)], on=on)

    @precondition(lambda self: self.idle())
    @rule(client=CLIENT, queue=FEW, really=st.integers(0, 3))
    @step
    def blink(self, client: int, queue: int, really: int) -> None:
        where = self._queue(queue)
        name = self._client(client)

        def look() -> None:
            if name not in self.driver.asked:
                args: dict[str, Any] = {"queue": where}
                self.driver.ask(
                    name, f"get_group({where})", ("get_group", args), ("get_group", where)
                )

        if not really and not self._may_act():
            administering.blink(self.driver, where, look)

    def _may_act(self) -> bool:
        """Whether something may be sent to a queue by itself, or soon: the model does not know of
        messages that wait for a queue to be switched on (SND-18)."""
        blocked = any(one.blocked_by is not None for one in self.model.waiting)
        return blocked or any(at < self.model.now + 8 * APART for at in self.model.deadlines())

    @precondition(lambda self: self._unlocked())
    @rule(number=MANY, really=st.integers(0, 3))
    @step
    def clean_up(self, number: int, really: int) -> None:
        found = self._unlocked()
        if not really:
            administering.clean_up(self.driver, found[number % len(found)])

    def _unlocked(self) -> list[Endpoint]:
        """Endpoints of groups that nobody has locked, nor waits for."""
        awaited = [one.blocked_by for one in self.model.waiting]
        return [
            one
            for one in self.model.endpoints
            if one.handle is not None and one.group.holder is None and one.group not in awaited
        ]

    # Rules: time, and what goes wrong.

    @precondition(lambda self: self.driver.asked)
    @rule(number=FEW)
    @step
    def give_up(self, number: int) -> None:
        """A client that waits in a transaction rolls it back (CLP-113)."""
        waiting = [one for one in self.driver.asked.values() if not one.request.commits]
        if waiting:
            self.driver.roll_back(waiting[number % len(waiting)].client)

    @rule(client=CLIENT, really=st.integers(0, 3))
    @step
    def lose_connection(self, client: int, really: int) -> None:
        name = CLIENTS[client]
        asked = self.driver.asked.get(name)
        if really:
            return
        if asked is None or not asked.request.commits:
            self.driver.drop(name)

    @rule(seconds=st.sampled_from([1, 3, 3, 10, 31]))
    @step
    def pass_time(self, seconds: int) -> None:
        self.driver.passes(self._bearable(seconds))

    @rule(seconds=st.sampled_from([0.1, 5, 30]), really=st.integers(0, 3))
    @step
    def crash(self, seconds: float, really: int) -> None:
        if not really:
            self.driver.crash(seconds)

    def _bearable(self, seconds: float) -> float:
        """Not beyond the lifetime of a dialog that is not committed: nobody says what then."""
        ends = [one.dialog.expires_at for tx in self.model.open for one in tx.begun]
        return max(0.0, min([seconds, *(at - self.model.now - 6 * APART for at in ends)]))
