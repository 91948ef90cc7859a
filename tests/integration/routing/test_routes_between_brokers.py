"""Dialogs between the brokers of one daemon go where the routes of the sending broker lead.

Services: `urn:shared` is in `b2` and `b3`, `urn:only` in `b2` alone. What explains a route has to
name the place where the message is then found.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from brokerd.client.session import Session
from brokerd.ids import BrokerId, Handle, show
from brokerd.model import AUTO_CREATED_LOCAL
from brokerd.protocol.frames import AckOnly, Fragment, Item
from brokerd.protocol.transitions import State
from tests.integration.one_daemon import OBJECTS, Daemon
from tests.integration.scenarios import given

SHARED = "urn:shared"
ONLY = "urn:only"
TARGETS = ("b2", "b3")


def _declared(name: str, *services: str) -> dict[str, Any]:
    return {
        "broker": {"name": name, "default_encryption": "off"},
        "message_type": OBJECTS["message_type"],
        "contract": OBJECTS["contract"],
        "queue": [{"name": "box"}],
        "service": [{"name": one, "queue": "box", "contracts": ["talk"]} for one in services],
    }


class Brokers:
    """`main`, which sends, and two brokers that may be meant."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.sessions: dict[str, Session] = {}

    @property
    def main(self) -> Session:
        """A client of the sending broker."""
        return self.sessions["main"]

    def id_of(self, name: str) -> BrokerId:
        """The identifier of a broker."""
        return self.daemon.instance.brokers[name].broker_id

    async def connect(self) -> None:
        """Open a client of each broker."""
        for name in ("main", *TARGETS):
            self.sessions[name] = await self.daemon.session(broker=name)

    async def restart(self) -> None:
        """Stop the daemon in order, and start it again."""
        for session in self.sessions.values():
            await session.close()
        await self.daemon.restart()
        await self.connect()

    async def send(self, service: str = SHARED, body: bytes = b"1") -> bytes:
        """Begin a dialog and send its first message."""
        handle = await self.main.begin_dialog("urn:desk", service, "talk")
        await self.main.send(handle, body, "Ask")
        await self.daemon.pass_time(1)
        return handle

    async def arrived(self) -> dict[str, list[bytes | None]]:
        """Receive what is in the queues of the two brokers."""
        found: dict[str, list[bytes | None]] = {}
        for name in TARGETS:
            if not self.daemon.instance.brokers[name].queues["box"].queue.is_on:
                continue
            async with self.sessions[name].transaction() as tx:
                while messages := await tx.receive("box", 100):
                    found.setdefault(name, []).extend(one.body for one in messages)
        return found

    async def key(self, handle: bytes) -> tuple[str, str]:
        """Why what a dialog sends waits: key and detail."""
        status = await self.main.transmission_status(handle)
        return status.status_key, status.transmission_status

    def endpoints(self, name: str) -> int:
        """Dialog endpoints that a broker holds."""
        return len(list(self.daemon.instance.brokers[name].endpoints.all()))

    def bound_to(self, handle: bytes) -> bytes | None:
        """The far broker of a dialog of the sender."""
        live = self.daemon.broker.endpoints.find(Handle(handle))
        assert live is not None
        return live.endpoint.far_broker if live.endpoint.bound else None


@asynccontextmanager
async def _three(daemon: Daemon, _folder: Path) -> AsyncIterator[tuple[Brokers]]:
    async with await daemon.session() as admin:
        await admin.apply(_declared("b2", SHARED, ONLY))
        await admin.apply(_declared("b3", SHARED))
    brokers = Brokers(daemon)
    await brokers.connect()
    try:
        yield (brokers,)
    finally:
        for session in brokers.sessions.values():
            await session.close()


three = given(_three)
"""Runs the test with three brokers of one daemon and a client of each."""


async def _route(brokers: Brokers, service: str, target: str, name: str = "way") -> None:
    await brokers.main.create(
        "route", name, service=service, broker=show(brokers.id_of(target)), address="LOCAL"
    )


@pytest.mark.rule("RTE-2", "RTE-30", "RTE-31")
@three
async def test_the_broker_that_the_route_names_gets_the_dialog(brokers: Brokers) -> None:
    await _route(brokers, SHARED, "b3")
    handle = await brokers.send()
    assert await brokers.arrived() == {"b3": [b"1"]}
    assert brokers.bound_to(handle) == brokers.id_of("b3")
    await brokers.main.send(handle, b"2", "Ask")
    await brokers.daemon.pass_time(1)
    assert await brokers.arrived() == {"b3": [b"2"]}
    assert brokers.endpoints("b2") == 0


