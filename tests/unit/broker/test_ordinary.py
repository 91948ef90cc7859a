"""Each condition of `broker.ordinary` decides: if it alone is not met, nothing is ordinary."""

import ast
import inspect
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.broker import ordinary
from brokerd.broker.checks import CatalogIndex
from brokerd.ids import ServiceKey
from brokerd.model import (
    MAX_LIFETIME,
    POST_EVENT_NOTIFICATION,
    Contract,
    MessageType,
    SentBy,
    Service,
    Validation,
)
from brokerd.protocol.frames import END, ERROR
from brokerd.security.grants import Rights

TALK = Contract("talk", {"Ask": SentBy.INITIATOR, "Answer": SentBy.TARGET, "Plan": SentBy.ANY})
NO_RIGHTS = Rights()
TYPES = {
    "Ask": MessageType("Ask"),
    "Answer": MessageType("Answer"),
    "Plan": MessageType("Plan", Validation.WELL_FORMED_JSON),
}
Parts = SimpleNamespace


def parts() -> Any:
    """What the questions are about, with every condition met."""
    services = {
        "desk": Service(ServiceKey(1), "desk", "desk"),
        "shop": Service(ServiceKey(2), "shop", "shop", frozenset({"talk"})),
    }
    contracts = {"talk": TALK, POST_EVENT_NOTIFICATION: TALK}
    broker = Parts(
        name="main",
        options=Parts(fast_paths=True, large_body=300, max_message=200),
        enabled=True,
        is_full=False,
        is_watched=False,
        retains=False,
        keeps_states=False,
        timers=Parts(any=False),
        checked_on_send=frozenset[str](),
        message_types=TYPES,
        catalog_index=CatalogIndex(message_types=TYPES, contracts=contracts, services=services),
        queues={"shop": Parts(queue=Parts(enqueue_enabled=True))},
        always_here=lambda _service: True,
        inspection=Parts(
            concerns=lambda kind, size: bool(size > 100 and kind.validation),
            overrun=lambda _kind, _body: "",
            evaluate=lambda _kind, _body: "",
        ),
    )
    live = Parts(
        is_local=True,
        peer=Parts(gone=False),
        endpoint=Parts(
            bound=True,
            far_broker=b"far",
            service="shop",
            contract="talk",
            receive_sequence=7,
            receive_fragment=0,
        ),
        delivers_directly=lambda: True,
        outgoing=Parts(held=None),
        gone=False,
        ready=[],
        unpublished=[],
        beyond=0,
        parts=[],
        group=Parts(held=None),
        queue=Parts(
            queue=Parts(enqueue_enabled=True),
            room=object(),
            is_at_limit=lambda _messages, _size: False,
        ),
    )
    item = Parts(
        flags=0,
        fragments=1,
        sequence=7,
        body=b"b" * 200,
        from_broker=b"far",
        to_service="shop",
        contract="talk",
    )
    return Parts(
        broker=broker,
        live=live,
        item=item,
        closing=Parts(outgoing=None),
        group=Parts(holder=None, line=[]),
        tx=Parts(failure=None),
        rights=Rights(receive=("main/desk",), send=("shop",)),
        queue=Parts(retains=False, name="desk"),
        message_type="Ask",
        size=200,
        from_initiator=True,
        terms=Parts(from_service="desk", to_service="shop", contract="talk", lifetime=MAX_LIFETIME),
    )


def may_send(one: Any) -> bool:
    return ordinary.may_send(one.broker, one.group, one.queue, one.size, one.tx, one.rights)


def may_converse(one: Any) -> bool:
    terms = one.terms
    return ordinary.may_converse(
        one.broker, terms.from_service, terms.to_service, terms.contract, terms.lifetime
    )


def may_close(one: Any) -> bool:
    one.live.outgoing = one.closing.outgoing
    return ordinary.may_close(one.broker, one.live)


