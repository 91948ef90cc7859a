"""Subscriptions: what they want, how a broken dialog is replaced, what is still owed."""

from datetime import timedelta

import pytest

from brokerd.clock import Instant
from brokerd.events.subscription import (
    Event,
    NotifierOptions,
    Owed,
    Subscription,
    broken,
    fan_in,
    keep,
    opened,
    postponed,
    sent,
    wants,
)
from brokerd.ids import BrokerId, Handle, NotificationKey
from brokerd.model import EventNotification, Scope
from brokerd.objects.event_names import (
    ACTIVATION_FAILED,
    ALL,
    BROKER_CONVERSATION,
    BROKER_QUEUE_DISABLED,
    DDL,
    GROUP_PARKED,
    GROUPS,
    OF_A_QUEUE,
    QUEUE_ACTIVATION,
    QUEUE_STATUS_CHANGED,
    TRACES,
    expand,
    refusal,
)
from brokerd.protocol.backoff import reopen_delay

OPTIONS = NotifierOptions()


def definition(name: str = "n", key: int = 1, **given: object) -> EventNotification:
    values: dict[str, object] = {"events": frozenset({QUEUE_ACTIVATION}), "service": "ops"}
    return EventNotification(name=name, key=NotificationKey(key), **{**values, **given})  # type: ignore[arg-type]


def event(name: str = QUEUE_ACTIVATION, queue: str | None = "q") -> Event:
    return Event(name, "main", queue, f"main/{queue}", b"{}")


def owed(key: int, name: str, subject: str = "main/q") -> Owed:
    return Owed(key, name, subject, b"%d" % key)


# Names.


@pytest.mark.rule("EVT-2")
def test_a_queue_may_be_asked_for_exactly_these_events() -> None:
    assert {
        "QUEUE_ACTIVATION",
        "BROKER_QUEUE_DISABLED",
        "QUEUE_STATUS_CHANGED",
        "GROUP_PARKED",
        "ACTIVATION_FAILED",
    } == OF_A_QUEUE
    for word in ALL | GROUPS.keys():
        assert (refusal(word, Scope.QUEUE) == "") == (expand((word,)) <= OF_A_QUEUE)


@pytest.mark.rule("EVT-1", "EVT-11")
def test_groups_stand_for_events_and_unknown_words_are_refused() -> None:
    binding = "REMOTE_SERVICE_BINDING"
    alone = ("MESSAGE_TYPE", "CONTRACT", "QUEUE", "SERVICE", "ROUTE", "EVENT_NOTIFICATION", binding)
    for kind in alone:
        each = {f"CREATE_{kind}", f"ALTER_{kind}", f"DROP_{kind}"}
        assert expand([f"DDL_{kind}_EVENTS"]) == each
    kinds = ("QUEUE", "SERVICE", "CONTRACT", "MESSAGE_TYPE", "ROUTE", "BROKER_PRIORITY", binding)
    assert expand(["DDL_SSB_EVENTS"]) == {
        f"{verb}_{kind}" for verb in ("CREATE", "ALTER", "DROP") for kind in kinds
    }
    assert expand(["TRC_BROKER"]) == TRACES | {BROKER_QUEUE_DISABLED}
    assert "no event" in refusal("QUEUE_ACTIVATED", Scope.BROKER)
    assert expand(["QUEUE_ACTIVATED"]) == frozenset()


@pytest.mark.rule("EVT-2", "EVT-11")
@pytest.mark.parametrize("scope", [Scope.BROKER, Scope.INSTANCE])
def test_a_broker_or_instance_may_be_asked_for_all_but_activation(scope: Scope) -> None:
    assert {word for word in ALL if refusal(word, scope)} == {QUEUE_ACTIVATION}
    assert not any(refusal(word, scope) for word in GROUPS)


# Wanting.


@pytest.mark.rule("EVT-1", "EVT-2")
@pytest.mark.parametrize(
    ("scope", "queue", "happened", "at_home", "wanted"),
    [
        (Scope.QUEUE, "q", event(), True, True),
        (Scope.QUEUE, "q", event(queue="other"), True, False),
        (Scope.QUEUE, "q", event(), False, False),
        (Scope.BROKER, None, event(), True, True),
        (Scope.BROKER, None, event(), False, False),
        (Scope.INSTANCE, None, event(), False, True),
        (Scope.INSTANCE, None, event("DROP_QUEUE"), True, False),
    ],
)
def test_what_a_notification_is_about(
    scope: Scope, queue: str | None, happened: Event, at_home: bool, wanted: bool
) -> None:
    assert wants(definition(scope=scope, queue=queue), happened, at_home=at_home) is wanted


