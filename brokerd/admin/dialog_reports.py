"""Reports of dialogs: one side as this instance knows it, the other by inquiry (MON-52).

Reads:  endpoints, waiting messages, held groups, error events.    Calls: views, peers.ping.
Never:  reads a body, takes a lock, or tells a peer about a dialog that the peer is no side of.
Fails:  an inquiry of a peer fails alone; it is answered as if the dialog were not known.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from brokerd.admin.views.state import StateReport
from brokerd.admin.views.views import Views
from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.clock import Clock, Instant
from brokerd.delivery.peers.ping import Pinging
from brokerd.errors import BrokerError, ConversationNotFound
from brokerd.ids import BrokerId, ConversationId, Handle, show
from brokerd.protocol.admin_verbs import DialogTimeline, ViewOptions
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.inquiry import LATEST, MOST, Incident, Inquiry, SideReport, Waiting
from brokerd.protocol.trace import Leg, Trace
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import DAEMON

Row = dict[str, object]
Spawn = Callable[[Coroutine[Any, Any, None]], object]
_KEY: Final = 64


class DialogReports:
    """The reporter of the dialogs of one instance."""

    def __init__(
        self,
        *,
        instance: str,
        brokers: Mapping[str, Broker],
        views: Views,
        state: StateReport,
        pinging: Pinging,
        clock: Clock,
        spawn: Spawn,
        log: Log,
    ) -> None:
        self._instance = instance
        self._brokers = brokers
        self._views = views
        self._state = state
        self._pinging = pinging
        self._clock = clock
        self._spawn = spawn
        self._log = log

    async def timeline(self, broker: Broker, verb: DialogTimeline) -> Row:
        """Answer `dialog_timeline`: the reports of both sides, and the way between them (MON-55).

        Raises `ConversationNotFound` if this broker has no endpoint with the handle."""
        live, endpoint = await _find(broker, Handle(verb.handle))
        if endpoint is None:
            raise ConversationNotFound(f"no conversation {show(verb.handle)} is open here")
        near = await self._side(broker, live, endpoint)
        far: SideReport | None
        steps: object = []
        other, seconds = self._home_of_other(broker, live, endpoint), 0.0
        if other is not None:
            far = await self._other_side(other, endpoint)
        else:
            asked = await self._pinging.inquire(broker, endpoint, wait=verb.wait)
            far, seconds = asked.report, asked.seconds
            steps = msgspec.to_builtins(asked.steps)
        return {
            "conversation_handle": show(endpoint.handle),
            "conversation_id": show(endpoint.conversation_id),
            "service": endpoint.service,
            "far_service": endpoint.far_service,
            "is_in_one_instance": other is not None,
            "near": msgspec.to_builtins(near),
            "far": None if far is None else msgspec.to_builtins(far),
            "steps": steps,
            "seconds": seconds,
        }

    def report(self, broker: Broker, trace: Trace, done: Callable[[SideReport], None]) -> None:
        """Make the report that the TRACE of a peer asks a broker for, and pass it on (MON-55)."""
        self._spawn(self._answer(broker, trace, done))

    async def _answer(
        self, broker: Broker, trace: Trace, done: Callable[[SideReport], None]
    ) -> None:
        """Make a report. Whatever a peer asks, at whatever moment, must not end the instance."""
        inquiry = trace.inquiry
        assert inquiry is not None, "it asks"
        try:
            try:
                side = await self._asked_side(broker, trace, inquiry)
            except BrokerError:  # its store is being closed, for one
                side = None
            if self._brokers.get(broker.name) is not broker:
                return  # nobody is left to answer
            done(side or self._unknown(is_initiator=inquiry.about_initiator))
        except Exception as error:  # noqa: BLE001  # per request, as per command
            self._log.error(DAEMON, subclass="inquiry_failed", exc_info=error)

    async def _asked_side(
        self, broker: Broker, trace: Trace, inquiry: Inquiry
    ) -> SideReport | None:
        """Return what a peer may learn about a dialog; None = nothing."""
        if self._brokers.get(broker.name) is not broker:
            return None
        live, endpoint = await _find_side(
            broker, ConversationId(inquiry.conversation_id), inquiry.about_initiator
        )
        # The question must come from the services and brokers of the dialog: nobody else may learn
        # how it is.
        target, initiator = trace.service, trace.from_service
        asking = trace.from_broker if trace.leg is Leg.OUT else trace.broker_id
        mine, theirs = (initiator, target) if inquiry.about_initiator else (target, initiator)
        if (
            endpoint is None
            or (endpoint.service, endpoint.far_service) != (mine, theirs)
            or endpoint.far_broker not in (None, BrokerId(asking))
        ):
            return None
        side = await self._side(broker, live, endpoint)
        # addresses of this network are no business of a peer
        return msgspec.structs.replace(side, destination="")

    def _unknown(self, *, is_initiator: bool) -> SideReport:
        return SideReport(
            now=self._clock.utc(),
            instance=self._instance,
            is_known=False,
            is_initiator=is_initiator,
        )

    def _home_of_other(
        self, broker: Broker, live: Live | None, endpoint: DialogEndpoint
    ) -> Broker | None:
        """Return the broker of the other side, if it is one of this instance."""
        if live is not None and live.is_local:
            return broker
        if endpoint.far_broker is None:
            return None
        found = (one for one in self._brokers.values() if one.broker_id == endpoint.far_broker)
        return next(found, None)

    async def _other_side(self, broker: Broker, endpoint: DialogEndpoint) -> SideReport:
        about_initiator = not endpoint.is_initiator
        live, other = await _find_side(broker, endpoint.conversation_id, about_initiator)
        if other is None:
            return self._unknown(is_initiator=about_initiator)
        return await self._side(broker, live, other)

    async def _side(
        self, broker: Broker, live: Live | None, endpoint: DialogEndpoint
    ) -> SideReport:
        """Return the report of an endpoint of this instance."""
        handle = show(endpoint.handle)
        row = await self._first(broker, "conversation_endpoints", conversation_handle=handle)
        out = None if live is None else live.outgoing
        key, _ = ("", "") if out is None else self._state.explain(out)
        tried = None if out is None or not key else self._state.attempts(broker, out)
        held = broker.held.by_id.get(endpoint.group_id)
        holds = held is not None and held.holds
        group = broker.groups.get(endpoint.group_id)
        service = broker.services.get(endpoint.service)
        queue = None if service is None else broker.queues.get(service.queue)
        pending = 0 if out is None else out.pending
        return SideReport(
            now=self._clock.utc(),
            instance=self._instance,
            is_initiator=endpoint.is_initiator,
            state=str(endpoint.state),
            began_at=endpoint.began_at,
            state_since=endpoint.state_since,
            expires_at=min(endpoint.expires_at, LATEST),
            sent=endpoint.sent,
            pending=pending,
            received=endpoint.received,
            unread=0 if row is None else int(str(row["unread_count"])),
            discarded=endpoint.discarded,
            is_bound=endpoint.bound,
            end_sequence=endpoint.end_sequence,
            far_end_sequence=endpoint.far_end_sequence,
            error_code=endpoint.error_code,
            status_key=key[:_KEY],
            status_since=None if out is None or not key else out.route.status_since(key),
            attempts=0 if tried is None else tried.times,
            last_attempt_at=None if tried is None else tried.last_at,
            next_attempt_at=None if tried is None else tried.next_at,
            destination="" if out is None else (out.route.address or "")[:512],
            is_queue_on=queue is None or queue.queue.receive_enabled,
            is_parked=holds,
            parked_at=held.row.parked_at if held is not None and holds else None,
            retry_at=held.row.retry_at if held is not None and holds else None,
            is_locked=group is not None and group.holder is not None,
            waiting=await self._waiting(broker, handle) if pending else (),
            queued=_queued(live),
            incidents=await self._incidents(broker, endpoint),
        )

    async def _waiting(self, broker: Broker, handle: str) -> tuple[Waiting, ...]:
        options = ViewOptions(where={"conversation_handle": handle}, limit=MOST)
        rows: list[Any] = (await self._views.page(broker, "transmission_queue", options)).rows
        return tuple(
            Waiting(
                row["message_sequence_number"],
                row["enqueue_time"],
                row["fragments_total"],
                row["fragments_acked"],
            )
            for row in rows
        )

    async def _incidents(self, broker: Broker, endpoint: DialogEndpoint) -> tuple[Incident, ...]:
        where = {
            "broker_name": broker.name,
            "conversation_id": show(endpoint.conversation_id),
            "is_initiator": endpoint.is_initiator,
        }
        options = ViewOptions(where=where, limit=1000)
        rows: list[Any] = (await self._views.page(broker, "error_events", options)).rows
        return tuple(
            Incident(
                row["at"],
                str(row["subclass"] or row["event"])[:_KEY],
                row["code"] if type(row["code"]) is int else None,
            )
            for row in rows[-MOST:]
        )

    async def _first(self, broker: Broker, view: str, **where: object) -> Row | None:
        page = await self._views.page(broker, view, ViewOptions(where=where, limit=1))
        return page.rows[0] if page.rows else None


def _queued(live: Live | None) -> tuple[Waiting, ...]:
    """Return the oldest messages in memory that wait to be received."""
    if live is None:
        return ()
    first = [one for one, _ in zip(live.ready, range(MOST), strict=False)]
    return tuple(Waiting(max(-1, one.sequence), Instant(one.enqueued_at)) for one in first)


async def _find(broker: Broker, handle: Handle) -> tuple[Live | None, DialogEndpoint | None]:
    live = broker.endpoints.find(handle)
    if live is not None:
        return live, live.endpoint
    return None, await broker.store.endpoints.by_handle(handle)


async def _find_side(
    broker: Broker,
    conversation: ConversationId,
    is_initiator: bool,
) -> tuple[Live | None, DialogEndpoint | None]:
    live = broker.endpoints.find_conversation(conversation, is_initiator)
    if live is not None:
        return live, live.endpoint
    return None, await broker.store.endpoints.by_conversation(conversation, is_initiator)