@pytest.mark.rule("XMT-5")
@three
async def test_a_dialog_within_the_instance_is_classified_once(brokers: Brokers) -> None:
    handle = await brokers.send()
    await brokers.main.send(handle, b"2", "Ask")
    await brokers.daemon.pass_time(1)
    lines = [
        line
        for event, line in brokers.daemon.log.lines
        if event == "broker.message_classify" and line.get("broker") == "main"
    ]
    assert [(one["subclass"], one["next_address"], one["route"]) for one in lines] == [
        ("local", "LOCAL", AUTO_CREATED_LOCAL.name)
    ]


@pytest.mark.rule("XMT-9", "XMT-11", "RTE-16")
@three
async def test_a_service_that_is_made_gets_what_waits_for_it_before_the_next_pass(
    brokers: Brokers,
) -> None:
    new, daemon = "urn:new", brokers.daemon
    handle = await brokers.send(new)
    assert (await brokers.key(handle))[0] == "local_service_missing"
    runs = daemon.instance.parts.ticker.states["transmitter"].runs
    await brokers.sessions["b3"].create("service", new, queue="box", contracts=["talk"])
    await daemon.pass_time(0.1)
    assert await brokers.arrived() == {"b3": [b"1"]}
    assert daemon.instance.parts.ticker.states["transmitter"].runs == runs


@pytest.mark.rule("XMT-15")
@three
async def test_an_error_on_the_way_to_another_broker_pauses_the_transmitter_too(
    brokers: Brokers,
) -> None:
    handle = await brokers.send()
    assert await brokers.arrived() == {"b2": [b"1"]}
    daemon = brokers.daemon
    with patch.object(
        daemon.instance.parts.transmitter, "_dequeue_items", side_effect=LookupError("a bug")
    ):
        await brokers.main.send(handle, b"2", "Ask")
        await daemon.pass_time(0.5)
    assert (await brokers.key(handle))[0] == "transmitter_paused"
    (line,) = [line for event, line in daemon.log.lines if event == "broker.transmission"]
    assert (line["operation"], line["ssb_code"]) == ("hand_over", 28072)
    await daemon.pass_time(4)
    assert await brokers.arrived() == {}
    await daemon.pass_time(1)
    assert await brokers.arrived() == {"b2": [b"2"]}


@pytest.mark.rule("RTE-31", "DLP-41", "DLG-6", "DLG-T6")
@three
async def test_a_named_broker_without_the_service_refuses(brokers: Brokers) -> None:
    """It does not go to the broker that has the service: the route says which one is meant."""
    await _route(brokers, ONLY, "b3")
    found = await brokers.main.admin.explain_route(ONLY)
    assert (found.outcome, found.where, found.route) == ("refused", "b3", "way")
    assert found.reason == "service_not_in_broker"
    ping = await brokers.main.admin.ping(ONLY, wait=1)
    assert not ping.is_complete
    assert [(one.leg, one.outcome, one.where) for one in ping.steps] == [("out", "refused", "b3")]
    handle = await brokers.send(ONLY)
    assert await brokers.arrived() == {}
    live = brokers.daemon.broker.endpoints.find(Handle(handle))
    assert live is not None
    assert live.endpoint.error_code == -8490


@pytest.mark.rule("RTE-1", "RTE-2", "RTE-30", "RTE-68")
@three
async def test_own_dialogs_do_not_need_the_routes_of_the_instance(brokers: Brokers) -> None:
    await brokers.main.drop("instance_route", AUTO_CREATED_LOCAL.name)
    handle = await brokers.send()
    assert await brokers.arrived() == {"b2": [b"1"]}
    assert brokers.bound_to(handle) == brokers.id_of("b2")


@pytest.mark.rule("RTE-1", "RTE-2", "RTE-30")
@three
async def test_own_dialogs_do_not_follow_the_routes_of_the_instance(brokers: Brokers) -> None:
    await brokers.main.create("instance_route", "away", service=SHARED, address="TCP://far:4022")
    await brokers.send()
    assert await brokers.arrived() == {"b2": [b"1"]}


@pytest.mark.rule("RTE-2")
@three
async def test_a_reply_goes_by_the_routes_of_the_broker_that_replies(brokers: Brokers) -> None:
    await brokers.main.drop("instance_route", AUTO_CREATED_LOCAL.name)
    handle = await brokers.send()
    async with brokers.sessions["b2"].transaction() as tx:
        (asked,) = await tx.receive("box")
        await tx.send(asked.handle, b"answer", "Answer")
    await brokers.daemon.pass_time(1)
    async with brokers.main.transaction() as tx:
        (answer,) = await tx.receive("desk")
    assert (answer.handle, answer.body) == (handle, b"answer")


