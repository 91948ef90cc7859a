"""Writers: programs that begin dialogs from the shop, send orders, await the replies and end.

By the plan they hold two dialogs at a time and send one message to both, move one into the group of
the other, set timers, and undo work below a savepoint.
Reads:  answers.      Calls: the SDK, over the simulated network.
Never:  sends a uid twice, whatever the outcome of the first transaction with it.
"""

import asyncio
from contextlib import suppress
from typing import Final

import msgspec

from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.errors import BrokerError, GroupNotFound
from brokerd.testing.rng import chance
from tests.engine.simulation import objects, workers
from tests.engine.simulation.clients import Client, is_passing, repeated
from tests.engine.simulation.recording import (
    INITIATOR,
    OWN,
    SEVERAL,
    Label,
    make_body,
    make_headers,
)
from tests.engine.simulation.surround import Surround

LONG: Final = 2 * 24 * 3600.0
"""Seconds of a lifetime that is longer than any run."""
FAR: Final = ("warehouse", "warehouse", "depot", "audit")


class Talk(msgspec.Struct, eq=False):
    """One dialog of a writer."""

    name: str
    handle: bytes
    group: bytes
    sent: int = 0
    """Orders sent in committed transactions."""
    got: int = 0
    """Replies received in committed transactions."""
    timers: set[str] = set()
    """Names of timers that have not come yet."""

    @property
    def is_answered(self) -> bool:
        """Whether all replies and timers have come."""
        return self.got >= self.sent and not self.timers


