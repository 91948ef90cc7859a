"""Admin: the verbs of an administrator: delivery, identity, clean-up, backups (MAN, DLG-23).

Reads:  arguments.     Calls: client.link.
Never:  takes part in a transaction: each call stands alone, and the daemon writes it to its log.
The client makes the new identifier, so that a repeat of `new_broker` changes nothing.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from brokerd.client.admin_answers import (
    BrokerState,
    CleanedUp,
    Drained,
    Edited,
    PageAddress,
    PingAnswer,
    Purged,
    RouteExplanation,
)
from brokerd.client.arguments import wire_id, wire_text
from brokerd.client.credentials import CredentialVerbs
from brokerd.client.grants import GrantVerbs
from brokerd.client.pairing import PairingVerbs
from brokerd.client.timelines import TimelineVerbs
from brokerd.errors import InvalidArgument, ProtocolError
from brokerd.ids import ID_SIZE, IdSource, parse
from brokerd.protocol.admin_verbs import DEFAULT_GRACE, DEFAULT_ROWS, DEFAULT_WAIT

if TYPE_CHECKING:
    from brokerd.client.link import Link

Duration = float | timedelta


class Admin(CredentialVerbs, GrantVerbs, PairingVerbs, TimelineVerbs):
    """The verbs of an administrator, `session.admin`.

    The argument `broker` is a name, by default that of the session's broker. Every method may also
    raise `ObjectNotFound` for a broker that does not exist, `AccessDenied` without the permission
    `control`, and the errors common to all requests; see `Session`.
    """

    def __init__(self, link: "Link", ids: IdSource, broker: str) -> None:
        self._link = link
        self._ids = ids
        self._broker = broker

    async def enable(
        self, broker: str | None = None, *, force: bool = False, wait: Duration = DEFAULT_WAIT
    ) -> BrokerState:
        """Switch delivery of a broker on (MAN-2).

        `wait`: seconds, or a timedelta, to wait for the end of open transactions. `force`: roll
        them back instead (MAN-1).

        Raises:
            DuplicateBroker: another broker of the instance has the same identifier.
            Busy: transactions were still open after the wait.
            BrokerError: an error common to all requests; see `Session`.
        """
        return await self._switch("enable", broker, force, wait)

    async def disable(
        self, broker: str | None = None, *, force: bool = False, wait: Duration = DEFAULT_WAIT
    ) -> BrokerState:
        """Switch delivery of a broker off: sent messages wait; receive and end still work (MAN-3).

        `wait`: seconds, or a timedelta, to wait for the end of open transactions. `force`: roll
        them back instead (MAN-1).

        Raises:
            Busy: transactions were still open after the wait.
            BrokerError: an error common to all requests; see `Session`.
        """
        return await self._switch("disable", broker, force, wait)

    async def error_conversations(
        self, broker: str | None = None, *, force: bool = False, wait: Duration = DEFAULT_WAIT
    ) -> BrokerState:
        """End every dialog of a broker with error -9719, and -9720 at the peer (MAN-5).

        Use it for a broker that was restored to another point in time than its peers. `force`
        and `wait`: as for `disable`.

        Raises:
            Busy: transactions were still open after the wait.
            BrokerError: an error common to all requests; see `Session`.
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
        """Remove every dialog of a copied broker, and give it a new identifier (MAN-6).

        Peers are not notified; when they send again, they get error -8462. `broker_id`: 16 bytes,
        or a GUID as text; drawn if not given. `force` and `wait`: as for `disable`.

        Raises:
            InvalidArgument: `broker_id` is not 16 bytes.
            ValueError: `broker_id` is a text, but not a GUID.
            Busy: transactions were still open after the wait.
            BrokerError: an error common to all requests; see `Session`.
        """
        chosen = self._ids.fresh() if broker_id is None else broker_id
        wanted = parse(chosen) if isinstance(chosen, str) else bytes(chosen)
        if len(wanted) != ID_SIZE:
            raise InvalidArgument(f"broker_id has {ID_SIZE} bytes")
        return await self._ask("new_broker", broker or self._broker, wanted, _how(force, wait))

    async def clean_up(self, handle: bytes, reason: str, *, tell_peer: bool = False) -> None:
        """Remove this side of a dialog, in any state, as WITH CLEANUP does (DLG-T27).

        Its unsent and unread messages are deleted. The other side is notified only with
        `tell_peer`; otherwise it may continue until the lifetime of the dialog is over. Messages
        that it sends again are refused, never delivered twice (DLG-24, PBT-9). `reason`: a text
        for the log. To remove many dialogs at once, use `clean_up_endpoints`.

        Raises:
            ConversationNotFound: this broker has no open dialog with this handle.
            InvalidArgument: an argument has the wrong form, or `reason` is empty.
            LockTimeout: another transaction holds the conversation group.
            BrokerError: an error common to all requests; see `Session`.
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
        """Remove the dialog endpoints that match, without notifying their peers (MAN-15).

        `reason`: a text for the log. An endpoint matches if it is in one of `states` (empty = any),
        has been in its state for `older_than` seconds (or a timedelta), and if its own and its far
        service have the names given. `batch`: endpoints examined in one step. `progress`: called
        with the result so far after each step. `dry_run`: only count the endpoints. Dangerous: a
        peer that lacks an acknowledgement sends its messages again (DLG-24).

        Raises:
            InvalidArgument: a state or another argument has the wrong form.
            BrokerError: an error common to all requests; see `Session`.
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
            BrokerError: an error common to all requests; see `Session`.
        """
        plain = {
            key: value.total_seconds() if isinstance(value, timedelta) else value
            for key, value in said.items()
        }
        return _map(await self._link.ask("alter_endpoint", (plain,)))

    async def retry_destination(self, address: str | None = None) -> int:
        """Connect to a suppressed destination now; return the number of destinations tried (NBT-8).

        `address`: None = every destination.

        Raises:
            ObjectNotFound: the instance has never sent to that address.
            InvalidArgument: the endpoint is not started.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = _map(await self._link.ask("retry_destination", (address,)))
        return msgspec.convert(answer["destinations"], int)

    async def confirm_clock(self) -> timedelta:
        """Accept a jump of the clock that the daemon has held back; return its size (REL-24).

        Timers and lifetimes that are over by the new time expire now.

        Raises:
            InvalidArgument: the daemon holds no jump back.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = _map(await self._link.ask("confirm_clock", ()))
        return timedelta(seconds=msgspec.convert(answer["seconds"], int))

    async def hand_over(self) -> list[str]:
        """Hand the stores over to a daemon that waits for them (REL-58).

        Return the machines of the daemons that wait. The daemon then stops in order, and waits in
        turn: this session loses its connection, and goes on at the other daemon if it has its
        address.

        Raises:
            InvalidArgument: the stores are in files, which no other daemon can use.
            Busy: no other daemon waits for the stores.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = _map(await self._link.ask("hand_over", ()))
        return msgspec.convert(answer["waiting"], list[str])

    async def explain_route(
        self,
        service: str | None = None,
        *,
        handle: bytes | None = None,
        broker_id: bytes | None = None,
        arriving: bool = False,
        reply: bool = False,
    ) -> RouteExplanation:
        """Return the destination of a service name, or of a dialog, and the steps to it (RTE-4).

        `service` or `handle`: the name of a service, or a dialog. `broker_id`: the only broker to
        send to. `arriving`: explain a message that arrives from another instance. `reply`: explain
        a message from the target. No message is sent, and no route loses its turn.

        Raises:
            InvalidArgument: neither `service` nor `handle` is given, or both are.
            ConversationNotFound: this broker has no open dialog with this handle.
            BrokerError: an error common to all requests; see `Session`.
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
        """Follow the routes of a service name, out like a first message and back like a reply.

        Every instance on the way reports the route that it uses, or why it stops (NBT-7). No dialog
        begins and no message is queued. `from_service`: the service that replies would go to, by
        default the first service of the broker. `wait`: seconds, or a timedelta, after which an
        incomplete answer is returned, with the steps known by then.

        Raises:
            ObjectNotFound: the service `from_service` does not exist.
            InvalidArgument: the broker has no service at all.
            BrokerError: an error common to all requests; see `Session`.
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

        The copy is consistent; the broker works on meanwhile. `path`: the absolute path of a new
        file on the daemon's machine, below a directory in `store.backup_dirs` (SX-22).

        Raises:
            InvalidArgument: the path is not allowed, or the file exists.
            BackupFailed: the copy could not be written; no file is left.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = _map(await self._link.ask("backup", (broker or self._broker, str(path))))
        return msgspec.convert(answer["bytes"], int)

    async def forget_broker(self, broker: str) -> str:
        """Remove a broker whose file is lost for good; return its identifier (MAN-18).

        Its name is then free for another broker.

        Raises:
            InUse: the file exists.
            ObjectNotFound: the instance has no such broker.
            InvalidArgument: the broker is msdb.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = _map(await self._link.ask("forget_broker", (wire_text(broker, "broker"),)))
        return msgspec.convert(answer["broker_id"], str)

    # Poison (PBT-3, PSN-11). `group` is a conversation group, as `group ls --parked` shows it.

    async def release_group(
        self, group: bytes, reason: str = "", broker: str | None = None
    ) -> None:
        """Release a parked group, or one that waits for its next attempt (PBT-3).

        Its messages can be received again, and its rollbacks count from 0. `reason`: a text for the
        log.

        Raises:
            GroupNotFound: the group does not exist.
            InvalidArgument: the group is neither parked nor waiting, or one of its messages is
                damaged (REL-6).
            BrokerError: an error common to all requests; see `Session`.
        """
        await self._of_group("release_group", broker, group, reason)

    async def discard_group(
        self,
        group: bytes,
        reason: str = "",
        broker: str | None = None,
        *,
        everything: bool = False,
        message: bytes | None = None,
    ) -> int:
        """Delete the next message of a group, or all its messages; return the number deleted.

        The next message is the one that would be received first; `everything`: delete all. If a
        message is damaged, only that one is deleted, at any position (REL-6). The group is
        released. The other side is not notified; it regards the messages as delivered. `reason`: a
        text for the log. `message`: the id of the message for which you have seen the group held.

        Raises:
            GroupNotFound: the group does not exist.
            InvalidState: the group is held for another message than `message`.
            InvalidArgument: the group's queue was dropped, or the message cannot be reached.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._of_group(
            "discard_group", broker, group, everything, reason, *_if_given(message)
        )
        return msgspec.convert(answer["messages"], int)

    async def end_group(
        self, group: bytes, code: int, description: str, broker: str | None = None
    ) -> int:
        """End every dialog of a group with an error; return the number of dialogs.

        The messages of the group are deleted. Handlers of this side see neither an end nor an
        error (PSN-11).

        Raises:
            GroupNotFound: the group does not exist.
            InvalidArgument: `code` is not above 0, or `description` is empty.
            BrokerError: an error common to all requests; see `Session`.
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
        message: bytes | None = None,
    ) -> Edited:
        """Replace the body of the next message of a group, and release the group.

        The next message is the one that would be received first. `body`: None = no body.
        `as_it_is`: accept a body that is not JSON even if the old body is; a reader that expects
        JSON will then end the dialog. `reason`: a text for the log. `message`: the id of the
        message for which you have seen the group held.

        Raises:
            ValidationFailed: the message type does not accept the body, or the old body was JSON
                and the new one is not.
            GroupNotFound: the group does not exist.
            InvalidState: the group is held for another message than `message`.
            InvalidArgument: the group has no message, or its next message is a system message.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._of_group(
            "edit_group", broker, group, body, reason, as_it_is, *_if_given(message)
        )
        return msgspec.convert(answer, Edited)

    async def cure_queue(
        self, queue: str, code: int, description: str, broker: str | None = None
    ) -> str:
        """End the dialog for which a queue was switched off, and switch the queue on (PSN-11).

        Return the conversation id of the dialog. To inspect its message first, use
        `session.browse(queue)`.

        Raises:
            QueueNotFound: the queue does not exist.
            InvalidState: the queue is not off because of a dialog.
            BrokerError: an error common to all requests; see `Session`.
        """
        asked = (broker or self._broker, wire_text(queue, "queue"), code, description)
        answer = _map(await self._link.ask("cure_queue", asked))
        return msgspec.convert(answer["conversation_id"], str)

    async def drain_queue(
        self, queue: str, broker: str | None = None, *, grace: Duration = DEFAULT_GRACE
    ) -> Drained:
        """Switch the activation of a queue off and let its readers end (PBT-25).

        The receives of its readers return no messages, and reader processes get SIGTERM. A reader
        that runs longer than `grace` (seconds, or a timedelta) is ended, and its transaction rolled
        back; this rollback does not count for poison. Receives of other clients that wait on the
        queue at this moment return no messages. This call returns when the readers have ended. The
        queue stays on; `alter("queue", NAME, activation={"status": "on"})` starts readers again.

        Raises:
            QueueNotFound: the queue does not exist.
            BrokerError: an error common to all requests; see `Session`.
        """
        asked = (broker or self._broker, wire_text(queue, "queue"), _seconds(grace))
        return msgspec.convert(await self._link.ask("drain_queue", asked), Drained)

    async def open_page(self) -> PageAddress:
        """Return an address at which a browser is let in with the rights of this client (MON-28).

        Raises:
            ObjectNotFound: the daemon has no HTTP listener that browsers reach.
            BrokerError: an error common to all requests; see `Session`.
        """
        return msgspec.convert(await self._link.ask("open_page", ()), PageAddress)

    async def purge_queue(
        self,
        queue: str,
        code: int,
        description: str,
        broker: str | None = None,
        *,
        after: int | None = None,
    ) -> Purged:
        """End the dialogs of the next batch of a queue's messages with an error (MAN-24).

        The messages are deleted, and the other side of each dialog gets the error. Repeat it with
        `after`, the `next` of the answer before, until that is None. Dialogs whose group a
        transaction has are left.

        Raises:
            QueueNotFound: the queue does not exist.
            InvalidArgument: `code` is not above 0, or `description` is empty.
            BrokerError: an error common to all requests; see `Session`.
        """
        asked = (broker or self._broker, wire_text(queue, "queue"), code, description, after)
        return msgspec.convert(await self._link.ask("purge_queue", asked), Purged)

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


def _if_given(message: bytes | None) -> tuple[bytes, ...]:
    """Return the last argument of a verb, or nothing: older daemons do not take it."""
    return () if message is None else (wire_id(message, "message"),)


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