QUESTIONS: dict[str, Callable[[Any], bool]] = {
    "may_send": may_send,
    "may_send_type": lambda one: ordinary.may_send_type(
        one.broker, TALK, one.message_type, from_initiator=one.from_initiator
    ),
    "may_hand_over": lambda one: ordinary.may_hand_over(one.broker, one.live),
    "may_leave": lambda one: ordinary.may_leave(one.broker, one.live),
    "may_act": lambda one: ordinary.may_act(one.broker, one.queue, one.rights),
    "may_begin": lambda one: ordinary.may_begin(one.broker, "shop", one.rights),
    "may_end": lambda one: ordinary.may_end(one.broker, one.tx),
    "may_converse": may_converse,
    "may_close": may_close,
    "may_arrive": lambda one: ordinary.may_arrive(one.broker, one.live, one.item),
    "names_match": lambda one: ordinary.names_match(one.live.endpoint, one.item),
}
UNMET: list[tuple[str, str, object]] = [
    ("may_send", "broker.options.fast_paths", False),
    ("may_send", "group.holder", "another"),
    ("may_send", "group.line", ["waiter"]),
    ("may_send", "tx.failure", Exception()),
    ("may_send", "rights", NO_RIGHTS),
    ("may_act", "rights", NO_RIGHTS),
    ("may_begin", "rights", NO_RIGHTS),
    ("may_send", "broker.is_full", True),
    ("may_send", "broker.options.large_body", 200),
    ("may_send", "broker.options.max_message", 199),
    ("may_send", "queue.retains", True),
    ("may_send_type", "broker.checked_on_send", frozenset({"Ask"})),
    ("may_send_type", "from_initiator", False),
    ("may_hand_over", "broker.enabled", False),
    ("may_hand_over", "live.is_local", False),
    ("may_hand_over", "live.peer", None),
    ("may_hand_over", "live.peer.gone", True),
    ("may_hand_over", "live.endpoint.bound", False),
    ("may_hand_over", "live.delivers_directly", lambda: False),
    ("may_leave", "broker.enabled", False),
    ("may_leave", "live.outgoing", None),
    ("may_leave", "live.outgoing.held", "held_after_end"),
    ("may_end", "broker.options.fast_paths", False),
    ("may_end", "tx.failure", Exception()),
    ("may_converse", "broker.enabled", False),
    ("may_converse", "broker.is_watched", True),
    ("may_converse", "terms.contract", POST_EVENT_NOTIFICATION),
    ("may_converse", "terms.from_service", "nobody"),
    ("may_converse", "terms.contract", "unknown"),
    ("may_converse", "terms.lifetime", MAX_LIFETIME + 1),
    ("may_converse", "terms.to_service", "elsewhere"),
    ("may_converse", "terms.to_service", "desk"),
    ("may_converse", "broker.queues.shop.queue.enqueue_enabled", False),
    ("may_converse", "broker.always_here", lambda _service: False),
    ("may_close", "broker.options.fast_paths", False),
    ("may_close", "live.is_local", False),
    ("may_close", "live.gone", True),
    ("may_close", "closing.outgoing", object()),
    ("may_close", "live.ready", ["message"]),
    ("may_close", "live.unpublished", ["row"]),
    ("may_close", "live.beyond", 1),
    ("may_close", "live.parts", [b"part"]),
    ("may_close", "live.endpoint.receive_fragment", 1),
    ("may_close", "live.group.held", object()),
    ("may_close", "broker.is_watched", True),
    ("may_close", "broker.retains", True),
    ("may_close", "broker.keeps_states", True),
    ("may_close", "broker.timers.any", True),
    ("may_arrive", "broker.options.fast_paths", False),
    ("may_arrive", "broker.enabled", False),
    ("may_arrive", "broker.is_full", True),
    ("may_arrive", "item.flags", END),
    ("may_arrive", "item.flags", ERROR),
    ("may_arrive", "item.fragments", 2),
    ("may_arrive", "item.sequence", 8),
    ("may_arrive", "broker.options.max_message", 199),
    ("may_arrive", "live.queue.queue.enqueue_enabled", False),
    ("may_arrive", "live.queue.is_at_limit", lambda _messages, _size: True),
    ("names_match", "item.from_broker", b"stray"),
    ("names_match", "item.to_service", "desk"),
    ("names_match", "item.contract", "other"),
]


