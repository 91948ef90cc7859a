"""Mirrors: who is asked, when, and what is told of it (RTE-51 to RTE-58)."""

import asyncio

import pytest

from brokerd.clock import Instant
from brokerd.delivery.peers.mirrors import ASK_EVERY, Around, Mirrors
from brokerd.ids import BrokerId
from brokerd.protocol.role import RoleAnswer, RoleQuestion
from brokerd.routing.mirror import Pair, Role, Standing, Unresolved
from brokerd.routing.reasons import Reason
from brokerd.telemetry.log import NullLog
from brokerd.telemetry.logs import MIRRORED_ROUTE

P, M, OWN = "tcp://p:4022", "tcp://m:4022", "tcp://own:4022"
ID = BrokerId(b"i" * 16)
PAIR = Pair(P, M, ID)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> Instant:
        return Instant(0)

    async def sleep_until(self, deadline: float) -> None:
        raise NotImplementedError


class Log(NullLog):
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, object]] = []

    def info(self, event: str, **fields: object) -> None:
        assert event == MIRRORED_ROUTE
        assert hash(tuple(fields.values()))  # what is repeated is summed up (MON-11)
        self.lines.append(("info", str(fields["subclass"]), fields["principal"]))

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append(("warning", str(fields["subclass"]), fields["principal"]))

    def error(self, event: str, **fields: object) -> None:
        self.lines.append(("error", str(fields["subclass"]), fields["principal"]))


class Known:
    """Mirrors, and what goes on around it."""

    def __init__(self) -> None:
        self.clock, self.log = Clock(), Log()
        self.asked: list[tuple[str, int]] = []
        self.suppressed: set[str] = set()
        self.changed: list[Pair] = []
        self.mirrors = Mirrors(clock=self.clock, log=self.log)
        self.mirrors.around = Around(
            ask=self._ask,
            is_suppressed=self.suppressed.__contains__,
            is_own=OWN.__eq__,
            own=lambda _id: Standing(Role.PRINCIPAL, 9),
            changed=self.changed.append,
        )
        self.mirrors.keep({PAIR: ["main.r"], Pair(OWN, M, ID): ["main.own"]})

    def _ask(self, address: str, question: RoleQuestion) -> None:
        self.asked.append((address, question.epoch))

    def reason(self) -> Reason:
        found = self.mirrors.principal(PAIR)
        assert isinstance(found, Unresolved)
        return found.reason


@pytest.mark.rule("RTE-51", "RTE-52", "RTE-56")
async def test_both_are_asked_at_first_use_and_not_with_everything_that_comes() -> None:
    one = Known()
    assert one.mirrors.peek(PAIR) == one.mirrors.principal(PAIR)
    for _ in range(5):
        assert one.reason() is Reason.MIRROR_INITIALISING
    assert one.asked == [(P, 0), (M, 0)]
    one.clock.now += ASK_EVERY
    one.reason()
    assert len(one.asked) == 4
    one.mirrors.record_role([P, "tcp://elsewhere:1"], RoleAnswer(ID, "principal", 5))
    await asyncio.sleep(0)
    assert one.changed == [PAIR]
    assert [one.mirrors.principal(PAIR) for _ in range(3)] == [P] * 3
    assert len(one.asked) == 4  # the other one is not contacted any more


@pytest.mark.rule("RTE-53", "RTE-54", "RTE-55", "RTE-57")
async def test_a_place_that_cannot_be_reached_is_no_principal_and_both_are_asked() -> None:
    one = Known()
    one.reason()
    one.mirrors.record_role([P], RoleAnswer(ID, "principal", 5))
    one.mirrors.record_role([M], RoleAnswer(ID, "something of a later version", 5))
    one.mirrors.record_role([M], RoleAnswer(BrokerId(b"?" * 16), "principal", 50))
    one.suppressed.add(P)
    one.asked.clear()
    assert one.mirrors.check_addresses() == 1
    assert one.reason() is Reason.MIRROR_ERROR
    assert one.asked == [(P, 5), (M, 5)]  # whoever is older than this is stale
    one.mirrors.record_role([M], RoleAnswer(ID, "principal", 5))
    one.mirrors.record_role([M], RoleAnswer(ID, "principal", 6))
    assert one.mirrors.principal(PAIR) == M
    assert one.log.lines == [
        ("info", "principal_only", P),
        ("info", "operational", P),
        ("warning", "not_operational", None),
        ("error", "not_operational", None),
        ("info", "principal_only", M),
    ]


@pytest.mark.rule("RTE-51", "RTE-42")
async def test_this_instance_is_not_asked_over_the_network_and_the_answer_serves_at_once() -> None:
    one = Known()
    assert one.mirrors.principal(Pair(OWN, M, ID)) == OWN
    assert one.asked == [(M, 9)]


@pytest.mark.rule("RTE-58")
async def test_a_route_that_goes_takes_what_was_learned_with_it() -> None:
    one = Known()
    one.reason()
    one.mirrors.record_role([P], RoleAnswer(ID, "principal", 5))
    one.mirrors.keep({})
    await asyncio.sleep(0)
    assert one.changed == []
    assert isinstance(one.mirrors.peek(PAIR), Unresolved)