@pytest.mark.rule("RTE-31", "XMT-7", "XMT-11")
@three
async def test_a_dialog_that_is_not_bound_moves_with_its_route(brokers: Brokers) -> None:
    """`b2` has refused its first message, so what the daemon remembers of it there is no reason."""
    await brokers.sessions["b2"].alter("queue", "box", status="off")
    await _route(brokers, SHARED, "b2")
    handle = await brokers.send()
    assert (await brokers.key(handle))[0] == "peer_queue_disabled"
    await brokers.main.alter("route", "way", broker=show(brokers.id_of("b3")))
    await brokers.daemon.pass_time(70)
    assert await brokers.arrived() == {"b3": [b"1"]}
    assert brokers.bound_to(handle) == brokers.id_of("b3")


@pytest.mark.rule("RTE-2", "RTE-31")
@three
async def test_a_restart_decides_by_the_same_routes(brokers: Brokers) -> None:
    await brokers.sessions["b3"].alter("queue", "box", status="off")
    await _route(brokers, SHARED, "b3")
    handle = await brokers.send()
    assert (await brokers.key(handle))[0] == "peer_queue_disabled"
    await brokers.restart()
    await brokers.sessions["b3"].alter("queue", "box", status="on")
    await brokers.daemon.pass_time(70)
    assert await brokers.arrived() == {"b3": [b"1"]}


@pytest.mark.rule("RTE-10", "RTE-25", "RTE-26", "RTE-29", "DLP-44", "REL-13")
@pytest.mark.parametrize("restart", [False, True])
def test_balanced_dialogs_keep_the_broker_they_were_given(tmp_path: Path, restart: bool) -> None:
    """Half of them each, also if the daemon stops before the first acknowledgement."""

    @three
    async def program(brokers: Brokers) -> None:
        await _route(brokers, SHARED, "b2", "to_b2")
        await _route(brokers, SHARED, "b3", "to_b3")
        for name in TARGETS:
            await brokers.sessions[name].alter("queue", "box", status="off")
        handles = [await brokers.send(body=b"%d" % n) for n in range(8)]
        decided = {}
        for handle in handles:
            found = await brokers.main.admin.explain_route(handle=handle)
            decided[handle] = found.where
        assert sorted(decided.values()) == ["b2"] * 4 + ["b3"] * 4
        if restart:
            await brokers.restart()
        else:
            await _route(brokers, SHARED, "main", "to_another")
        for name in TARGETS:
            await brokers.sessions[name].alter("queue", "box", status="on")
        await brokers.daemon.pass_time(70)
        arrived = await brokers.arrived()
        assert {
            name: sorted(b"%d" % n for n, one in enumerate(handles) if decided[one] == name)
            for name in TARGETS
        } == {name: sorted(map(bytes, found)) for name, found in arrived.items()}  # type: ignore[arg-type]
        assert {brokers.bound_to(one) for one in handles} == set(map(brokers.id_of, TARGETS))

    program(tmp_path)


@pytest.mark.rule("RTE-32")
@three
async def test_the_broker_that_holds_the_dialog_already_stays_its_target(brokers: Brokers) -> None:
    """Its acknowledgement is lost, and a broker that comes first by name gets the service."""
    instance = brokers.daemon.instance
    deliver = instance.parts.transmitter._deliver_here
    instance.parts.transmitter._deliver_here = lambda items: deliver(
        [one for one in items if one.from_initiator]
    )
    handle = await brokers.send()
    assert brokers.endpoints("b2") == 1
    assert brokers.bound_to(handle) is None
    await brokers.main.apply(_declared("a1", SHARED))
    instance.parts.transmitter._deliver_here = deliver
    await brokers.daemon.pass_time(70)
    assert brokers.bound_to(handle) == brokers.id_of("b2")
    assert brokers.endpoints("a1") == 0
    assert await brokers.arrived() == {"b2": [b"1"]}


_OWN = ("none", "id", "other id", "name", "away", "dropped")
_INSTANCE = ("none", "dropped", "away", "id")