class Writer:
    """The program of all writers; `hurry` asks them to finish."""

    def __init__(self, shared: Surround, loose: set[str]) -> None:
        self._shared = shared
        self._loose = loose
        self.hurry = False
        self.morning: asyncio.Event | None = None
        """Set at the end of the night; None by day."""

    async def program(self, client: Client, session: Session) -> None:
        """Hold the dialogs of one writer, one after the other or two at a time."""
        for number in range(self._shared.plan.dialogs):
            if self.hurry and number:
                return
            name = f"{client.scope}-{number}"
            talks = [await self._begin(client, session, name, self._lifetime(client, name))]
            if self._also("several", "moves") and name not in self._loose:
                talks.append(await self._begin(client, session, f"{name}b", None))
            await self._converse(client, session, talks)

    def _also(self, *work: str) -> bool:
        return not set(work).isdisjoint(self._shared.plan.features.work)

    def _lifetime(self, client: Client, name: str) -> float | None:
        """Draw the lifetime of a dialog, in seconds.

        It is mostly None, or, in runs with leaping clocks, one that only a leap could end. A dialog
        with a short lifetime may end at any moment, so it is loose.
        """
        if not chance(client.rng, 0.06):
            return LONG if self._shared.clocks_leap else None
        self._loose.add(name)
        return float(client.rng.randint(2, 40))

    async def _begin(
        self, client: Client, session: Session, name: str, lifetime: float | None
    ) -> Talk:
        far = client.rng.choice(FAR)
        group = client.fresh_id() if self._also("moves") else None

        async def begin() -> bytes:
            return await session.begin_dialog(
                "shop", far, objects.CONTRACT, lifetime=lifetime, related_group=group
            )

        handle = await repeated(client, begin)
        self._shared.recording.named[handle] = name
        return Talk(name=name, handle=handle, group=group or b"")

    async def _converse(self, client: Client, session: Session, talks: list[Talk]) -> None:
        """Send orders on the first dialog, and sometimes on all; then read the replies and end.

        A drawn manner decides the end: `clean` reads all replies first; `early` and `error` end
        before, so that the dialogs become loose; `left` leaves the end to others.
        """
        plan, rng = self._shared.plan, client.rng
        name, left = talks[0].name, rng.randint(1, plan.messages)
        how = rng.choice(("clean", "clean", "clean", "clean", "early", "error", "left"))
        while left > 0:
            many = min(left, rng.choice((1, 1, 2, 5)))
            left -= many
            try:
                await self._send(client, session, talks, many)
                await self._do_besides(client, session, talks)
            except BrokerError as error:
                if name in self._loose:
                    break
                if error.code == "outcome_unknown":  # the number of replies to await is unknown
                    how = "early"
                    break
                client.problems.append(f"{name}: a send was refused with {error.code}")
                return
            await self._pause(client)
        if how in ("clean", "left") and name not in self._loose:
            answered = [await self._read_replies(client, session, talk) for talk in talks]
            if not all(answered) or how == "left":
                return  # the sweeper ends it
        else:
            self._loose |= {f"{talk.name}{more}" for talk in talks for more in ("", "+")}
        for talk in talks:
            await self._end(client, session, talk.handle, failing=how == "error")

    async def _pause(self, client: Client) -> None:
        if not self.hurry:
            await client.rest(client.rng.uniform(0.0, self._shared.plan.pause))
        if self.morning is not None:
            await self.morning.wait()

    async def _send(self, client: Client, session: Session, talks: list[Talk], many: int) -> None:
        """Send `many` orders in one transaction, or each in its own."""
        rng, first = client.rng, talks[0]
        if len(talks) == 1 and chance(rng, 0.4):
            first.sent += await self._send_pipelined(client, session, first, many)
            return

        async def send() -> list[Talk]:
            async with session.transaction() as tx:
                await workers.undone(workers.CREW.get(), tx, lambda: self._order(client, tx, first))
                for _ in range(many):
                    if chance(rng, 0.1):
                        await tx.send(first.handle, b"", "Nudge")
                    await self._order(client, tx, first)
                also = await self._order_all(client, tx, talks) if len(talks) > 1 else []
                workers.change_mind(workers.CREW.get())
                self._break_commit(client)
            return [first] * many + also

        for talk in await repeated(client, send):
            talk.sent += 1

    async def _order(self, client: Client, tx: Transaction, talk: Talk) -> None:
        body = self._body(client, talk.name)
        await tx.send(talk.handle, body, "Order", headers=make_headers(body))

    async def _order_all(self, client: Client, tx: Transaction, talks: list[Talk]) -> list[Talk]:
        """Send one message to all dialogs; return the dialogs that got one.

        Without the feature `several`, and until each dialog has had a message of its own, which
        carries its name, only the second dialog gets one.
        """
        if not self._also("several") or not all(talk.sent for talk in talks):
            await self._order(client, tx, talks[1])
            return talks[1:]
        body = self._body(client, SEVERAL.join(talk.name for talk in talks))
        handles: list[bytes] = [talk.handle for talk in talks]
        await tx.send(handles, body, "Order", headers=make_headers(body))
        return talks

    async def _send_pipelined(self, client: Client, session: Session, talk: Talk, many: int) -> int:
        await session.room()
        bodies = [self._body(client, talk.name) for _ in range(many)]
        asked = [
            session.submit_send(talk.handle, body, "Order", headers=make_headers(body))
            for body in bodies
        ]
        self._break_commit(client)
        told = await asyncio.gather(*asked, return_exceptions=True)
        for error in told:
            if isinstance(error, BaseException) and not is_passing(error):
                raise error
        return sum(error is None for error in told)

    async def _do_besides(self, client: Client, session: Session, talks: list[Talk]) -> None:
        """Set a timer, or move a dialog into the group of one of them, sometimes."""
        rng, talk = client.rng, talks[0]
        if self._also("timers") and chance(rng, 0.5):
            await repeated(client, lambda: self._set_timer(client, session, talk))
        if self._also("moves") and len(talks) > 1 and chance(rng, 0.5):
            moved, group = rng.choice(talks), rng.choice(talks).group
            try:
                await repeated(client, lambda: session.move(moved.handle, group))
            except GroupNotFound:  # the last dialog has left the group
                return
            self._shared.counts["dialogs moved"] += 1

    async def _set_timer(self, client: Client, session: Session, talk: Talk) -> None:
        crew, rng = workers.CREW.get(), client.rng
        uid = crew.fresh_uid(client.scope)
        name = make_body(Label(uid, f"{talk.name}{OWN}{uid}", INITIATOR), 0).decode()
        await session.set_timer(talk.handle, rng.choice((0.5, 3.0, 10.0)), name)
        talk.timers.add(name)
        if chance(rng, 0.2):
            talk.timers.discard(name)
            with suppress(BrokerError):  # if cancelling fails, the timer comes
                await session.set_timer(talk.handle, None, name)
            self._shared.counts["timers cancelled"] += 1

    def _break_commit(self, client: Client) -> None:
        """Reset the connection, sometimes, while the commit is on its way (REL-2)."""
        if self.hurry or client.rng.random() >= self._shared.plan.commits_cut:
            return
        loop, network = self._shared.loop, self._shared.network
        delay = client.rng.choice((0.0002, 0.001, 0.004, 0.02))
        loop.call_later(delay, network.reset, client.name, client.server)

    def _body(self, client: Client, name: str) -> bytes:
        crew = workers.CREW.get()
        uid = crew.fresh_uid(client.scope)
        return make_body(Label(uid, name, INITIATOR), crew.body_size())

    async def _read_replies(self, client: Client, session: Session, talk: Talk) -> bool:
        """Receive until each order has its reply and each timer has come.

        Return True then, or if the far side ended the dialog, which is a problem; False if it takes
        too long or a receive fails for good. A night does not count towards the time.
        """
        deadline = client.clock.monotonic() + 200.0
        while not talk.is_answered and client.clock.monotonic() < deadline:
            if self.morning is not None:
                await self.morning.wait()
                deadline = client.clock.monotonic() + 200.0
            try:
                async with session.transaction() as tx:
                    messages = await tx.receive("shop_q", conversation=talk.handle, wait=5.0)
                    if any(one.is_end or one.is_error for one in messages):
                        client.problems.append(f"{talk.name} was ended by the other side")
                        await tx.end(talk.handle)
                        return True
                    workers.change_mind(workers.CREW.get())
                    self._break_commit(client)
                talk.got += sum(one.message_type == "Reply" for one in messages)
                talk.timers -= {one.timer_name or "" for one in messages}
            except workers.OnPurpose:
                continue
            except BrokerError as error:
                if not is_passing(error):
                    client.problems.append(f"{talk.name}: a receive failed with {error.code}")
                    return False
                await client.rest(0.2)
        return talk.is_answered

    async def _end(self, client: Client, session: Session, handle: bytes, *, failing: bool) -> None:
        why = (42, "not wanted any more") if failing else (None, None)
        with suppress(BrokerError):  # the dialog may be over already
            await repeated(client, lambda: session.end(handle, *why))
