"""Comparing: what the engine said, against what the model says, column by column.

Identifiers that the broker draws are learned when first seen, and must stay; the order in which
the model puts messages on a queue must be that of their `queuing_order`.
"""

import asyncio
from collections import Counter
from typing import Any

from brokerd.client.messages import Message as Real
from brokerd.client.messages import read_messages
from brokerd.clock import SECOND
from brokerd.errors import BrokerError
from brokerd.ids import show
from tests.model.engine import START, Engine
from tests.model.reference.model import Model
from tests.model.reference.state import (
    ERROR,
    READY,
    SENT,
    Endpoint,
    Group,
    Message,
    Transaction,
)


class Comparing:
    """Compares one engine with one model."""

    def __init__(self, engine: Engine, model: Model) -> None:
        self._engine = engine
        self._model = model
        self.repeated = False
        """Requests have been repeated: nobody knows exactly when they were performed."""
        self._full: dict[str, bool] = {}
        self._drawn: dict[bytes, object] = {}
        self._orders: dict[str, dict[int, tuple[int, int]]] = {}

    # Answers.

    def outcome(
        self,
        future: "asyncio.Future[Any]",
        codes: tuple[str, ...],
        value: object = None,
        tx: Transaction | None = None,
    ) -> None:
        """The answer to a request."""
        error = future.exception()
        if error is not None or codes:
            found = error.code if isinstance(error, BrokerError) else repr(error)
            assert error is not None, f"it succeeded; the model says {codes}"
            assert found in codes, (
                f"it failed with {found}: {error}; the model says {codes or 'ok'}"
            )
            return
        answer = future.result()
        if isinstance(value, list):
            assert tx is not None
            self._messages(read_messages(answer), value, tx)
        elif isinstance(value, Group):
            self._learn(value, "id", answer)
        else:
            assert answer == value, f"the answer is {answer!r}; the model says {value!r}"

    def _messages(self, real: list[Real], model: list[Message], tx: Transaction) -> None:
        told = [(one.sequence, one.message_type, one.body) for one in real]
        mine = [(one.sequence, one.message_type, one.body) for one in model]
        assert len(told) == len(mine), f"received {told}; the model says {mine}"
        for each, one in zip(real, model, strict=True):
            self._message(each, one, tx)

    def _message(self, real: Real, model: Message, tx: Transaction) -> None:
        """A received message."""
        self._columns(real, model, tx.group_of(model.endpoint))
        assert model.rollbacks <= real.delivery_count <= model.rollbacks + model.doubtful, (
            f"delivery_count is {real.delivery_count}; the model says {model.rollbacks}"
        )

    def _columns(self, real: Real, model: Message, group: Group) -> None:
        endpoint = model.endpoint
        if endpoint.handle is None:
            self._learn(endpoint, "handle", real.handle)
        for name, wanted in {
            "handle": endpoint.handle,
            "sequence": model.sequence,
            "message_type": model.message_type,
            "service": endpoint.service,
            "contract": endpoint.dialog.contract,
            "priority": endpoint.level,
            "validation": model.validation,
            "timer_name": model.timer_name,
        }.items():
            self._same(name, getattr(real, name), wanted)
        if model.message_type == ERROR:
            self._error(real, model)
        else:
            self._same("body", real.body, model.body)
            self._same("headers", real.headers, model.headers)
        at = (real.enqueued_at - START) / SECOND
        assert model.earliest - 0.1 <= at <= self._engine.now, f"enqueued_at is {at}"
        self._learn(endpoint.dialog, "id", real.conversation_id)
        self._learn(group, "id", real.group_id)
        self._learn(model, "id", real.message_id)
        self._order(real, model)

    def _error(self, real: Real, model: Message) -> None:
        error = real.error
        assert error is not None
        assert error.number in model.codes if model.codes else error.number < 0, (
            f"an Error of {error.number}; the model says {model.codes}"
        )

    def _order(self, real: Real, model: Message) -> None:
        if model.queuing_order is not None:
            self._same("queuing_order", real.queuing_order, model.queuing_order)
            return
        model.queuing_order = real.queuing_order
        known = self._orders.setdefault(model.endpoint.queue, {})
        for order, (first, last) in known.items():
            assert order != real.queuing_order, f"queuing_order {order} is used twice"
            is_before = order < real.queuing_order
            right = first <= model.rank if is_before else model.first_rank <= last
            assert right, f"queuing_order {real.queuing_order} is on the wrong side of {order}"
        known[real.queuing_order] = model.first_rank, model.rank

    def _learn(self, thing: Any, name: str, value: bytes) -> None:
        known = getattr(thing, name)
        if known is None:
            assert value not in self._drawn, f"{name} {value.hex()} has been used before"
            setattr(thing, name, value)
        self._drawn.setdefault(value, thing)
        self._same(f"{name} of {type(thing).__name__}", value, getattr(thing, name))

    def _same(self, name: str, real: object, model: object) -> None:
        assert real == model, f"{name} is {real!r}; the model says {model!r}"

    # Views.

    def views(self, *, browses: bool = True) -> None:
        """What is committed, as the views show it; what is on the queues if it `browses`."""
        self._endpoints(self._engine.view("conversation_endpoints"))
        self._queues(self._engine.view("service_queues"))
        if browses or any(one.frozen or one.waiting for one in self._model.endpoints):
            self._frozen(self._engine.view("transmission_queue"))
        for queue in self._model.catalog.queues:
            full = any(one.messages or one.retained for one in self._model.on_queue(queue))
            if browses and (full or self._full.get(queue)):
                self._browsed(queue, self._engine.browse(queue))
            self._full[queue] = full or not browses

    def is_kept(self, handle: bytes) -> bool:
        """Whether an ended conversation is still there, as closed."""
        rows = self._engine.view("conversation_endpoints")
        return any(_bytes(row["conversation_handle"]) == handle for row in rows)

    def _endpoints(self, rows: list[dict[str, Any]]) -> None:
        left = list(self._model.endpoints)
        for row in sorted(rows, key=lambda row: not row["is_initiator"]):
            if (
                row["state"] == "CD"
                and _bytes(row["conversation_handle"]) in self._model.tombstones
            ):
                continue
            endpoint = next((one for one in left if self._is(one, row)), None)
            assert endpoint is not None, f"an endpoint that should not be there: {row}"
            left.remove(endpoint)
            self._endpoint(endpoint, row)
        assert not left, f"endpoints that are missing: {[_describe(one) for one in left]}"

    def _is(self, endpoint: Endpoint, row: dict[str, Any]) -> bool:
        if endpoint.handle is not None:
            return bool(row["conversation_handle"] == show(endpoint.handle))
        dialog = endpoint.dialog
        mine = endpoint.is_initiator == bool(row["is_initiator"])
        if dialog.id is not None:
            return mine and row["conversation_id"] == show(dialog.id)
        if dialog.initiator is not None or self._is_known(row["conversation_id"]):
            return False
        told = (row["service_id"], row["far_service"], row["state"])
        return mine and told == (endpoint.service, endpoint.far_service, endpoint.state)

    def _is_known(self, conversation_id: str) -> bool:
        dialogs = (one.dialog for one in self._model.endpoints)
        return any(one.id is not None and show(one.id) == conversation_id for one in dialogs)

    def meet(self) -> None:
        """Learn the names of what has just come into being, as the view shows them: an answer may
        name one of several before anybody has looked which it is."""
        rows = self._engine.view("conversation_endpoints")
        for row in sorted(rows, key=lambda row: not row["is_initiator"]):
            endpoint = next((one for one in self._model.endpoints if self._is(one, row)), None)
            if endpoint is None:
                continue
            if None in (endpoint.handle, endpoint.group.id, endpoint.dialog.id):
                self._learn_names(endpoint, row)

    def _learn_names(self, endpoint: Endpoint, row: dict[str, Any]) -> None:
        if endpoint.handle is None:
            self._learn(endpoint, "handle", _bytes(row["conversation_handle"]))
        self._learn(endpoint.dialog, "id", _bytes(row["conversation_id"]))
        self._learn(endpoint.group, "id", _bytes(row["conversation_group_id"]))

    def _endpoint(self, endpoint: Endpoint, row: dict[str, Any]) -> None:
        self._learn_names(endpoint, row)
        about = f"of {endpoint.handle!r}"
        self._same(f"state {about}", row["state"], endpoint.state)
        self._same(f"service {about}", row["service_id"], endpoint.service)
        self._same(f"far_service {about}", row["far_service"], endpoint.far_service)
        self._same(f"contract {about}", row["service_contract_id"], endpoint.dialog.contract)
        self._same(f"priority {about}", row["priority"], endpoint.level)
        self._same(f"send_sequence {about}", row["send_sequence"], endpoint.next_sequence)
        at = (row["lifetime"] - START) / SECOND
        off = abs(at - endpoint.dialog.expires_at)
        assert off < (5 if self.repeated else 0.1), f"lifetime {about} ends at {at}"
        endpoint.dialog.expires_at = at

    def _queues(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["name"] not in self._model.catalog.queues:
                continue
            messages = [
                message
                for one in self._model.on_queue(row["name"])
                for message in one.messages
                if message.status == READY
            ]
            taken = sum(1 for one in messages if one.taker is not None)
            ready: int = row.get("ready_count", row.get("ready", -1))
            assert len(messages) - taken <= ready <= len(messages), (
                f"{ready} messages are ready on {row['name']}; the model says {len(messages)}"
            )
            kept = sum(len(one.retained) for one in self._model.on_queue(row["name"]))
            if "retained_count" in row:
                self._same(f"retained_count of {row['name']}", row["retained_count"], kept)

    def _browsed(self, queue: str, rows: list[Real]) -> None:
        """The rows of a queue: what is ready or received, in order, and what was sent."""
        owners = list(self._model.on_queue(queue))
        wanted = [each for one in owners for each in (*one.messages, *one.retained)]
        incoming = [row for row in rows if row.status != SENT]
        for row in incoming:
            same = [one for one in wanted if one.endpoint.handle == row.handle]
            same = [one for one in same if _kind(one) == (row.status, row.sequence)]
            same = [one for one in same if one.queuing_order in (None, row.queuing_order)]
            assert same, f"a row on {queue} that should not be there: {row}"
            first = min(same, key=lambda one: (one.queuing_order is None, one.rank))
            wanted.remove(first)
            self._columns(row, first, first.endpoint.group)
        told = Counter(
            (row.handle, row.sequence, row.body, repr(row.headers))
            for row in rows
            if row.status == SENT
        )
        mine = Counter(
            (one.endpoint.handle, one.sequence, one.body, repr(one.headers))
            for one in wanted
            if one.status == SENT
        )
        assert told == mine, f"sent copies on {queue}: {told}; the model says {mine}"
        left = [(one.endpoint.handle, _kind(one)) for one in wanted if one.status != SENT]
        assert not left, f"rows missing on {queue}: {left}"

    def _frozen(self, rows: list[dict[str, Any]]) -> None:
        real = Counter(row["conversation_handle"] for row in rows)
        mine = Counter(
            {
                show(one.handle or b""): len(one.frozen) + len(one.waiting)
                for one in self._model.endpoints
                if one.frozen or one.waiting
            }
        )
        assert real == mine, f"the transmission queue has {rows}; the model says {mine}"


def _kind(message: Message) -> tuple[int, int]:
    return message.status, message.sequence


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


def _describe(endpoint: Endpoint) -> str:
    return f"{endpoint.service} to {endpoint.far_service}, {endpoint.handle!r}"