@pytest.mark.rule(
    "OBJ-4", "REL-26", "SND-25", "REL-33", "SND-12", "RCV-31", "PBT-14", "OBJ-28", "SND-14",
    "SND-15", "DLP-43", "XMT-3", "EVT-10", "OBJ-27", "DLG-2", "DLG-10", "DLP-40", "OBJ-40",
    "REL-42", "DLP-11", "DSP-11", "DLG-33", "DLG-T16", "DLG-T17", "REL-35", "DLG-41", "DLP-45",
    "DLP-48",
)  # fmt: skip
@pytest.mark.parametrize(("question", "path", "value"), UNMET)
def test_each_condition_decides(question: str, path: str, value: object) -> None:
    one = parts()
    assert QUESTIONS[question](one)
    *owners, last = path.split(".")
    owner = one
    for name in owners:
        owner = owner[name] if isinstance(owner, dict) else getattr(owner, name)
    setattr(owner, last, value)
    assert not QUESTIONS[question](one)


def test_the_table_has_every_condition() -> None:
    """A new condition without a row here would be one that no test holds."""
    rows = Counter(question for question, *_ in UNMET)
    rows["may_arrive"] -= 1  # flags have two
    found = {}
    for one in ast.parse(inspect.getsource(ordinary)).body:
        if isinstance(one, ast.FunctionDef) and isinstance(one.body[-1], ast.Return):
            value = one.body[-1].value
            if isinstance(value, ast.BoolOp):
                # The first of two ways, "it has all rights", is met by those without limits.
                found[one.name] = len(value.values) - isinstance(value.op, ast.Or)
    assert found == rows


@pytest.mark.rule("REL-42")
def test_what_comes_before_it_counts_for_a_message_and_a_queue_without_limits_takes_all() -> None:
    def is_at_limit(messages: int, size: int) -> bool:
        return messages >= 2 or size >= 100

    queue: Any = Parts(room=object(), is_at_limit=is_at_limit)
    assert ordinary.may_fill(queue)
    assert ordinary.may_fill(queue, 1, 99)
    assert not ordinary.may_fill(queue, 2)
    assert not ordinary.may_fill(queue, 1, 100)
    queue.room = None
    assert ordinary.may_fill(queue, 2, 100)


@pytest.mark.rule("GRP-4", "GRP-9")
@pytest.mark.parametrize("line", [[], ["waiter"]])
def test_a_transaction_has_its_own_lock_whoever_waits_for_it(line: list[str]) -> None:
    one = parts()
    one.group = Parts(holder=one.tx, line=line)
    assert may_send(one)
    one.tx = None
    assert not may_send(one)


@pytest.mark.rule("OBJ-18", "OBJ-29", "OBJ-62")
def test_the_target_accepts_what_it_need_not_wait_for() -> None:
    def accepts(message_type: str, body: bytes | None, *, checked: bool, why: str = "") -> bool:
        broker = parts().broker
        broker.inspection.overrun = lambda _kind, _body: why
        checks = ordinary.TargetChecks(broker, checked=checked)
        return checks.accept(TALK, message_type, body, from_initiator=True)

    assert accepts("Ask", b"x", checked=False)
    assert not accepts("Answer", b"x", checked=False), "not for this side to send"
    assert not accepts("No such type", b"x", checked=False)
    assert accepts("Plan", b"{}", checked=False)
    assert not accepts("Plan", b"{", checked=False)
    large = b'"' + b"x" * 200 + b'"'
    assert not accepts("Plan", large, checked=False), "its check was not requested"
    assert accepts("Plan", large, checked=True)
    assert not accepts("Plan", large, checked=True, why="it took too long")


def test_the_kind_accepted_last_is_not_checked_again_unless_its_bodies_decide() -> None:
    broker = parts().broker
    checks = ordinary.TargetChecks(broker)
    for message_type, good in (("Ask", b"x"), ("Plan", b"{}")):
        assert checks.accept(TALK, message_type, good, from_initiator=True)
    assert not checks.accept(TALK, "Plan", b"{", from_initiator=True)
