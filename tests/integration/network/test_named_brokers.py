"""What neighbours are told of the brokers that an instance delivers for (TRN-46)."""

from collections.abc import Callable

import pytest

from brokerd.ids import InstanceId
from brokerd.protocol.brokers import BrokersHere
from brokerd.testing.rig import RigClock, RigInstance
from tests.integration.network.conftest import Pair, talk


class Told:
    """Which brokers another instance has named, frame by frame."""

    def __init__(self, at: RigInstance) -> None:
        self.sets: list[frozenset[bytes]] = []
        duplicates = at.instance.parts.duplicate_brokers
        self._hand_on: Callable[[InstanceId, BrokersHere], None] = duplicates.record_list
        duplicates.record_list = self._told  # type: ignore[method-assign]

    def _told(self, peer: InstanceId, named: BrokersHere) -> None:
        self.sets.append(frozenset(named.broker_ids))
        self._hand_on(peer, named)


def delivering(one: RigInstance) -> frozenset[bytes]:
    """The ids of the brokers whose delivery is on, but for msdb."""
    those = one.instance.brokers.items()
    return frozenset(
        bytes(broker.broker_id) for name, broker in those if name != "msdb" and broker.enabled
    )


@pytest.mark.rule("TRN-46")
async def test_the_whole_set_is_told_at_the_login_and_at_each_change(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    told, mine, admin = Told(two), delivering(one), one.session.admin
    await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    assert told.sets == [mine]
    await one.session.apply({"broker": [{"name": "east"}]})
    await brokerd_clock.advance(1)
    both = delivering(one)
    assert (told.sets[-1], len(both)) == (both, 2)
    await admin.disable("east")
    await brokerd_clock.advance(1)
    assert told.sets[-1] == mine
    await admin.enable("east")
    await brokerd_clock.advance(1)
    assert told.sets[-1] == both
    await admin.new_broker("east")
    await brokerd_clock.advance(1)
    assert told.sets[-1] == delivering(one) != both
    frames = len(told.sets)
    await one.session.alter("broker", "main", honor_priority="on")  # no change of the set
    await brokerd_clock.advance(60)
    assert len(told.sets) == frames


@pytest.mark.rule("TRN-46")
async def test_flow_control_does_not_hold_it_back(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    told = Told(two)
    handle = await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    two.instance.parts.destinations.pause_receiving()
    for _ in range(16):
        await one.session.send(handle, bytes(1024 * 1024))
    await brokerd_clock.advance(5)
    (row,) = await one.session.view("connections")
    assert row["is_send_flow_controlled"] is True
    await one.session.apply({"broker": [{"name": "east"}]})
    two.instance.parts.destinations.resume_receiving()
    await brokerd_clock.advance(30)
    assert told.sets[-1] == delivering(one)
    assert len(told.sets) == 2
