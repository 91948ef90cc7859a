"""Driver: does one thing to the engine and to the model, and compares what came of it.

What a program sees of the engine is compared after each step: which requests are answered, with
what; after each commit the views as well. `program` is what was done so far, as text.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from brokerd.broker.window import WindowOptions
from brokerd.client.requests import Kind, Pending
from brokerd.errors import DeadlockVictim
from brokerd.model import DIALOG_TIMER
from tests.model.comparing import Comparing
from tests.model.engine import LOCK_TIMEOUT, TICK, Engine
from tests.model.names import Names
from tests.model.objects import declaration
from tests.model.reference.catalog import Catalog
from tests.model.reference.model import Model, Request, Verb
from tests.model.reference.state import Group, SetTimer, Transaction

STEP = 0.02
"""Virtual seconds in which what can be answered is answered."""
APART = 1.2 * TICK
"""So far apart is whatever happens by itself, so that its order is certain: it may be a tick late
(PER-23)."""


@dataclass(eq=False)
class Asked:
    """A request of a client that has not been answered."""

    client: str
    text: str
    request: Request
    pending: Pending
    answered: int | None = None
    since: int = 0
    """The moment at which it was asked."""

    @property
    def future(self) -> "asyncio.Future[Any]":
        """Gets the answer."""
        return self.pending.future


class Driver:
    """An engine and the model, side by side."""

    def __init__(
        self,
        catalog: Catalog,
        clients: tuple[str, ...],
        *,
        window: WindowOptions,
        fast_paths: bool = True,
    ) -> None:
        self.engine = Engine(declaration(catalog), clients, window=window, fast_paths=fast_paths)
        self.model = Model(catalog, lock_timeout=LOCK_TIMEOUT)
        self.model.seen = self._seen
        self.model.answered = self._answered
        self.model.went_on = self._went_on
        self.model.timers_first = self._timers_first
        self.model.real_id = self._real_id
        self.model.flush = lambda tx: self.engine.flush_of(tx.client)
        self.clients = clients
        self.comparing = Comparing(self.engine, self.model)
        self.model.kept = self.comparing.is_kept
        self.program: list[str] = []
        self.txs: dict[str, Transaction] = {}
        self.asked: dict[str, Asked] = {}
        self._looks = self._views = 0
        self._changed = False
        """Something has been committed since the views were looked at."""
        self.names = Names()
        self.rest(0)

    def close(self) -> None:
        """Throw the engine away."""
        self.engine.close()

    # Time.

    def rest(self, seconds: float, quiet: float = APART) -> None:
        """Let time pass, and more if something would happen right at its end, or so soon after."""
        end = self.engine.now + seconds
        for at in sorted(self.deadlines()):
            if end - APART < at < end + quiet:
                end = at + APART
        self.engine.rest(end - self.engine.now)

    def passes(self, seconds: float) -> None:
        """Let time pass for both."""
        self.note(f"{seconds} seconds pass")
        self.rest(seconds)
        self.model.later(self.engine.now)
        self.compare()
        self.look()

    def apart(self, seconds: float, by: float = APART) -> float:
        """About so many seconds, so that nothing else happens at that moment."""
        at = self.engine.now + seconds
        taken = self.deadlines()
        while any(abs(at - other) < APART for other in taken):
            at += by
        return round(at - self.engine.now, 3)

    def deadlines(self) -> list[float]:
        model = self.model
        found = model.deadlines()
        found += [one.deadline for one in model.waiting if one.deadline is not None]
        for tx in model.open:
            found += [one.dialog.expires_at for one in tx.begun]
            for done in tx.done:
                if isinstance(done, SetTimer) and done.due_at is not None:
                    found.append(done.due_at)
        return found

    def room_for_a_wait(self) -> None:
        """A wait for a lock that begins now ends when nothing else happens.

        While the disk stands still no time passes: a daemon whose writer is behind reads no more
        requests, and would take them in another order (CLP-62)."""
        while not self.engine.disk_is_held and self.apart(LOCK_TIMEOUT) != LOCK_TIMEOUT:
            self.rest(APART)
            self.model.later(self.engine.now)

    def act(self, seconds: float = STEP) -> None:
        """The engine has been asked: let it act; the model is then asked as of this moment."""
        self.model.later(self.engine.now + 0.001)
        self.rest(seconds)

    # Requests.

    def transaction(self, client: str) -> Transaction:
        """The open transaction of a client, opened if need be."""
        if client not in self.txs:
            number = self.engine.begin(client)
            self.txs[client] = self.model.begin(client, number)
            self.note(f"{client}: begin")
        return self.txs[client]

    def ask(
        self, client: str, text: str, verb: Verb, wire: tuple[Any, ...], wait: float | None = None
    ) -> None:
        """One verb in the client's transaction."""
        self.room_for_a_wait()
        tx = self.transaction(client)
        pending = self.engine.link(client).in_tx(tx.number, wire[0], wire[1:])
        request = Request(tx, [verb], wait=wait)
        self._follow(Asked(client, text, request, pending))

    def transact(self, client: str, text: str, verbs: list[Verb], wire: list[Any]) -> None:
        """A whole transaction in one request."""
        self.room_for_a_wait()
        pending = self.engine.link(client).transact(wire)
        request = Request(self.model.begin(client), verbs, commits=True)
        self._follow(Asked(client, text, request, pending))
        self.look()

    def receive_alone(self, client: str, text: str, verb: Verb, wire: tuple[Any, ...]) -> None:
        """A receive that is its own transaction (RCV-16)."""
        pending = Pending(Kind.RECEIVE, "receive", wire, self.engine.loop.create_future())
        self.engine.link(client)._queue(pending)
        self.engine.link(client)._drain()
        request = Request(self.model.begin(client), [verb], commits=True)
        self._follow(Asked(client, text, request, pending))
        self.look()

    def _follow(self, asked: Asked) -> None:
        self.note(f"{asked.client}: {asked.text}")
        asked.since = self.engine.this_moment
        asked.future.add_done_callback(lambda _: self._count(asked))
        self.act()
        self.ask_model(asked)

    def ask_model(self, asked: Asked) -> None:
        self.asked[asked.client] = asked
        self.model.ask(asked.request)
        self.model.later(self.engine.now)
        self.compare()
        if self._changed:
            self.look()

    def _count(self, asked: Asked) -> None:
        done = asked.request.commits and not asked.future.exception()
        asked.answered = self.engine.moment(asked.client, commits=done)

    def _seen(self, request: Request) -> list[bytes | None]:
        """What the engine's answer names."""
        for asked in self.asked.values():
            if asked.request is request and asked.future.done() and not asked.future.exception():
                value = asked.future.result()
                found: list[bytes | None] = [value] if isinstance(value, bytes) else []
                if isinstance(value, list):
                    found = [name for one in value for name in (one[0], one[5])]
                if any(None in (one.handle, one.group.id) for one in self.model.endpoints):
                    self.comparing.meet()
                return found
        return []

    def _timers_first(self) -> bool:
        """Whether a receive that the model has not answered yet got a timer that is due there."""
        return any(
            one[4] == DIALOG_TIMER and self._is_pending(one[0], one[14])
            for asked in self.asked.values()
            if not asked.request.finished and asked.future.done() and not asked.future.exception()
            if isinstance(received := asked.future.result(), list)
            for one in received
        )

    def _is_pending(self, handle: bytes, timer: str | None) -> bool:
        endpoint = self.model.find(handle)
        return (
            endpoint is None or endpoint.timers.get(timer, self.engine.now + 1) <= self.engine.now
        )

    def _real_id(self, group: Group) -> bytes:
        """The id of a group that nobody may have seen yet: groups are locked in their order."""
        begun = [endpoint for tx in self.model.open for endpoint in tx.begun]
        handles = [one.handle for one in begun if one.group is group and one.handle is not None]
        return group.id or next(map(self.engine.group_id, handles), b"")

    def _answered(self, request: Request) -> int | None:
        """Its place among what the engine did: a refusal is told at once, and a commit later than
        it was done."""
        asked = self._asked_with(request)
        return None if asked is None else asked.answered

    def _asked_with(self, request: Request) -> Asked | None:
        return next((one for one in self.asked.values() if one.request is request), None)

    def _went_on(self, request: Request) -> int | None:
        """When it went on: as it was answered, which a verb that reads may put off. But as it was
        told of the lock where it waited for another one after that, or where a deadlock was broken,
        since who was first there lost."""
        asked = self._asked_with(request)
        if asked is None:
            return None
        told = self.engine.told(asked.client, asked.since)[request.locks :]
        if told and (len(told) > 1 or any(_is_victim(one.future) for one in self.asked.values())):
            return told[0]
        return asked.answered

    # Ends of transactions.

    def commit(self, client: str) -> None:
        """Commit the client's transaction."""
        tx = self.txs.pop(client)
        self.note(f"{client}: commit")
        future = self.engine.link(client).commit(tx.number).future
        self.act()
        self.committed(client, tx, future)

    def committed(self, client: str, tx: Transaction, future: "asyncio.Future[Any]") -> None:
        """The commit has been asked for: it must have been answered as the model says."""
        changed = bool(tx.done)
        assert future.done(), f"{client}: the commit has not been answered"
        codes = self.model.commit(tx)
        self._await_overdue()
        self.model.later(self.engine.now)
        self.comparing.outcome(future, codes)
        self.compare()
        self.look(changed=changed)

    def roll_back(self, client: str) -> None:
        """Roll the client's transaction back; it may have a request that waits."""
        tx = self.txs.pop(client)
        self.note(f"{client}: rollback")
        self.engine.link(client).rollback(tx.number)
        self.act()
        self.model.roll_back(tx)
        self.model.later(self.engine.now)
        self.compare()
        self.look()

    def roll_back_to(self, client: str, number: int) -> None:
        """Roll back to a savepoint; a request that waits fails (CLP-113)."""
        tx = self.txs[client]
        self.note(f"{client}: rollback_to {number}")
        future = self.engine.link(client).in_tx(tx.number, "rollback_to", (number,)).future
        self.act()
        self.model.roll_back_to(tx, number)
        self.model.later(self.engine.now)
        assert future.done(), "rollback_to has not been answered"
        self.comparing.outcome(future, ())
        self.compare()

    def cancel(self, client: str) -> None:
        """Cancel the client's receive or get_group that waits (RCV-22)."""
        asked = self.asked[client]
        self.note(f"{client}: cancel {asked.text}")
        self.engine.link(client).cancel(asked.pending)
        self.act()
        self.model.cancel(asked.request)
        self.model.later(self.engine.now)
        self.compare()

    def settled(self) -> None:
        """Something that was done to both shows now, before whatever falls due next."""
        self.rest(STEP)
        self.model.settle()
        self.model.later(self.engine.now)
        self.compare()
        self.look(changed=True)

    # Comparing.

    def compare(self) -> None:
        """Each request is answered exactly if it is in the model, and with the same."""
        if self._await_overdue():
            self.model.later(self.engine.now)
        failed = []
        for client, asked in list(self.asked.items()):
            request = asked.request
            if not (asked.future.done() and request.finished):
                continue
            del self.asked[client]
            self.note(f"    {client}: {asked.text} -> {self.names.show(asked.future)}")
            self.comparing.outcome(asked.future, request.codes, request.value, request.tx)
            self._changed |= request.commits and not request.codes
            if request.codes and request.tx.failed and client in self.txs:
                failed.append(client)
        if failed:  # until it is rolled back it has its locks, or has not, and nobody says which
            for client in failed:
                self._after_failure(client)
            return
        for asked in self.asked.values():
            if asked.future.done() != asked.request.finished:
                self._differ(asked)

    def _await_overdue(self) -> bool:
        """Whether a timer or the end of a lifetime was due before it was committed: it comes within
        a tick then (PER-23)."""
        if all(at > self.engine.now for at in self.model.deadlines()):
            return False
        self.rest(APART)
        return True

    def _differ(self, asked: Asked) -> None:
        request = asked.request
        real = self.names.show(asked.future) if asked.future.done() else "nothing"
        model = request.codes or request.value if request.finished else "it waits"
        raise AssertionError(
            f"{asked.client}: {asked.text} is answered with {real}; the model says {model}"
        )

    def _after_failure(self, client: str) -> None:
        """A failed transaction can only be rolled back, or to a savepoint (CLP-37, CLP-112)."""
        tx = self.txs[client]
        if tx.savepoints and not tx.given_up:
            self.roll_back_to(client, max(tx.savepoints))
        elif len(self.program) % 2 and not self.txs[client].over:
            self.commit(client)
        else:
            self.roll_back(client)

    def look(self, *, changed: bool = False) -> None:
        """The views show what is committed: now if it has changed, else now and then."""
        self._looks += 1
        if not (changed or self._changed) and self._looks % 4:
            return
        self._changed = False
        self._views += 1
        self.comparing.views(browses=self._views % 2 == 0)
        for endpoint in self.model.endpoints:
            self.names.learn(endpoint)

    def note(self, text: str) -> None:
        """Add a line to the program."""
        self.program.append(f"{self.engine.now:9.3f}  {text}")


def _is_victim(future: "asyncio.Future[Any]") -> bool:
    return (
        future.done() and not future.cancelled() and isinstance(future.exception(), DeadlockVictim)
    )
