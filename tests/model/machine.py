"""The machine: random verbs of three clients, done to the engine and to the model (MODEL tier).

Each step takes small numbers and turns them into one verb on something that is there, so that most
verbs mean something and a failing program shrinks to few lines.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model import administering, losing
from tests.model.choosing import CLIENTS, Choosing, Made
from tests.model.dice import BYTES, OneOf, Several, below, play, step, told
from tests.model.driver import APART
from tests.model.objects import PAIRS
from tests.model.reference.model import Verb
from tests.model.reference.state import Endpoint, Received

FEW = below(8)
MANY = below(64)
CLIENT = below(3)
WAIT = OneOf([None, None, 0.0, 2.0, 9.0])
PAIR = st.integers(0, 7)


class Machine(Choosing, RuleBasedStateMachine):
    """One engine, one model, three clients."""

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()

    @rule(dice=st.binary(min_size=BYTES, max_size=BYTES))
    def next(self, dice: bytes) -> None:
        """The dice say what."""
        play(self, dice, self._seldom)

    # To begin with.

    @initialize(
        first=st.lists(st.tuples(PAIR, PAIR), min_size=1, max_size=4),
        small=st.booleans(),
        seldom=st.one_of(st.just(b""), st.binary(min_size=4, max_size=4)),
    )
    @told
    def some_dialogs(self, first: list[tuple[int, int]], small: bool, seldom: bytes) -> None:
        """Something to begin with: dialogs, some in one group, with messages on both sides."""
        self._seldom = int.from_bytes(seldom)
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

    # Dialogs.

    @step(
        lambda self: self.idle(),
        client=CLIENT,
        pair=FEW,
        relation=FEW,
        lifetime=OneOf([None, None, 40, 90, 0]),
    )
    def begin_dialog(self, client: int, pair: int, relation: int, lifetime: int | None) -> None:
        name = self._client(client)
        self._ask(name, self._begin_dialog(name, pair, relation, lifetime))

    @step(lambda self: self.idle(), client=CLIENT, handle=MANY, kind=FEW)
    def send(self, client: int, handle: int, kind: int) -> None:
        name = self._client(client)
        self._ask(name, self._send(name, [self._handle(name, handle)], kind))

    @step(lambda self: self.idle(), client=CLIENT, handles=Several(2, 3, [MANY]), kind=below(4))
    def send_to_many(self, client: int, handles: list[int], kind: int) -> None:
        name = self._client(client)
        self._ask(name, self._send(name, [self._handle(name, one) for one in handles], kind))

    @step(
        lambda self: self.idle(), client=CLIENT, handle=MANY, error=OneOf([0, 0, 0, 0, 1, 1, 2, 3])
    )
    def end(self, client: int, handle: int, error: int) -> None:
        name = self._client(client)
        self._ask(name, self._end([self._handle(name, handle)], error))

    @step(
        lambda self: self.idle(),
        client=CLIENT,
        handles=Several(2, 3, [MANY]),
        error=OneOf([0, 0, 0, 1]),
    )
    def end_many(self, client: int, handles: list[int], error: int) -> None:
        name = self._client(client)
        self._ask(name, self._end([self._handle(name, one) for one in handles], error))

    @step(
        lambda self: self.idle(),
        client=CLIENT,
        sends=Several(0, 3, [MANY, FEW]),
        pair=FEW,
        ends=below(4),
    )
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
            made.append(self._end([self._handle(name, pair)], 0))
        self._transact(name, made)

    # Receiving.

    @step(
        lambda self: self.idle(),
        client=CLIENT,
        queue=FEW,
        limit=OneOf([None, None, 1, 2, 0]),
        selector=OneOf([0, 0, 0, 1, 2]),
        number=MANY,
        wait=WAIT,
    )
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

    @step(lambda self: self.idle(), client=CLIENT, queue=FEW, limit=OneOf([None, 1, 2]))
    def receive_alone(self, client: int, queue: int, limit: int | None) -> None:
        name = self._client(client)
        if name in self.driver.txs:
            self.driver.commit(name)
        verb, args, text = self._receive_args(name, queue, limit, 0, 0)
        self.driver.receive_alone(name, f"{text}, alone", verb, (*args, None))

    @step(
        lambda self: self.idle(),
        client=CLIENT,
        handle=MANY,
        seconds=OneOf([2, 5, 20, 35, 60, None]),
        timer=OneOf([None, None, "tea"]),
    )
    def set_timer(self, client: int, handle: int, seconds: int | None, timer: str | None) -> None:
        name = self._client(client)
        which = self._handle(name, handle)
        after = None if seconds is None else self.driver.apart(seconds)
        verb: Verb = ("set_timer", {"handle": which, "after": after, "name": timer})
        wire = ("set_timer", which, None if after is None else round(after * 1000), timer)
        text = f"set_timer({self.driver.names.of(which)}, {after}, {timer!r})"
        self.driver.ask(name, text, verb, wire)

    # The state of a group.

    @step(lambda self: self._with_locks(), number=MANY, writes=OneOf([False, True]))
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

    @step(lambda self: self.idle(), client=CLIENT, number=MANY)
    def look_at_group(self, client: int, number: int) -> None:
        name = self._client(client)
        group = self._group(name, number)
        verb: Verb = ("get_state", {"group_id": group, "take_lock": True})
        text = f"get_state({self.driver.names.of(group)}, take_lock)"
        self.driver.ask(name, text, verb, ("get_state", group, True))

    @step(lambda self: self.idle(), client=CLIENT, queue=FEW, wait=WAIT)
    def get_group(self, client: int, queue: int, wait: float | None) -> None:
        name = self._client(client)
        where = self._queue(queue)
        wait = self.driver.apart(wait) if wait else wait
        wire = ("get_group", where, None if wait is None else round(wait * 1000))
        text = f"get_group({where}, wait={wait})"
        self.driver.ask(name, text, ("get_group", {"queue": where}), wire, wait)

    @step(lambda self: self.idle(), client=CLIENT, handle=MANY, number=MANY)
    def move(self, client: int, handle: int, number: int) -> None:
        name = self._client(client)
        which, group = self._handle(name, handle), self._group(name, number)
        text = f"move({self.driver.names.of(which)}, {self.driver.names.of(group)})"
        verb: Verb = ("move", {"handle": which, "group_id": group})
        self.driver.ask(name, text, verb, ("move", which, group))

    @step(lambda self: self._with_tx(), client=CLIENT)
    def savepoint(self, client: int) -> None:
        name = self._with_tx()[client % len(self._with_tx())]
        number = next(self._bodies)
        verb: Verb = ("savepoint", {"number": number})
        self.driver.ask(name, f"savepoint {number}", verb, ("savepoint", number))

    @step(lambda self: self._with_savepoints(), client=CLIENT, number=FEW)
    def roll_back_to(self, client: int, number: int) -> None:
        name = self._with_savepoints()[client % len(self._with_savepoints())]
        points = list(self.driver.txs[name].savepoints)
        self.driver.roll_back_to(name, points[number % len(points)])

    def _with_savepoints(self) -> list[str]:
        """Clients whose transaction has one; a request of it may wait."""
        txs = self.driver.txs
        return [one for one in CLIENTS if one in txs and txs[one].savepoints]

    @step(lambda self: self.driver.asked, number=FEW)
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

    # Ends of transactions.

    @step(lambda self: self._with_tx(), client=CLIENT, commits=OneOf([True, True, True, False]))
    def finish(self, client: int, commits: bool) -> None:
        name = self._with_tx()[client % len(self._with_tx())]
        if commits:
            self.driver.commit(name)
        else:
            self.driver.roll_back(name)

    def _with_tx(self) -> list[str]:
        return [one for one in self.idle() if one in self.driver.txs]

    @step(lambda self: self._with_reads(), client=CLIENT, other=FEW, crashes=OneOf([False, True]))
    def commit_on_a_held_disk(self, client: int, other: int, crashes: bool) -> None:
        """Until a commit is durable its locks stay, and nobody is told (GRP-4, REL-1)."""
        name = self._with_reads()[client % len(self._with_reads())]
        others = [one for one in self.idle() if one != name]
        groups = [one.id for one in self.driver.txs[name].locked]

        def probe() -> None:
            self._probe(others[other % len(others)], groups[0], other)

        losing.commit_held(self.driver, name, probe if others else None, crashes=crashes)

    def _probe(self, client: str, group: bytes | None, queue: int) -> None:
        if group is not None and queue % 2:
            verb: Verb = ("get_state", {"group_id": group, "take_lock": True})
            text = f"get_state({self.driver.names.of(group)}, take_lock)"
            self.driver.ask(client, text, verb, ("get_state", group, True))
            return
        verb, args, text = self._receive_args(client, queue, None, 0, 0)
        losing.probe(self.driver, client, text, verb, ("receive", *args, None))

    def _with_reads(self) -> list[str]:
        """Idle clients whose transaction has received: it keeps its locks until it is durable."""
        return [
            one
            for one in self._with_tx()
            if any(isinstance(each, Received) for each in self.driver.txs[one].done)
        ]

    # Administration.

    @step(queue=FEW, on=OneOf([False, True]))
    def switch_retention(self, queue: int, on: bool) -> None:
        queues = list(self.model.retains)
        administering.switch_retention(self.driver, queues[queue % len(queues)], on=on)

    @step(
        lambda self: self.idle(),
        client=CLIENT,
        queue=FEW,
        really=below(2),
        sends=Several(0, 3, [MANY, FEW]),
        pair=FEW,
    )
    def blink(
        self, client: int, queue: int, really: int, sends: list[tuple[int, int]], pair: int
    ) -> None:
        where = self._queue(queue)
        name = self._client(client)

        def look() -> None:
            if sends and name not in self.driver.asked:
                self._send_to(name, where, sends, pair)
            if name not in self.driver.asked:
                verb = ("get_group", {"queue": where})
                self.driver.ask(name, f"get_group({where})", verb, ("get_group", where))

        if not really and sends and name in self.driver.txs:
            self.driver.commit(name)  # it may have set a timer that is due
        if not really and not self._may_act():
            administering.blink(self.driver, where, look)

    def _send_to(self, client: str, queue: str, sends: list[tuple[int, int]], pair: int) -> None:
        """Send to a queue that is off, on dialogs that nobody has locked and on new ones."""
        services = self.model.catalog.services
        pairs = [at for at, one in enumerate(PAIRS) if services[one.to_service].queue == queue]
        made = []
        for number, kind in sends:
            there = [one for one in self._unlocked() if self._sends_to(one, queue)]
            if there and number % 4:
                handle = there[number % len(there)].handle
                assert handle is not None
                made.append(self._send(client, [handle], kind))
            elif pairs:
                begun = pairs[pair % len(pairs)]
                made.append(self._begin_dialog(client, begun, 0, None))
                made.append(self._send(client, [made[-1][0][1]["handle"]], kind, begun=begun))
        if made:
            self._transact(client, made)

    def _sends_to(self, endpoint: Endpoint, queue: str) -> bool:
        """Whether it may send, and what it sends goes to that queue. Whether what is sent to an
        endpoint that was cleaned up is refused at once, or waits to be, nobody says (PBT-9)."""
        is_cleaned = endpoint.peer is None and (
            endpoint.dialog.accepted or not endpoint.is_initiator
        )
        if endpoint.state not in ("SO", "CO") or is_cleaned:
            return False
        return self.model.catalog.services[endpoint.far_service].queue == queue

    def _may_act(self) -> bool:
        """Whether something may go on by itself meanwhile, or soon, and then end a dialog: the
        model does not know of an EndDialog that waits for a queue to be switched on."""
        blocked = any(one.blocked_by is not None for one in self.model.waiting)
        return blocked or any(at < self.model.now + 8 * APART for at in self.model.deadlines())

    @step(lambda self: self._unlocked(), number=MANY, really=below(4))
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

    # Time, and what goes wrong.

    @step(lambda self: self.driver.asked, number=FEW)
    def give_up(self, number: int) -> None:
        """A client that waits in a transaction rolls it back (CLP-113)."""
        waiting = [one for one in self.driver.asked.values() if not one.request.commits]
        if waiting:
            self.driver.roll_back(waiting[number % len(waiting)].client)

    @step(client=CLIENT, really=below(4))
    def lose_connection(self, client: int, really: int) -> None:
        name = CLIENTS[client]
        asked = self.driver.asked.get(name)
        if really:
            return
        if asked is None or not asked.request.commits:
            losing.drop(self.driver, name)

    @step(seconds=OneOf([1, 3, 3, 10, 31]))
    def pass_time(self, seconds: int) -> None:
        self.driver.passes(self._bearable(seconds))

    @step(seconds=OneOf([0.1, 5, 30]), really=below(4))
    def crash(self, seconds: float, really: int) -> None:
        if not really:
            losing.crash(self.driver, seconds)

    def _bearable(self, seconds: float) -> float:
        """Not beyond the lifetime of a dialog that is not committed: nobody says what then."""
        ends = [one.dialog.expires_at for tx in self.model.open for one in tx.begun]
        return max(0.0, min([seconds, *(at - self.model.now - 6 * APART for at in ends)]))
