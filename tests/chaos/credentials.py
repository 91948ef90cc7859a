"""Credentials: the faults of the schedule that concern who is known to whom, and what proves it.

Calls:  tests.trust, on the daemons of a run.
Never:  leaves daemons that do not know each other behind.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, TypeVar

from brokerd.client.session import Session, connect
from brokerd.clock import SystemClock
from brokerd.errors import BrokerError, InUse, ObjectNotFound
from tests.chaos.places import Places
from tests.chaos.schedule import EAST, MIDDLE, WEST, Fault
from tests.relay import LOOPBACK
from tests.trust import Guest, carry, drop_old, introduce, pair_again, renew

T = TypeVar("T")
PATIENCE: Final = 120.0
AGAIN: Final = 0.5
SERVICES: Final = {EAST: ("client",), WEST: ("ledger",), MIDDLE: ()}
"""Services that the peers of a daemon may send to."""


class Credentials:
    """Keeps the daemons of a run known to each other, and changes by what."""

    def __init__(self, places: Places, problem: Callable[[str], None]) -> None:
        self._places = places
        self._problem = problem
        self.refusing: dict[str, list[tuple[float, float]]] = {name: [] for name in places.daemons}
        """When a daemon may have refused a login, by the machine's clock."""

    async def introduce(self) -> None:
        """Let all daemons know each other."""
        async with AsyncExitStack() as stack:
            sessions = {name: await self._session(stack, name) for name in self._places.daemons}
            for here, at in sessions.items():
                for there, other in sessions.items():
                    if here != there:
                        address = self._places.address_of(here, there)
                        shares = SERVICES[here]
                        await introduce(at, other, there, address=address, shares=shares)

    async def rotate(self, fault: Fault) -> None:
        """Make new certificates, wait until all have them, use them, and remove the old ones."""
        name = fault.victim
        far = [one for one in self._places.daemons if self._is_far(name, one)]
        await self._granted(name, renew)
        for one in far:
            await self._both(name, one, lambda at, to: carry(at, to, name))
        # A peer that is reached by way of others is never connected, so it never says that it has
        # them: they were carried there.
        anyway = bool(far)
        if anyway:
            await self._granted(name, self._until_near_peers_have_them)
        await self._granted(name, lambda at: self._switched(at, anyway=anyway))
        await asyncio.sleep(fault.seconds)
        await self._granted(name, drop_old)
        for one in far:
            await self._both(name, one, lambda at, to: carry(at, to, name))

    async def _switched(self, at: Session, *, anyway: bool) -> None:
        await at.admin.switch_certificates(wait=10.0, anyway=anyway)

    async def _until_near_peers_have_them(self, at: Session) -> None:
        rows = await at.admin.own_certificates(wait=1.0)
        near = {f"peer:{MIDDLE}"}
        if any(near & one.lacking.keys() for one in rows):
            raise InUse("a neighbour has not installed the next certificates yet")

    async def revoke(self, fault: Fault) -> None:
        """Take everything back from a peer: nothing of it may arrive until it is paired again."""
        here, there = fault.victim, self._places.neighbour(fault.victim)
        began = time.time()
        await self._granted(here, lambda at: self._revoked(at, f"peer:{there}"))
        await self._granted(here, lambda at: self._nothing_arrives(at, there, fault.seconds))

        async def again(at: Session, joining: Session) -> None:
            await pair_again(
                at,
                joining,
                address=self._places.address_of(there, here) or "",
                joining_address=self._places.address_of(here, there) or "",
                shares=SERVICES[here] if there != MIDDLE else (),
            )

        await self._both(here, there, again)
        for one in (here, there):
            self.refusing[one].append((began, time.time()))
        await self._granted(here, lambda at: self._is_known(at, f"peer:{there}"))

    async def _revoked(self, at: Session, principal: str) -> None:
        try:
            await at.admin.revoke_principal(principal)
        except ObjectNotFound:
            return  # an ask before has done it

    async def _nothing_arrives(self, at: Session, there: str, seconds: float) -> None:
        before = await self._arrived(at)
        await asyncio.sleep(seconds)
        after = await self._arrived(at)
        if after != before:
            self._problem(f"of {there}, which was revoked, arrived: {before} became {after}")
        for row in await at.view("connections", where={"principal_name": f"peer:{there}"}):
            if row["login_state_desc"] == "ONLINE":
                self._problem(f"{there} was revoked and is connected: {row}")

    async def _arrived(self, at: Session) -> dict[str, int]:
        """Return what has arrived over the network since the start."""
        (row,) = await at.view("transport_counters")
        return {"fragments": row["fragment_receives_total"]}

    async def _is_known(self, at: Session, principal: str) -> None:
        rows = await at.view("principals", where={"name": principal})
        if not rows:
            self._problem(f"{principal} was paired again, and is not known")

    async def expire(self, fault: Fault) -> None:
        """Let a peer in until its certificate has expired, and then no more."""
        daemon = self._places.daemons[fault.victim]
        began = time.time()

        async def known(at: Session) -> tuple[Guest, list[str]]:
            # A new one each time: after a kill, or on a slow machine, the last one has expired.
            guest = Guest(valid_for=fault.seconds, now=SystemClock().utc())
            done = await at.admin.install_principal(
                "peer:guest", certificates=[guest.certificate.encoded]
            )
            await at.admin.grant("connect on endpoint to peer:guest")
            assert done.name == "peer:guest"
            return guest, [one.pem for one in await at.admin.own_certificates(wait=0.0)]

        guest, shown = await self._granted(daemon.name, known)
        pems = [one for one in shown if "DIALOG" not in one]
        is_let_in = await guest.is_let_in(LOOPBACK, daemon.port, pems)
        over = guest.certificate.not_after / 1_000_000
        if not is_let_in and time.time() < over - 1:
            self._problem(f"{daemon.name} refuses a peer whose certificate is valid")
        await asyncio.sleep(max(0.0, over + 1.5 - time.time()))
        if await guest.is_let_in(LOOPBACK, daemon.port, pems):
            self._problem(f"{daemon.name} lets a peer in whose certificate has expired")
        await self._granted(daemon.name, lambda at: self._revoked(at, "peer:guest"))
        self.refusing[daemon.name].append((began, time.time()))

    def _is_far(self, one: str, other: str) -> bool:
        return one != other and self._places.address_of(one, other) is None

    # Asking until it is done, also if a daemon is killed meanwhile.

    async def _session(self, stack: AsyncExitStack, name: str) -> Session:
        address = self._places.daemons[name].address
        return await stack.enter_async_context(connect(address, broker="main", wait=PATIENCE))

    async def _granted(self, name: str, ask: Callable[[Session], Awaitable[T]]) -> T:
        async def run(stack: AsyncExitStack) -> T:
            return await ask(await self._session(stack, name))

        return await self._until_done(run)

    async def _both(
        self, one: str, other: str, ask: Callable[[Session, Session], Awaitable[None]]
    ) -> None:
        async def run(stack: AsyncExitStack) -> None:
            await ask(await self._session(stack, one), await self._session(stack, other))

        await self._until_done(run)

    async def _until_done(self, run: Callable[[AsyncExitStack], Awaitable[T]]) -> T:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    async with AsyncExitStack() as stack:
                        return await run(stack)
                except BrokerError:
                    await asyncio.sleep(AGAIN)
