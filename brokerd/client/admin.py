"""Admin: the verbs of an administrator: delivery, identity, clean-up, backups (MAN, DLG-23).

Reads:  arguments.     Calls: client.link.
Never:  part of a transaction: each call stands alone, and the daemon writes it to its log.
A new identifier is made here, so that a repeat of `new_broker` changes nothing.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from brokerd.client.arguments import wire_id, wire_text
from brokerd.clock import Instant
from brokerd.errors import InvalidArgument, ProtocolError
from brokerd.ids import ID_SIZE, IdSource, parse
from brokerd.protocol.admin_verbs import DEFAULT_GRACE, DEFAULT_ROWS, DEFAULT_WAIT

if TYPE_CHECKING:
    from brokerd.client.link import Link

Duration = float | timedelta


class BrokerState(msgspec.Struct, frozen=True):
    """A broker after an operation on it."""

    name: str
    broker_id: str
    is_broker_enabled: bool
    disabled_reason: str | None = None
    endpoints: dict[str, int] = {}
    """Dialog endpoints that were ended or removed, by the state they were in."""


class CleanedUp(msgspec.Struct, frozen=True):
    """The result of a bulk cleanup, by state (MAN-15)."""

    matched: dict[str, int] = {}
    removed: dict[str, int] = {}
    locked: dict[str, int] = {}
    """Left alone, because a transaction had locked their group."""


class Drained(msgspec.Struct, frozen=True):
    """The result of draining a queue: how its readers ended (PBT-25)."""

    ended: int = 0
    """Ended by themselves within the grace period."""
    stopped: int = 0
    """Ended after it, their transactions rolled back."""
    left: int = 0
    """Not ended even so: handlers in the daemon that do not let themselves be cancelled."""
    activation: str = "on"
    """How the activation of the queue stood before: on, off, or none if it has none."""


class Edited(msgspec.Struct, frozen=True):
    """A message that was given another body (CLP-117)."""

    message_id: str
    message_type: str
    validation: str
    """The validation of its message type, as a file of objects writes it."""

    @property
    def is_checked(self) -> bool:
        """Return whether a schema has said that the body is what its readers expect."""
        return self.validation.startswith("valid_")


class RouteStep(msgspec.Struct, frozen=True):
    """One rule of routing that was applied."""

    table: str
    """own, instance, or empty for what no table decides."""
    step: str
    """1 to 7 of finding, A to D of choosing, or a word."""
    finding: str
    routes: tuple[str, ...] = ()
    """Names of the routes it is about."""


class RouteExplanation(msgspec.Struct, frozen=True):
    """Where something goes, and every step that led there."""

    service: str
    broker_id: str | None
    outcome: str
    """local, remote, delayed, dropped or refused (by the broker that is named)."""
    where: str
    """Name of the broker, or the address; empty where it goes nowhere."""
    reason: str
    """Key of what keeps it (XMT-19); empty if nothing does."""
    route: str
    """Name of the route it follows; empty where no table was asked."""
    hops_used: int
    steps: tuple[RouteStep, ...]
    attempts: int = 0
    """Number of attempts to transmit; 0 unless a dialog was explained (XMT-18)."""
    next_attempt_at: Instant | None = None


class PingStep(msgspec.Struct, frozen=True):
    """The decision of one instance about a ping (NBT-7)."""

    leg: str
    """out, or back."""
    instance: str
    broker: str
    """The broker whose routes were asked; empty for those of the instance."""
    outcome: str
    """local, remote, delayed, dropped or refused (by the broker that is named)."""
    step: str
    """The step of finding that had routes, 1 to 7."""
    route: str
    where: str
    """Address or broker that it goes to; empty where it goes nowhere."""
    reason: str
    """Key of what keeps it (XMT-19); empty if nothing does."""
    detail: str


class PingAnswer(msgspec.Struct, frozen=True):
    """How a ping went."""

    service: str
    from_service: str
    steps: tuple[PingStep, ...]
    is_complete: bool
    """Whether the ping has gone out and its reply has come back."""
    seconds: float


class Admin:
    """`session.admin`. `broker` is a name, by default the broker of the session.

    Every method may also raise `ObjectNotFound` for a broker that does not exist, `AccessDenied`
    without the permission `control`, and what every request may raise; see `Session`.
    """

    def __init__(self, link: "Link", ids: IdSource, broker: str) -> None:
        self._link = link
        self._ids = ids
        self._broker = broker

    async def enable(
        self, broker: str | None = None, *, force: bool = False, wait: Duration = DEFAULT_WAIT
    ) -> BrokerState:
        """Switch delivery of a broker on (MAN-2).

        It waits for open transactions at most `wait` seconds; `force` rolls them back instead
        (MAN-1).

        Raises:
            DuplicateBroker: another broker of the instance has the same identifier.
            Busy: transactions were still open.
            BrokerError: what every request may raise; see `Session`.
        """
        return await self._switch("enable", broker, force, wait)

    async def disable(
        self, broker: str | None = None, *, force: bool = False, wait: Duration = DEFAULT_WAIT
    ) -> BrokerState:
        """Switch delivery of a broker off: sends wait, receiving and ending go on (MAN-3).

        It waits for open transactions at most `wait` seconds; `force` rolls them back instead
        (MAN-1).

        Raises:
            Busy: transactions were still open.
            BrokerError: what every request may raise; see `Session`.
        """
        return await self._switch("disable", broker, force, wait)

    async def error_conversations(
        self, broker: str | None = None, *, force: bool = False, wait: Duration = DEFAULT_WAIT
    ) -> BrokerState:
        """End every dialog with error -9719, at the peer -9720 (MAN-5).

        This is for a broker that was restored to an earlier point than its peers know. `force` and
        `wait` are those of `disable`.

        Raises:
            Busy: transactions were still open.
            BrokerError: what every request may raise; see `Session`.
        """
        return await self._switch("error_conversations", broker, force, wait)

    async def new_broker(
        self,
        broker: str | None = None,
        *,
        broker_id: bytes | str | None = None,
        force: bool = False,
        wait: Duration = DEFAULT_WAIT,
    ) -> BrokerState:
        """Remove every dialog and take a new identifier, for a copy of a broker (MAN-6).

        Peers are not told; when they send again, they get error -8462. `broker_id` is drawn if it
        is not given. `force` and `wait` are those of `disable`.

        Raises:
            InvalidArgument: `broker_id` is not 16 bytes.
            ValueError: `broker_id` is a text and no GUID.
            Busy: transactions were still open.
            BrokerError: what every request may raise; see `Session`.
        """
        chosen = self._ids.fresh() if broker_id is None else broker_id
        wanted = parse(chosen) if isinstance(chosen, str) else bytes(chosen)
        if len(wanted) != ID_SIZE:
            raise InvalidArgument(f"broker_id has {ID_SIZE} bytes")
        return await self._ask("new_broker", broker or self._broker, wanted, _how(force, wait))

    async def clean_up(self, handle: bytes, reason: str, *, tell_peer: bool = False) -> None:
        """Remove this side of a dialog, whatever its state (WITH CLEANUP, DLG-T27).

        Its messages that were not sent or not read are deleted. The other side is notified only
        with `tell_peer`; otherwise it may go on until the dialog's lifetime is over. The messages
        it repeats are refused, never delivered again (DLG-24, PBT-9). `reason` is for the log. To
        remove many dialogs at once, use `clean_up_endpoints`.

        Raises:
            ConversationNotFound: no dialog with this handle is open here.
            InvalidArgument: an argument has the wrong form, or there is no reason.
            LockTimeout: another transaction holds the conversation group.
            BrokerError: what every request may raise; see `Session`.
        """
        args = (wire_id(handle, "handle"), wire_text(reason, "reason"), bool(tell_peer))
        await self._link.ask("clean_up", args)

    async def clean_up_endpoints(
        self,
        reason: str,
        broker: str | None = None,
        *,
        states: Iterable[str] = (),
        older_than: Duration | None = None,
        service: str | None = None,
        far_service: str | None = None,
        batch: int = DEFAULT_ROWS,
        dry_run: bool = False,
        progress: Callable[[CleanedUp], None] = lambda _so_far: None,
    ) -> CleanedUp:
        """Remove the dialog endpoints that match, without telling their peers (MAN-15).

        `states`: in one of these; empty means any. `older_than`: in their present state for so many
        seconds. `batch`: endpoints looked at in one step. `progress` is called after each step.
        With `dry_run` they are only counted. Dangerous: a peer that lacks an acknowledgement
        repeats its messages (DLG-24).

        Raises:
            InvalidArgument: a state or another argument has the wrong form.
            BrokerError: what every request may raise; see `Session`.
        """
        wanted: dict[str, object] = {"states": list(states), "batch": batch, "dry_run": dry_run}
        wanted |= {"service": service, "far_service": far_service}
        if older_than is not None:
            wanted["older_than"] = _seconds(older_than)
        total, after = CleanedUp(), None
        while True:
            args = (broker or self._broker, reason, {**wanted, "after": after})
            answer = _map(await self._link.ask("clean_up_endpoints", args))
            after = answer.pop("next", None)
            total = _sum(total, msgspec.convert(answer, CleanedUp))
            progress(total)
            if after is None:
                return total

    async def alter_endpoint(self, /, **said: Any) -> dict[str, object]:  # noqa: ANN401
        """Change the broker endpoint while it runs, and return its row of the view `endpoint`.

        Keys and values are those of the section [endpoint] of a settings file: `state`, `listen`,
        `port`, `forwarding`, `forward_size_mb`, `drain`. Connections stay when addresses change; a
        state other than "started" drains and closes them (END-4 to END-6). The change lasts until
        the daemon stops.

        Raises:
            InvalidArgument: a key or a value is wrong, or the instance has no endpoint.
            BrokerError: what every request may raise; see `Session`.
        """
        plain = {
            key: value.total_seconds() if isinstance(value, timedelta) else value
            for key, value in said.items()
        }
        return _map(await self._link.ask("alter_endpoint", (plain,)))

    async def retry_destination(self, address: str | None = None) -> int:
        """Connect to a suppressed destination now, and return how many were tried (NBT-8).

        None means every destination.

        Raises:
            ObjectNotFound: nothing was ever sent to that address.
            InvalidArgument: the endpoint is not started.
            BrokerError: what every request may raise; see `Session`.
        """
        answer = _map(await self._link.ask("retry_destination", (address,)))
        return msgspec.convert(answer["destinations"], int)

    async def confirm_clock(self) -> timedelta:
        """Follow a jump of the clock that the daemon holds, and return how far it is (REL-24).

        What expires because of it expires now.

        Raises:
            InvalidArgument: no jump is held.
            BrokerError: what every request may raise; see `Session`.
        """
        answer = _map(await self._link.ask("confirm_clock", ()))
        return timedelta(seconds=msgspec.convert(answer["seconds"], int))

    async def explain_route(
        self,
        service: str | None = None,
        *,
        handle: bytes | None = None,
        broker_id: bytes | None = None,
        arriving: bool = False,
        reply: bool = False,
    ) -> RouteExplanation:
        """Return where a service name, or a dialog, would be sent, and by which steps (RTE-4).

        `arriving`: as if it came from another instance. `reply`: sent by the side of the target.
        Nothing is sent, and no route loses its turn.

        Raises:
            InvalidArgument: neither `service` nor `handle` is given, or both are.
            ConversationNotFound: no dialog with this handle is open here.
            BrokerError: what every request may raise; see `Session`.
        """
        options = {
            "handle": None if handle is None else wire_id(handle, "handle"),
            "broker_id": None if broker_id is None else wire_id(broker_id, "broker_id"),
            "arriving": arriving,
            "reply": reply,
        }
        answer = _map(await self._link.ask("explain_route", (service, options)))
        return msgspec.convert(answer, RouteExplanation)

    async def ping(
        self,
        service: str,
        *,
        from_service: str | None = None,
        broker_id: bytes | None = None,
        wait: Duration = 10.0,
    ) -> PingAnswer:
        """Walk the routing of a service name, out as a first message and back as its reply (NBT-7).

        Every instance on the way says by which route it goes on, or why it does not. No dialog is
        begun and nothing is queued. `from_service`: where replies would come to, by default the
        first service of the broker. After `wait` seconds what is known is the answer.

        Raises:
            ObjectNotFound: there is no service `from_service`.
            InvalidArgument: the broker has no service at all.
            BrokerError: what every request may raise; see `Session`.
        """
        options = {
            "from_service": from_service,
            "broker_id": None if broker_id is None else wire_id(broker_id, "broker_id"),
            "wait": _seconds(wait),
        }
        answer = _map(await self._link.ask("ping", (service, options)))
        return msgspec.convert(answer, PingAnswer)

    async def backup(self, path: str | Path, broker: str | None = None) -> int:
        """Have the daemon write a copy of a broker's store; return its size in bytes (MAN-11).

        The copy is consistent; work goes on meanwhile.

        `path` is a new file on the daemon's machine, absolute, and below a directory that
        `store.backup_dirs` names (SX-22).

        Raises:
            InvalidArgument: the path is not allowed, or the file exists.
            BackupFailed: the copy could not be written; no file is left.
            BrokerError: what every request may raise; see `Session`.
        """
        answer = _map(await self._link.ask("backup", (broker or self._broker, str(path))))
        return msgspec.convert(answer["bytes"], int)

    async def forget_broker(self, broker: str) -> str:
        """Forget a broker whose file is gone for good, and return its identifier (MAN-18).

        Its name may be used for another broker then.

        Raises:
            InUse: the file exists.
            ObjectNotFound: the instance has no such broker.
            InvalidArgument: the broker is msdb.
            BrokerError: what every request may raise; see `Session`.
        """
        answer = _map(await self._link.ask("forget_broker", (wire_text(broker, "broker"),)))
        return msgspec.convert(answer["broker_id"], str)

    # Poison (PBT-3, PSN-11). `group` is a conversation group, as `group ls --parked` shows it.

    async def release_group(
        self, group: bytes, reason: str = "", broker: str | None = None
    ) -> None:
        """Let a parked group, or one that waits for its next attempt, be received again (PBT-3).

        Its rollbacks are counted anew. `reason` is for the log.

        Raises:
            GroupNotFound: there is no such group.
            InvalidArgument: it is neither parked nor waiting, or a message of it is damaged
                (REL-6).
            BrokerError: what every request may raise; see `Session`.
        """
        await self._of_group("release_group", broker, group, reason)

    async def discard_group(
        self,
        group: bytes,
        reason: str = "",
        broker: str | None = None,
        *,
        everything: bool = False,
    ) -> int:
        """Delete the message that would be received first, or all of the group; return how many.

        If a message is damaged, only that one is deleted, wherever it is (REL-6). The group is
        released. The other side is not told: for it the messages were delivered. `reason` is for
        the log.

        Raises:
            GroupNotFound: there is no such group.
            InvalidArgument: its queue was dropped, or the message cannot be reached.
            BrokerError: what every request may raise; see `Session`.
        """
        answer = await self._of_group("discard_group", broker, group, everything, reason)
        return msgspec.convert(answer["messages"], int)

    async def end_group(
        self, group: bytes, code: int, description: str, broker: str | None = None
    ) -> int:
        """End every dialog of the group with this error; return how many. Its messages are deleted.

        Handlers of this side see neither an end nor an error (PSN-11).

        Raises:
            GroupNotFound: there is no such group.
            InvalidArgument: `code` is not above 0, or there is no description.
            BrokerError: what every request may raise; see `Session`.
        """
        answer = await self._of_group("end_group", broker, group, code, description)
        return msgspec.convert(answer["dialogs"], int)

    async def edit_group(
        self,
        group: bytes,
        body: bytes | None,
        reason: str = "",
        broker: str | None = None,
        *,
        as_it_is: bool = False,
    ) -> Edited:
        """Give the message that is received first another body, and release the group.

        `body` None means no body at all. `as_it_is` accepts a body that is not JSON where the old
        one was, for which its reader would end the dialog.

        Raises:
            ValidationFailed: the message type does not accept the body, or it is no longer JSON.
            GroupNotFound: there is no such group.
            InvalidArgument: no message is left, or the first one is not of a program.
            BrokerError: what every request may raise; see `Session`.
        """
        answer = await self._of_group("edit_group", broker, group, body, reason, as_it_is)
        return msgspec.convert(answer, Edited)

    async def cure_queue(
        self, queue: str, code: int, description: str, broker: str | None = None
    ) -> str:
        """End the dialog for which a queue was switched off, and switch the queue on (PSN-11).

        Return its conversation id. Look at the message before: `session.browse(queue)`.

        Raises:
            QueueNotFound: there is no such queue.
            InvalidState: the queue is not off because of a dialog.
            BrokerError: what every request may raise; see `Session`.
        """
        asked = (broker or self._broker, wire_text(queue, "queue"), code, description)
        answer = _map(await self._link.ask("cure_queue", asked))
        return msgspec.convert(answer["conversation_id"], str)

    async def drain_queue(
        self, queue: str, broker: str | None = None, *, grace: Duration = DEFAULT_GRACE
    ) -> Drained:
        """Switch the activation of a queue off and let its readers end (PBT-25).

        The receives of its readers return nothing, and reader processes get SIGTERM. A reader
        that runs longer than `grace` seconds is ended and its transaction rolled back; this
        rollback does not count for poison. Receives of other clients that wait on the queue
        return nothing, once. This returns when the readers are gone. The queue stays on;
        `alter("queue", NAME, activation={"status": "on"})` starts readers again.

        Raises:
            QueueNotFound: there is no such queue.
            BrokerError: what every request may raise; see `Session`.
        """
        asked = (broker or self._broker, wire_text(queue, "queue"), _seconds(grace))
        return msgspec.convert(await self._link.ask("drain_queue", asked), Drained)

    async def _of_group(
        self, verb: str, broker: str | None, group: bytes, *rest: object
    ) -> dict[str, object]:
        asked = (broker or self._broker, wire_id(group, "group"), *rest)
        return _map(await self._link.ask(verb, asked))

    async def _switch(
        self, verb: str, broker: str | None, force: bool, wait: Duration
    ) -> BrokerState:
        return await self._ask(verb, broker or self._broker, _how(force, wait))

    async def _ask(self, verb: str, *args: object) -> BrokerState:
        return msgspec.convert(await self._link.ask(verb, args), BrokerState)


def _how(force: bool, wait: Duration) -> dict[str, object]:
    return {"force": force, "wait": _seconds(wait)}


def _seconds(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def _map(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ProtocolError("a map is expected")
    return value


def _sum(one: CleanedUp, other: CleanedUp) -> CleanedUp:
    def added(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
        return {state: a.get(state, 0) + b.get(state, 0) for state in (*a, *b)}

    return CleanedUp(
        added(one.matched, other.matched),
        added(one.removed, other.removed),
        added(one.locked, other.locked),
    )