HOME = BrokerId(b"h" * 16)


@pytest.mark.rule("EVT-8")
def test_those_that_fan_in_share_one_message_for_each_target() -> None:
    shared = [Subscription(definition(f"n{n}", n, fan_in=True)) for n in (3, 1, 2)]
    alone = Subscription(definition("alone", 4))
    elsewhere = Subscription(definition("far", 5, fan_in=True, broker_id=b"b" * 16))
    other = Subscription(definition("other", 6, fan_in=True, service="oncall"))
    named = Subscription(definition("named", 7, fan_in=True, broker_id=HOME))
    told = fan_in([*shared, alone, elsewhere, other, named], home=HOME)
    assert sorted(told) == [1, 4, 5, 6]
    in_trouble = postponed(shared[1], why="", now=0.0, options=OPTIONS)
    assert fan_in([shared[0], in_trouble, shared[2]], home=HOME) == [2]
    assert fan_in([], home=HOME) == []


# Healing.


@pytest.mark.rule("PBT-15", "EVT-5")
@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (99, 300)]
)
def test_delay_doubles_up_to_five_minutes(failures: int, seconds: int) -> None:
    assert reopen_delay(failures) == timedelta(seconds=seconds)


@pytest.mark.rule("PBT-15")
def test_a_dialog_that_worked_is_replaced_at_once_and_others_later_and_later() -> None:
    one = opened(Subscription(definition()), Handle(b"h" * 16))
    assert one.is_due(0.0)
    waits = []
    now = 100.0
    for _ in range(3):
        one = broken(one, worked=False, why="no", now=now, options=OPTIONS)
        assert one.handle is None
        assert not one.is_due(now)
        waits.append(one.retry_at - now)
        now = one.retry_at
        assert one.is_due(now)
        one = opened(one, Handle(b"i" * 16))
    assert waits == [5.0, 10.0, 20.0]
    assert (one.failures, one.last_error) == (3, "no")
    one = broken(one, worked=True, why="ended", now=now, options=OPTIONS)
    assert (one.failures, one.handle) == (0, None)
    assert one.is_due(now)


@pytest.mark.rule("PBT-15")
def test_what_could_not_be_sent_waits_on_the_same_dialog() -> None:
    one = opened(Subscription(definition()), Handle(b"h" * 16))
    after = postponed(one, why="busy", now=1.0, options=OPTIONS)
    assert (after.handle, after.retry_at, after.last_error) == (one.handle, 6.0, "busy")
    assert sent(after, Instant(7)).owed == ()


# Coalescing.


@pytest.mark.rule("PBT-15")
def test_the_latest_activation_of_each_queue_is_kept_and_every_queue_disabled() -> None:
    first = keep(
        (),
        [
            owed(1, QUEUE_ACTIVATION),
            owed(2, BROKER_QUEUE_DISABLED),
            owed(3, QUEUE_ACTIVATION, "main/other"),
            owed(4, BROKER_QUEUE_DISABLED),
        ],
        traces=0,
    )
    assert [one.key for one in first.owed] == [1, 2, 3, 4]
    second = keep(first.owed, [owed(5, QUEUE_ACTIVATION), owed(6, QUEUE_ACTIVATION)], traces=0)
    assert [one.key for one in second.owed] == [2, 3, 4, 6]
    assert ([one.key for one in second.added], second.gone, second.lost) == ([6], (1,), 0)


@pytest.mark.rule("PBT-15")
@pytest.mark.parametrize(
    "name", [QUEUE_STATUS_CHANGED, GROUP_PARKED, ACTIVATION_FAILED, *sorted(DDL)]
)
def test_what_somebody_did_or_has_to_look_at_is_kept_without_limit(name: str) -> None:
    assert keep((), [owed(n, name) for n in range(9)], traces=2).lost == 0


@pytest.mark.rule("PBT-15", "EVT-10")
def test_of_what_occurs_in_any_number_only_the_first_are_kept() -> None:
    kept = keep((), [owed(n, BROKER_CONVERSATION) for n in range(5)], traces=3)
    assert ([one.key for one in kept.owed], kept.lost) == ([0, 1, 2], 2)
    more = keep(kept.owed, [owed(9, BROKER_CONVERSATION), owed(10, "DROP_QUEUE")], traces=3)
    assert ([one.key for one in more.owed], more.lost) == ([0, 1, 2, 10], 1)