async def _set_up(brokers: Brokers, own: str, instance: str) -> None:
    """Give the sender and the instance one of their forms of a routing table."""
    main = brokers.main
    b2, b3 = show(brokers.id_of("b2")), show(brokers.id_of("b3"))
    match own:
        case "id" | "other id":
            named = b3 if own == "id" else b2
            await main.create("route", "r", service=SHARED, broker=named, address="LOCAL")
        case "name":
            await main.create("route", "r", service=SHARED, address="LOCAL")
        case "away":
            await main.create("route", "r", service=SHARED, address="TCP://far:4022")
        case "dropped":
            await main.drop("route", AUTO_CREATED_LOCAL.name)
        case _:
            assert own == "none"
    match instance:
        case "dropped":
            await main.drop("instance_route", AUTO_CREATED_LOCAL.name)
        case "away":
            await main.create("instance_route", "i", service=SHARED, address="TCP://far:4022")
        case "id":
            await main.create("instance_route", "i", service=SHARED, broker=b3, address="LOCAL")
        case _:
            assert instance == "none"


@pytest.mark.rule("RTE-1", "RTE-2", "RTE-30", "RTE-31", "CLP-98", "NBT-7")
@pytest.mark.parametrize("instance", _INSTANCE)
@pytest.mark.parametrize("own", _OWN)
@pytest.mark.parametrize("pinned", [False, True])
def test_what_explains_names_where_the_message_is_found(
    tmp_path: Path, own: str, instance: str, pinned: bool
) -> None:
    @three
    async def program(brokers: Brokers) -> None:
        await _set_up(brokers, own, instance)
        named = brokers.id_of("b3") if pinned else None
        foreseen = await brokers.main.admin.explain_route(SHARED, broker_id=named)
        ping = await brokers.main.admin.ping(SHARED, broker_id=named, wait=1)
        handle = await brokers.main.begin_dialog("urn:desk", SHARED, "talk", broker_id=named)
        await brokers.main.send(handle, b"1", "Ask")
        await brokers.daemon.pass_time(1)
        found = await brokers.main.admin.explain_route(handle=handle)
        assert (found.outcome, found.where, found.reason) == (
            foreseen.outcome,
            foreseen.where,
            foreseen.reason,
        )
        first = ping.steps[0]
        assert (first.outcome, first.where) == (foreseen.outcome, foreseen.where)
        arrived = await brokers.arrived()
        key, _ = await brokers.key(handle)
        if found.outcome == "local":
            assert arrived == {found.where: [b"1"]}
            assert show(brokers.bound_to(handle) or b"") == show(brokers.id_of(found.where))
            assert ping.is_complete
        else:
            assert arrived == {}
            assert not ping.is_complete
            assert key == (found.reason or "transport_unavailable")

    program(tmp_path)


@pytest.mark.rule("RTE-31", "XMT-7", "DSP-13")
@three
async def test_fragments_held_for_the_former_broker_are_settled_before_others_are_taken(
    brokers: Brokers,
) -> None:
    """The dispatcher holds a fragment with a gap before it when the route changes."""
    instance = brokers.daemon.instance
    dispatcher = instance.parts.dispatcher
    kept: list[Item] = []
    instance.parts.transmitter._deliver_here = kept.extend
    await brokers.send()
    (first,) = kept
    targets = {name: _addressed(first, brokers.id_of(name)) for name in TARGETS}
    dispatcher.arrived([msgspec.structs.replace(targets["b2"], sequence=1)])
    dispatcher.arrived([targets["b3"]])
    assert dispatcher.dropped["route_changed"] == 1
    assert await brokers.arrived() == {}
    await brokers.daemon.pass_time(11)
    assert dispatcher.dropped["out_of_order"] == 1
    dispatcher.arrived([targets["b3"]])
    await brokers.daemon.pass_time(1)
    assert await brokers.arrived() == {"b3": [b"1"]}
    assert brokers.endpoints("b2") == 0


@pytest.mark.rule("RTE-33", "DSP-12")
@three
async def test_a_target_whose_delivery_is_off_by_now_drops_what_was_meant_for_it(
    brokers: Brokers,
) -> None:
    instance = brokers.daemon.instance
    kept: list[Item] = []
    instance.parts.transmitter._deliver_here = kept.extend
    await brokers.send()
    await brokers.main.admin.disable("b2")
    before = instance.parts.dispatcher.dropped["broker_disabled"]
    instance.parts.dispatcher.arrived(kept)
    assert instance.parts.dispatcher.dropped["broker_disabled"] == before + len(kept)
    assert brokers.endpoints("b2") == brokers.endpoints("b3") == 0


def _addressed(item: Item, target: BrokerId) -> Item:
    return msgspec.structs.replace(item, hop=msgspec.structs.replace(item.hop, local_target=target))


