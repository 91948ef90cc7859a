"""Mirrored routes: two instances share a broker's file, and one of them is principal."""

import sqlite3
from pathlib import Path

import pytest

from brokerd.errors import InvalidArgument
from brokerd.protocol.role import RoleQuestion
from tests.integration.mirrored import LEFT, RIGHT, SENDER, TAKEN_OVER, Trio, mirrored

pytestmark = pytest.mark.of_files("partners share the file of a broker")

TEN = list(range(1, 11))


@pytest.mark.rule("RTE-51", "RTE-52", "RTE-55", "RTE-57", "RTE-V3", "VIEW-10", "MON-3")
@mirrored
async def test_both_are_asked_and_the_principal_is_used(rig: Trio) -> None:
    assert await rig.part(rig.left) == ("principal", 1)
    assert await rig.part(rig.right) == ("mirror", 1)
    assert (await rig.route())["mirror_state"] == "not_operational"
    await rig.send(3)
    await rig.pass_time(2)
    assert await rig.work(rig.left) == [1, 2, 3]
    await rig.pass_time(1)
    assert await rig.answers() == [1, 2, 3]
    route = await rig.route()
    assert (route["mirror_state"], route["current_principal"]) == (
        "operational",
        f"tcp://{LEFT}:4022",
    )
    explained = await rig.sender.session.admin.explain_route("orders")
    assert [step.step for step in explained.steps][-2:] == ["A", "mirror"]


@pytest.mark.rule("RTE-53", "RTE-55", "RTE-59")
@mirrored
async def test_a_killed_principal_is_followed_by_its_mirror_and_back(rig: Trio) -> None:
    await rig.send(4)
    await rig.pass_time(2)
    assert await rig.work(rig.left) == [1, 2, 3, 4]
    await rig.send(3)
    rig.left.crash()
    await rig.send(3)
    await rig.pass_time(TAKEN_OVER + 15)
    assert await rig.part(rig.right) == ("principal", 2)
    await rig.left.start()
    await rig.pass_time(TAKEN_OVER)
    assert await rig.part(rig.left) == ("mirror", 2)
    assert await rig.work(rig.right) == [5, 6, 7, 8, 9, 10]
    await rig.pass_time(5)
    assert await rig.answers() == TEN

    rig.right.crash()
    await rig.send(2)
    await rig.pass_time(TAKEN_OVER + 30)
    assert await rig.part(rig.left) == ("principal", 3)
    assert await rig.work(rig.left) == [11, 12]
    await rig.pass_time(5)
    assert await rig.answers() == [11, 12]
    assert (await rig.route())["current_principal"] == f"tcp://{LEFT}:4022"
    await rig.right.start()


@pytest.mark.rule("RTE-54", "RTE-56", "RTE-57")
@mirrored
async def test_while_nobody_else_claims_the_role_nothing_is_sent(rig: Trio) -> None:
    await rig.send(2)
    await rig.pass_time(2)
    to_right = rig.sender.instance.parts.destinations.status(f"tcp://{RIGHT}:4022")
    rig.network.cut("sender", LEFT)
    await rig.send(2)
    await rig.pass_time(60)
    assert await rig.status() == "mirror_error"
    assert (await rig.route())["mirror_state"] == "not_operational"
    assert await rig.part(rig.left) == ("principal", 1)  # the two can still talk to each other
    sent = {
        one.address: one.fragments_sent for one in rig.sender.instance.parts.destinations.known()
    }
    assert sent[to_right.address] == 0
    rig.network.heal("sender", LEFT)
    await rig.pass_time(80)
    assert await rig.work(rig.left) == [1, 2, 3, 4]
    await rig.pass_time(5)
    assert await rig.answers() == [1, 2, 3, 4]


@pytest.mark.rule("RTE-55", "REL-16")
@mirrored
async def test_a_stale_principal_is_not_believed_and_ends_itself(rig: Trio) -> None:
    await rig.send(1)
    await rig.pass_time(2)
    assert await rig.work(rig.left) == [1]
    (rig.shared / "app.db.lock").unlink()  # as on a file system whose locks do not hold
    await rig.pass_time(TAKEN_OVER)
    assert await rig.part(rig.right) == ("principal", 2)
    assert "its epoch is 2, here 1" in str(rig.left.instance.failed.result())
    await rig.send(1)
    await rig.pass_time(2)
    route = await rig.route()
    assert route["current_principal"] == f"tcp://{RIGHT}:4022"  # though left is still there
    assert await rig.work(rig.right) == [2]
    rig.left.crash()
    await rig.left.start()
    assert await rig.part(rig.left) == ("mirror", 2)


@pytest.mark.rule("RTE-53", "TRN-28")
@mirrored
async def test_a_principal_that_stops_in_order_while_nothing_is_sent_is_followed(rig: Trio) -> None:
    await rig.send(1)
    await rig.pass_time(200)  # idle connections are closed meanwhile
    assert await rig.work(rig.left) == [1]
    await rig.left.stop()
    rig.left._instance = None
    await rig.pass_time(TAKEN_OVER)
    assert await rig.part(rig.right) == ("principal", 2)
    await rig.send(1)
    await rig.pass_time(30)
    assert await rig.work(rig.right) == [2]


@pytest.mark.rule("RTE-57", "TRN-28")
@mirrored
async def test_connections_that_end_in_order_change_nothing_of_what_is_known(rig: Trio) -> None:
    await rig.send(1)
    await rig.pass_time(2)
    before = await rig.route()
    assert before["mirror_state"] == "operational"
    await rig.pass_time(200)
    assert rig.sender.instance.parts.destinations.neighbours() == []
    assert await rig.route() == before
    await rig.send(1)
    await rig.pass_time(1)
    assert await rig.work(rig.left) == [1, 2]


