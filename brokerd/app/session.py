"""Session: the verbs, and methods for convenience: dialogs, posts, deliveries.

Reads:  arguments.      Calls: the verbs of `brokerd.client`, and the other modules of this package.
Never:  makes a request that a program could not make by the verbs.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Final

from brokerd.app import deliveries as _deliveries
from brokerd.app.app import App, merged
from brokerd.app.contract import Contract
from brokerd.app.deliveries import Delivery, ErrorHook, Hook, Hooks
from brokerd.app.dialog import Dialog
from brokerd.app.pool import DialogPool, PoolOptions, Receipt, Refused
from brokerd.client.arguments import check_services
from brokerd.client.messages import FOREVER, Wait
from brokerd.client.session import Session as VerbSession
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import InvalidArgument, NotInContract, ServiceNotFound
from brokerd.ids import GroupId
from brokerd.protocol.headers import Headers

CLOSE_POOL_WITHIN: Final = 1.0
"""Seconds that a closing session gives the targets of its posts to end."""


class Session(VerbSession):
    """A client of one broker, made by `brokerd.connect`; any number of tasks may share it.

    It has every verb of Service Broker and the convenient methods below. The section "Verbs of a
    session" lists the errors common to all requests.
    """

    service: str | None = None
    """The local service that begins the dialogs of `dialog` and `post`, by default."""

    def __init__(self, **parts: Any) -> None:  # noqa: ANN401  # passed on unchanged
        super().__init__(**parts)
        self._queues: dict[str, str] = {}
        self._contracts: dict[str, Contract] = {}
        self._pool: DialogPool | None = None
        self.at_close: Callable[[], Awaitable[None]] | None = None
        """Called once the connection is closed."""

    async def close(self) -> None:
        """End the streams of posts, within about a second, and close the connection.

        Raises:
            BrokerError: ending a stream failed; see `DialogPool.close`.
        """
        pool, self._pool = self._pool, None
        if pool is not None and not self.closed:
            await pool.close(CLOSE_POOL_WITHIN)
        await super().close()
        at_close, self.at_close = self.at_close, None
        if at_close is not None:
            await at_close()

    # Objects.

    async def declare(
        self,
        *needed: Contract | App,
        service: str | None = None,
        queue: str | None = None,
        target: bool = False,
        dry_run: bool = False,
    ) -> list[object]:
        """Add the missing objects that a program needs to the broker; return the changes (SDK-4).

        For a Contract these are the contract and its message types. For an App they are the queues
        that the App reads, and its service with its contracts, so that other services may begin
        dialogs with it. `service`: the service that begins this program's dialogs; its replies
        come to `queue`, by default the name of the service followed by `_q`. `target`: other
        services may begin dialogs with `service`, too, under the contracts given here. `dry_run`:
        only return the changes. Existing objects are not altered.

        Raises:
            ObjectsRefused: a contract of that name exists with other types.
            InvalidArgument: one of `needed` is neither a Contract nor an App.
            BrokerError: an error common to all requests.
        """
        for one in needed:
            if not isinstance(one, Contract | App):
                raise InvalidArgument(
                    f"{type(one).__name__} is nothing that is declared",
                    hint="give a brokerd.Contract or a brokerd.App; files are for brokerd apply",
                )
        contracts = [one for one in needed if isinstance(one, Contract)]
        served = [found for one in needed if isinstance(one, App) for found in one.contracts]
        parts: list[dict[str, Any]] = [one.objects() for one in needed]
        if service is not None:
            name = queue or f"{service}_q"
            accepts = sorted(one.name for one in contracts) if target else []
            parts.append(
                {
                    "queue": [{"name": name, "poison_mode": "park"}],
                    "service": [{"name": service, "queue": name, "contracts": accepts}],
                }
            )
            self.service = self.service or service
        self._contracts.update({one.name: one for one in (*contracts, *served)})
        wanted = {"broker": {"name": self.welcome.broker}, **merged(parts)}
        return await self.apply(wanted, dry_run=dry_run, ensure=True)

    # Sending.

    def dialog(
        self,
        to_service: str,
        contract: Contract | str | None = None,
        *,
        service: str | None = None,
        group: bytes | str | None = None,
        lifetime: float | timedelta | None = None,
        broker_id: bytes | str | None = None,
        encryption: bool | None = None,
    ) -> Dialog:
        """Return a dialog, to be used with `async with`; it begins with the first send (SDK-5).

        Leaving the block ends this side; an exception ends it with an error. `contract`: a
        Contract, or the name of a declared one; None = DEFAULT with bytes. `service`: the local
        service, by default that of the session. `group`: the conversation group to join, whose
        messages are received by one transaction at a time; the same text always gives the same
        group of a service. `lifetime`: seconds, or a timedelta; None = that of the contract.
        `broker_id`, `encryption`: see `begin_dialog`.

        Raises:
            InvalidArgument: neither this call nor `connect` has a service, or the contract is not
                known.
            InvalidName: `to_service` is empty or too long.
        """
        own = self._own(service)
        check_services(own, to_service)
        chosen = self._contract(contract)
        return Dialog(
            session=self,
            clock=self.clock,
            queue_of=self.queue_of,
            service=own,
            to_service=to_service,
            contract=chosen,
            options={
                "lifetime": chosen.lifetime if lifetime is None else lifetime,
                "related_group": group_id(own, group) if isinstance(group, str) else group,
                "broker_id": broker_id,
                "encryption": encryption,
            },
        )

    async def post(
        self,
        to_service: str,
        value: object,
        *,
        key: str = "",
        contract: Contract | None = None,
        service: str | None = None,
        headers: Headers | None = None,
    ) -> Receipt:
        """Send a value one way and return a receipt; durable when this returns (SDK-12).

        `key`: values with one key arrive in order, on a dialog that is kept and reused. `contract`:
        None = the declared contract that fits the value. `service`: the local service, by default
        that of the session. `headers`: as for `send`. A refusal is not lost: `pool.refused` lists
        it, and `receipt.processed()` raises it.

        Raises:
            NotInContract: not exactly one declared contract fits the value, or `contract` does not.
            InvalidArgument: neither this call nor `connect` has a service, or the contract has no
                marker for the end of a stream.
            BrokerError: an error that `begin_dialog` or `send` names.
        """
        chosen = contract or self._contract_for(value)
        own = self._own(service)
        return await self.pool.send(own, to_service, chosen, value, partition=key, headers=headers)

    async def post_many(
        self,
        to_service: str,
        values: Iterable[tuple[str, object]],
        *,
        contract: Contract | None = None,
        service: str | None = None,
        headers: Headers | None = None,
    ) -> list[Receipt]:
        """Post several values, each with its key, in one commit: all or none.

        Return a receipt for each value. The other arguments are those of `post`; each message has
        the same `headers`.

        Raises:
            BrokerError: an error that `post` names.
        """
        items = list(values)
        if not items:
            return []
        chosen = contract or self._contract_for(items[0][1])
        own = self._own(service)
        return await self.pool.send_many(own, to_service, chosen, items, headers=headers)

    @property
    def pool(self) -> DialogPool:
        """The pool of dialogs that `post` reuses."""
        if self._pool is None:
            self._pool = self.new_pool()
        return self._pool

    def new_pool(
        self, options: PoolOptions | None = None, *, on_refused: Refused | None = None
    ) -> DialogPool:
        """Return a separate pool of dialogs; `async with` ends its streams (PBT-22).

        `options`: the limits at which a stream is replaced. `on_refused`: called on the loop with
        each failed stream and the reason.

        Raises: nothing.
        """
        return DialogPool(
            self,
            queue_of=self.queue_of,
            clock=self.clock,
            ids=self._ids,
            options=options,
            on_refused=on_refused,
        )

    # Receiving.

    def deliveries(
        self,
        queue: str,
        *,
        concurrency: int = 1,
        contracts: Iterable[Contract] = (),
        wait: Wait = FOREVER,
        on_end: Hook | None = None,
        on_error: ErrorHook | None = None,
        on_timer: Hook | None = None,
    ) -> AsyncIterator[Delivery]:
        """Yield the messages of a queue: `async for m in ...: async with m: ...` (SDK-8).

        Each message has a transaction: the block commits it, an exception rolls it back. Ends,
        errors and timers are handled, with hooks to observe them. `concurrency`: maximum number of
        messages that are open at a time, for example in tasks; each is of another conversation
        group. `contracts`: contracts for the types of values, in addition to the declared ones.
        `wait`: end after this many seconds without a message; FOREVER = never.

        Raises:
            QueueNotFound, QueueDisabled: the queue does not exist, or is off (ACT-27).
            InvalidArgument: an argument has the wrong form.
            BrokerError: an error common to all requests.
        """
        return _deliveries.deliveries(
            self,
            queue,
            concurrency=concurrency,
            contracts={**self._contracts, **{one.name: one for one in contracts}},
            hooks=Hooks(on_end=on_end, on_error=on_error, on_timer=on_timer),
            wait=wait,
        )

    async def queue_of(self, service: str) -> str:
        """Return the queue of a local service.

        Raises:
            ServiceNotFound: the service does not exist.
            BrokerError: an error common to all requests.
        """
        if service not in self._queues:
            # Not the view, which needs CONTROL: a program may have no right but to receive.
            rows = await self.objects("service")
            self._queues = {str(row["name"]): str(row["queue"]) for row in rows}
        if service not in self._queues:
            near = did_you_mean(service, self._queues)
            raise ServiceNotFound(f"there is no service {service} in {self.welcome.broker}{near}")
        return self._queues[service]

    # Defaults.

    def _own(self, service: str | None) -> str:
        chosen = service or self.service
        if chosen is None:
            raise InvalidArgument(
                "in the name of which service?",
                hint='brokerd.connect(..., service="shop"), or service= here',
            )
        return chosen

    def _contract(self, contract: Contract | str | None) -> Contract:
        if contract is None:
            return Contract.default()
        if isinstance(contract, Contract):
            return contract
        if contract not in self._contracts:
            raise InvalidArgument(
                f"the types of contract {contract} are not known here",
                hint="give a brokerd.Contract; or use begin_dialog and send, which take bytes",
            )
        return self._contracts[contract]

    def _contract_for(self, value: object) -> Contract:
        """Return the declared contract whose initiator may send this value."""
        fitting = [one for one in self._contracts.values() if one.starts(value)]
        if len(fitting) != 1:
            many = ", ".join(one.name for one in fitting) or "none"
            raise NotInContract(
                f"one contract with {type(value).__name__} is wanted; declared here: {many}",
                hint="post(..., contract=...), or declare the contract on this session first",
            )
        return fitting[0]


def group_id(service: str, name: str) -> GroupId:
    """Return the id of the conversation group that a service has for a text.

    Raises: nothing.
    """
    return GroupId(blake2b(f"{service}\0{name}".encode(), digest_size=16).digest())
