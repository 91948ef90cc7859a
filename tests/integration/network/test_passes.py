"""When the network's parts are notified (CLK-1 to CLK-3)."""

import pytest

from brokerd.testing.rig import Rig, RigClock

PERIODS = {
    "dispatcher": 1,
    "queue_monitors": 1,
    "mirrors": 1,
    "transmitter": 2,
    "transport_connect": 2,
    "idle_connections": 5,
    "forwarder": 5,
    "absent_brokers": 5,
    "dynamic_routing": 5,
    "closed_endpoints": 5,
    "removals": 1,
}
"""The passes that CLK-2 names, in the order of CLK-3: every how many ticks."""


@pytest.mark.rule("CLK-1", "CLK-2", "CLK-3")
async def test_every_part_has_its_turn_and_its_period(
    brokerd_rig: Rig, brokerd_clock: RigClock
) -> None:
    (one,) = await brokerd_rig.add("one")
    before = {row["task"]: row["runs"] for row in await one.session.view("periodic_tasks")}
    await brokerd_clock.advance(5 * 5 * 4)
    rows = {row["task"]: row for row in await one.session.view("periodic_tasks")}
    assert {name: rows[name]["period"] for name in PERIODS} == PERIODS
    for name, period in PERIODS.items():
        assert rows[name]["runs"] - before[name] == 20 / period
    order = list(one.instance.parts.ticker.states)
    places = [order.index(name) for name in PERIODS]
    assert places == sorted(places)