@pytest.mark.rule("RTE-53", "RTE-56")
@mirrored
async def test_a_principal_that_went_while_nobody_was_connected_is_left_at_the_next_pass(
    rig: Trio,
) -> None:
    """The mirror has nothing to say to the sender, who finds out by an attempt that fails."""
    await rig.send(1)
    await rig.pass_time(2)
    assert await rig.work(rig.left) == [1]
    await rig.pass_time(200)
    await rig.left.stop()
    rig.left._instance = None
    await rig.pass_time(TAKEN_OVER)
    assert await rig.part(rig.right) == ("principal", 2)
    assert rig.sender.instance.parts.destinations.neighbours() == []
    assert (await rig.route())["current_principal"] == f"tcp://{LEFT}:4022"
    await rig.send(1)
    await rig.pass_time(12)
    assert (await rig.route())["current_principal"] == f"tcp://{RIGHT}:4022"
    assert await rig.work(rig.right) == [2]


@pytest.mark.rule("RTE-55")
@pytest.mark.parametrize(("known", "is_found"), [(1, False), (2, True)])
def test_who_has_known_a_higher_epoch_makes_a_principal_look(
    known: int, is_found: bool, tmp_path: Path
) -> None:
    """At once: the next tick would find it as well."""

    @mirrored
    async def test(rig: Trio) -> None:
        ticker = rig.left.instance.parts.ticker
        ticks = ticker.ticks
        while ticker.ticks == ticks:  # so that the next tick is far
            await rig.pass_time(0.5)
        await rig.pass_time(1)
        mirroring, app = rig.left.instance.parts.mirroring, rig.left.instance.brokers["app"]
        with sqlite3.connect(rig.shared / "app.db") as store:
            store.execute("UPDATE store SET epoch = epoch + 1")
        store.close()
        answer = mirroring.answer(RoleQuestion(app.broker_id, known))
        assert (answer.role, answer.epoch) == ("principal", 1)
        await rig.pass_time(1)
        assert rig.left.instance.failed.done() is is_found
        await rig.pass_time(TAKEN_OVER)
        assert "its epoch is 2, here 1" in str(rig.left.instance.failed.result())
        rig.left.crash()
        await rig.left.start()

    test(tmp_path)


@pytest.mark.rule("MAN-11", "RTE-55")
@mirrored
async def test_no_backup_is_written_where_the_partners_look_for_stores(rig: Trio) -> None:
    rig.left.instance.parts.administration._upkeep._backup_dirs = [rig.shared]
    with pytest.raises(InvalidArgument, match=f"would lie in {rig.shared},"):
        await rig.left.session.admin.backup(rig.shared / "copy.db")
    assert not (rig.shared / "copy.db").exists()


@pytest.mark.rule("RTE-58")
@mirrored
async def test_what_was_learned_is_forgotten_with_the_route(rig: Trio) -> None:
    await rig.send(1)
    await rig.pass_time(2)
    mirrors = rig.sender.instance.parts.mirrors
    assert len(mirrors._known) == 1
    assert await rig.work(rig.left) == [1]
    await rig.sender.session.drop("route", "to_orders")
    assert not mirrors._known


@pytest.mark.rule("RTE-42", "RTE-51")
@mirrored
async def test_a_partner_sends_to_the_shared_broker_by_the_same_route(rig: Trio) -> None:
    app = rig.left.instance.brokers["app"]
    for one in (rig.left, rig.right):
        await one.session.create(
            "route",
            "to_orders",
            service="orders",
            broker=app.broker_id.hex(),
            address=f"TCP://{LEFT}:4022",
            mirror=f"TCP://{RIGHT}:4022",
        )
        handle = await one.session.begin_dialog(one.name, "orders", "DEFAULT")
        await one.session.send(handle, b"7", "DEFAULT")
    await rig.pass_time(15)
    async with await rig.at(rig.left) as session:
        found = []
        while messages := await session.receive("orders_q", wait=0, autocommit=True):
            found += [one.body for one in messages]
    assert found == [b"7", b"7"]


@pytest.mark.rule("RTE-71", "RTE-55")
@pytest.mark.parametrize("how", ["killed", "stopped", "cut off", "lock lost"])
def test_a_failover_is_no_duplicate_of_the_broker(how: str, tmp_path: Path) -> None:
    """The sender is connected with both, and hears both name the broker, one after the other."""

    @mirrored
    async def failover(rig: Trio) -> None:
        await rig.send(1)
        await rig.pass_time(2)
        assert len(rig.sender.instance.parts.destinations.neighbours()) == 2
        if how == "cut off":
            rig.network.cut(SENDER, LEFT)
        if how == "lock lost":
            (rig.shared / "app.db.lock").unlink()
            await rig.pass_time(TAKEN_OVER)
        if how == "stopped":
            await rig.left.stop()
            rig.left._instance = None
        else:
            rig.left.crash()
        await rig.pass_time(TAKEN_OVER)
        assert (await rig.part(rig.right))[0] == "principal"
        for _ in range(20):
            await rig.send(1)
            await rig.pass_time(10)
            assert rig.sender.instance.parts.duplicate_brokers.rows() == []
        assert await rig.work(rig.right) == list(range(1, 22))

    failover(tmp_path)