@pytest.mark.rule("DLP-45", "DLP-41", "ERR-8495", "NBT-12", "DLG-45")
@pytest.mark.parametrize("says", ["an acknowledgement", "a message"])
def test_a_stray_target_is_told_and_ends_whatever_it_says(tmp_path: Path, says: str) -> None:
    """`b3` has the dialog, and its first message came to `b2` as well."""

    @three
    async def program(brokers: Brokers) -> None:
        instance = brokers.daemon.instance
        deliver = instance.parts.transmitter._deliver_here
        kept: list[Item] = []

        def pass_on(items: list[Item]) -> None:
            kept.extend(items)
            acks = () if says == "an acknowledgement" else (AckOnly,)
            stray = brokers.id_of("b2")
            deliver([one for one in items if one.from_broker != stray or type(one) not in acks])

        await _route(brokers, SHARED, "b3")
        instance.parts.transmitter._deliver_here = pass_on
        handle = await brokers.send()
        assert brokers.bound_to(handle) == brokers.id_of("b3")
        first = next(one for one in kept if type(one) is Fragment)
        instance.parts.dispatcher.arrived([_addressed(first, brokers.id_of("b2"))])
        await brokers.daemon.pass_time(1)
        if says == "a message":
            async with brokers.sessions["b2"].transaction() as tx:
                (asked,) = await tx.receive("box")
                await tx.send(asked.handle, b"from a stray", "Answer")
            await brokers.daemon.pass_time(1)
        (stray,) = brokers.daemon.instance.brokers["b2"].endpoints.all()
        assert (stray.endpoint.state, stray.endpoint.error_code) == (State.ERROR, -8495)

        assert (await brokers.key(handle))[0] == ""  # its own dialog goes on
        async with brokers.sessions["b3"].transaction() as tx:
            (asked,) = await tx.receive("box")
            await tx.send(asked.handle, b"from the target", "Answer")
        await brokers.daemon.pass_time(1)
        async with brokers.main.transaction() as tx:
            (answer,) = await tx.receive("desk")
        assert answer.body == b"from the target"

    program(tmp_path)


@pytest.mark.rule("RTE-6", "RTE-8", "XMT-5", "DLP-43", "CLP-98")
@pytest.mark.parametrize("restart", [False, True])
def test_a_bound_dialog_follows_the_route_that_names_its_broker(
    tmp_path: Path, restart: bool
) -> None:
    """Its first message found that broker by a route without one."""

    @three
    async def program(brokers: Brokers) -> None:
        main, far = brokers.main, show(brokers.id_of("b2"))
        await main.create("route", "first", service=SHARED, address="LOCAL")
        await main.create("route", "then", service=SHARED, broker=far, address="TCP://far:4022")
        foreseen = await main.admin.explain_route(SHARED)
        assert (foreseen.outcome, foreseen.where) == ("local", "b2")
        handle = await brokers.send()
        assert await brokers.arrived() == {"b2": [b"1"]}
        if restart:
            await brokers.restart()
        found = await brokers.main.admin.explain_route(handle=handle)
        assert (found.outcome, found.route) == ("remote", "then")
        await brokers.main.send(handle, b"2", "Ask")
        await brokers.daemon.pass_time(1)
        assert await brokers.arrived() == {}
        status = await brokers.main.transmission_status(handle)
        assert (status.destination, status.pending) == ("tcp://far:4022", 1)

    program(tmp_path)


@pytest.mark.rule("RTE-10", "RTE-25", "RTE-26", "SND-14")
@pytest.mark.parametrize("among", ["brokers", "addresses"])
def test_a_dialog_takes_one_turn_where_its_own_broker_has_the_service_too(
    tmp_path: Path, among: str
) -> None:
    """The broker checks more than once whether direct delivery is possible."""

    @three
    async def program(brokers: Brokers) -> None:
        main = brokers.main
        await main.create("service", SHARED, queue="shop", contracts=["talk"])
        if among == "brokers":
            for name in ("main", "b2"):
                await _route(brokers, SHARED, name, f"to_{name}")
        else:
            for name in ("x", "y"):
                await main.create("route", name, service=SHARED, address=f"TCP://{name}:1")
        where = []
        for _ in range(8):
            handle = await brokers.send()
            found = await main.admin.explain_route(handle=handle)
            where.append(found.where)
        assert sorted(map(where.count, set(where))) == [4, 4]
        assert where[:2] * 4 == where

    program(tmp_path)
