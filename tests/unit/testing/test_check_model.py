"""The checker against a tiny broker that is right, and against the same with a bug planted."""

from random import Random

import pytest

from brokerd.testing.check import check
from brokerd.testing.evidence import Stored
from brokerd.testing.history import History, Kind

OK, FAIL, INFO, INVOKE = Kind.OK, Kind.FAIL, Kind.INFO, Kind.INVOKE
DIALOGS = ("d0", "d1", "d2")


class TinyBroker:
    """Queues in memory, one lock a dialog and direction, commits that may lose their answer."""

    def __init__(self, rng: Random, *, bug: str | None, numbered: bool) -> None:
        self.rng = rng
        self.bug = bug
        self.numbered = numbered
        self.queues: dict[str, list[tuple[str, int]]] = {name: [] for name in DIALOGS}
        self.next_seq = dict.fromkeys(DIALOGS, 0)
        self.locked: set[str] = set()
        self.planted = 0
        self.made = 0
        self.now = 0.0
        self.history = History(self.tick)

    def tick(self) -> float:
        self.now += 1
        return self.now

    def transaction(self, client: str, tx: int) -> "Steps":
        """A generator-like object: each `step` does one thing, the last one ends it."""
        return Steps(self, client, tx)

    def fires(self, bug: str, *, odds: float = 0.3) -> bool:
        if self.bug == bug and self.rng.random() < odds:
            self.planted += 1
            return True
        return False


class Steps:
    """One open transaction of the tiny broker."""

    def __init__(self, broker: TinyBroker, client: str, tx: int) -> None:
        self.broker = broker
        self.client = client
        self.tx = tx
        self.taken: list[tuple[str, str, int]] = []
        self.sends: list[tuple[str, str]] = []
        self.locks: set[str] = set()
        self.left = broker.rng.randint(1, 4)

    def step(self) -> bool:
        """Do one thing; False when the transaction has ended."""
        if self.left == 0:
            self.end()
            return False
        self.left -= 1
        dialog = self.broker.rng.choice(DIALOGS)
        if dialog in self.broker.locked - self.locks:
            return True
        self.broker.locked.add(dialog)
        self.locks.add(dialog)
        if self.broker.rng.random() < 0.5:
            self.send(dialog)
        else:
            self.receive(dialog)
        return True

    def send(self, dialog: str) -> None:
        uid = f"{self.client}-{self.broker.made}"
        self.broker.made += 1
        self.broker.history.add(
            "send", INVOKE, client=self.client, tx=self.tx, uid=uid, dialog=dialog,
            side="initiator", hash=f"h{uid}",
        )  # fmt: skip
        self.sends.append((dialog, uid))

    def receive(self, dialog: str) -> None:
        broker = self.broker
        broker.history.add("receive", INVOKE, client=self.client, tx=self.tx, queue="q")
        waiting = broker.queues[dialog]
        count = min(len(waiting), broker.rng.randint(1, 3))
        got, broker.queues[dialog] = waiting[:count], waiting[count:]
        if len(got) > 1 and broker.fires("swap"):
            got.reverse()
        if not got:
            broker.history.add("receive", OK, client=self.client, tx=self.tx, queue="q")
        for uid, seq in got:
            wrong = broker.fires("body", odds=0.1)
            broker.history.add(
                "receive", OK, client=self.client, tx=self.tx, uid=uid, dialog=dialog,
                side="target", hash="wrong" if wrong else f"h{uid}",
                seq=seq if broker.numbered else None,
            )  # fmt: skip
            self.taken.append((dialog, uid, seq))

    def end(self) -> None:
        broker, history = self.broker, self.broker.history
        draw = broker.rng.random()
        commits = draw < 0.7
        if draw > 0.85:
            history.add("rollback", INVOKE, client=self.client, tx=self.tx)
            history.add("rollback", OK, client=self.client, tx=self.tx)
        else:
            history.add("commit", INVOKE, client=self.client, tx=self.tx)
        if commits:
            self.commit()
        else:
            self.roll_back()
        if draw <= 0.85:
            answer = broker.rng.choice([OK if commits else FAIL, INFO, None])
            if answer is not None:
                history.add("commit", answer, client=self.client, tx=self.tx)
        broker.locked -= self.locks

    def commit(self) -> None:
        broker = self.broker
        for dialog, uid in self.sends:
            if len(self.sends) > 1 and broker.fires("lose", odds=0.2):
                continue
            broker.queues[dialog].append((uid, broker.next_seq[dialog]))
            broker.next_seq[dialog] += 1
        for dialog, uid, seq in reversed(self.taken):
            if broker.fires("twice", odds=0.2):
                broker.queues[dialog].insert(0, (uid, seq))

    def roll_back(self) -> None:
        broker = self.broker
        for dialog, uid, seq in reversed(self.taken):
            if not broker.fires("forget", odds=0.3):
                broker.queues[dialog].insert(0, (uid, seq))
        for dialog, uid in self.sends:
            if broker.fires("keep", odds=0.3):
                broker.queues[dialog].append((uid, broker.next_seq[dialog]))
                broker.next_seq[dialog] += 1


def played(seed: int, *, bug: str | None = None) -> TinyBroker:
    rng = Random(seed)
    broker = TinyBroker(rng, bug=bug, numbered=rng.random() < 0.5)
    open_ones: dict[str, Steps] = {}
    for number in range(150):
        client = rng.choice("abc")
        found = open_ones.get(client) or broker.transaction(client, number)
        open_ones[client] = found
        if not found.step():
            del open_ones[client]
    for found in open_ones.values():
        found.left = 0
        found.end()
    return broker


def rules(broker: TinyBroker, *, stores: bool = True) -> set[str]:
    queued = [uid for waiting in broker.queues.values() for uid, _ in waiting]
    stored = [Stored("east", queued=tuple(queued))] if stores else None
    return {found.rule for found in check(broker.history, stored)}


@pytest.mark.rule("CHK-1", "CHK-2", "CHK-3", "CHK-4", "CHK-5")
@pytest.mark.parametrize("stores", [True, False])
def test_a_right_broker_is_never_accused(stores: bool) -> None:
    for seed in range(150):
        assert rules(played(seed), stores=stores) == set(), f"seed {seed}"


@pytest.mark.rule("CHK-1", "CHK-2", "CHK-3", "CHK-4", "CHK-5")
@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        ("swap", {"CHK-5"}),
        ("body", {"CHK-1"}),
        ("lose", {"CHK-2", "CHK-4"}),
        ("twice", {"CHK-3", "CHK-4"}),
        ("forget", {"CHK-2", "CHK-4"}),
        ("keep", {"CHK-1", "CHK-4"}),
    ],
)
def test_a_planted_bug_is_found_by_the_right_property(bug: str, expected: set[str]) -> None:
    caught = fired = 0
    for seed in range(60):
        broker = played(seed, bug=bug)
        fired += broker.planted > 0
        caught += broker.planted > 0 and bool(rules(broker) & expected)
    assert fired > 20
    assert caught > 0.8 * fired
