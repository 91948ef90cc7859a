"""Two daemons are paired by a code, over TLS; or nothing is left of the attempt."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from brokerd.client.pairing import Paired, PairingCode, PairingState
from brokerd.config.settings import Encryption
from brokerd.errors import BrokerError, Busy, InvalidArgument, ObjectNotFound, PairingFailed
from brokerd.ids import Handle
from brokerd.security.credentials import Purpose
from brokerd.security.pairing import ANEW, MOST_WRONG, VOID, WRONG, Phase, read_code
from tests.integration.admin.pairing.machines import Machine, objects, two_machines
from tests.integration.shorthand import fails


async def invite(at: Machine, **wishes: Any) -> PairingCode:
    return await at.session.admin.invite_peer(**wishes)


async def join(at: Machine, code: PairingCode | str, **wishes: Any) -> Paired:
    text = code if isinstance(code, str) else code.code
    return await at.session.admin.join_peer(text, **wishes)


async def refused(at: Machine, code: PairingCode | str, **wishes: Any) -> BrokerError:
    return await fails(PairingFailed, join(at, code, **wishes))


async def works(at: Machine, other: Machine) -> bool:
    """Whether a ping of the whole way comes back."""
    found = await at.session.admin.ping(
        f"urn:{other.name}", from_service=f"urn:{at.name}", wait=30.0
    )
    return found.is_complete


def pictures(*machines: Machine) -> list[object]:
    return [one.picture() for one in machines]


@pytest.mark.rule("SEC-60", "SEC-61", "SEC-62", "SEC-63", "CLP-150", "CLP-151", "CLP-153")
@two_machines
async def test_both_install_each_other_and_a_ping_comes_back(east: Machine, west: Machine) -> None:
    shown = await invite(east, shares=["urn:east"])
    assert (shown.address, shown.phase) == (east.address, "waiting")
    waiting = asyncio.create_task(east.session.admin.await_pairing(shown.number, wait=60.0))
    done = await join(west, shown, shares=["urn:west", "urn:west-secret"])
    assert done.services == ("urn:east", "urn:east-secret")
    assert done.grants == (
        "connect on endpoint to peer:east",
        "send on urn:west to peer:east",
        "send on urn:west-secret to peer:east",
    )
    assert (await waiting).peer == "peer:west"
    state = await east.session.admin.await_pairing()
    assert (state.phase, state.seconds_left) == ("used", 0.0)
    assert state.result is not None
    assert state.result.grants == (
        "connect on endpoint to peer:west",
        "send on urn:east to peer:west",
    )
    assert await works(west, east)
    assert await works(east, west)
    for one, other in ((east, west), (west, east)):
        catalog = one.broker.store.catalog
        principal = f"peer:{other.name}"
        assert catalog.binding_of[f"urn:{other.name}-secret"].principal == principal
        assert catalog.routes[f"{other.name}/urn:{other.name}"].address == other.address
        own = other.credentials.own(Purpose.DIALOG, one.clock.utc())
        known = one.credentials.of_principal(principal, Purpose.DIALOG, one.clock.utc())
        assert own is not None
        assert known is not None
        assert known.certificate == own.certificate
        assert one.credentials.principals[principal].instance_id == other.instance.parts.instance_id


@pytest.mark.rule("SEC-80")
@two_machines
async def test_applying_a_file_keeps_what_pairing_made(east: Machine, west: Machine) -> None:
    await join(west, await invite(east))
    assert await west.session.apply(objects("west")) == []
    mine = {"name": "mine", "service": "urn:east", "address": "TCP://elsewhere:4022"}
    await west.session.apply(objects("west") | {"route": [mine]})
    catalog = west.broker.store.catalog
    assert {"mine", "east/urn:east-secret"} <= catalog.routes.keys()
    assert "east/urn:east" not in catalog.routes  # the file says otherwise
    assert {"east/urn:east", "east/urn:east-secret"} <= catalog.remote_service_bindings.keys()
    await west.session.admin.revoke_principal("peer:east")
    await west.session.apply(objects("west"))
    catalog = west.broker.store.catalog
    assert not [name for name in catalog.routes if name.startswith("east/")]
    assert not catalog.remote_service_bindings


@pytest.mark.rule("SEC-60", "SEC-62", "SEC-85")
@two_machines
async def test_a_code_is_good_for_one_pairing(east: Machine, west: Machine) -> None:
    shown = await invite(east)
    await join(west, shown)
    before = pictures(east, west)
    error = await refused(west, shown)
    assert (error.message, error.hint) == (VOID[Phase.USED], ANEW)
    assert pictures(east, west) == before


def with_secret(code: PairingCode, secret: bytes) -> str:
    return msgspec.structs.replace(read_code(code.code), secret=secret).text


@pytest.mark.rule("SEC-60", "SEC-62", "SEC-85")
@two_machines
async def test_five_wrong_codes_end_it(east: Machine, west: Machine) -> None:
    before = pictures(east, west)
    shown = await invite(east)
    state: PairingState = shown
    for number in range(MOST_WRONG):
        error = await refused(west, with_secret(shown, bytes([number]) * 16))
        assert error.message == WRONG
        state = await east.session.admin.await_pairing()
        assert state.wrong == number + 1
    assert state.phase == "guessed"
    assert (await refused(west, shown)).message == VOID[Phase.GUESSED]
    assert pictures(east, west) == before


@pytest.mark.rule("SEC-62")
@two_machines
async def test_another_machine_at_the_address_learns_nothing(east: Machine, west: Machine) -> None:
    before = pictures(east, west)
    shown = await invite(east)
    code = msgspec.structs.replace(read_code(shown.code), fingerprint=b"another one's it")
    error = await refused(west, code.text)
    assert "another machine" in error.message
    state = await east.session.admin.await_pairing()
    assert (state.wrong, state.phase, state.error) == (0, "waiting", "")
    assert pictures(east, west) == before


@pytest.mark.rule("SEC-60", "SEC-85", "CLP-151", "CLP-152")
@two_machines
async def test_a_code_ends_by_age_by_its_maker_and_by_the_next_one(
    east: Machine, west: Machine
) -> None:
    admin = east.session.admin
    await fails(ObjectNotFound, admin.await_pairing())
    await fails(ObjectNotFound, admin.cancel_pairing())
    old, new = await invite(east), await invite(east)
    assert (await refused(west, old)).message == VOID[Phase.CANCELLED]
    state = await admin.await_pairing()
    assert (state.phase, state.wrong) == ("waiting", 0)
    waiting = asyncio.create_task(admin.await_pairing(new.number + 1, wait=60.0))
    assert (await admin.cancel_pairing()).phase == "cancelled"
    assert (await waiting).is_over
    assert (await refused(west, new)).message == VOID[Phase.CANCELLED]
    aged = await invite(east)
    await east.clock.sleep_until(east.clock.monotonic() + 601.0)
    assert (await admin.await_pairing()).phase == "expired"
    error = await refused(west, aged)
    assert (error.message, error.hint) == (VOID[Phase.EXPIRED], ANEW)
    await east.clock.sleep_until(east.clock.monotonic() + 601.0)
    assert "the code is void" in (await refused(west, aged)).message
    await join(west, await invite(east))


@pytest.mark.rule("SEC-63")
@two_machines
async def test_what_was_refused_while_they_were_paired_is_tried_again_at_once(
    east: Machine, west: Machine
) -> None:
    await join(west, await invite(east, shares=["urn:east"]))
    assert await works(west, east)
    (destination,) = west.instance.parts.destinations.known()
    await east.session.admin.revoke_principal("peer:west")

    def refuse() -> None:
        if "peer:west" in east.credentials.principals:  # east installs it at this moment
            destination.lost("auth_failed", "east does not know west yet")

    east.credentials.watch(refuse)
    await join(west, await invite(east, shares=["urn:east"]))
    assert destination.losses
    assert not destination.is_suppressed


@pytest.mark.rule("SEC-60")
@two_machines
async def test_a_mistyped_code_makes_no_connection(east: Machine, west: Machine) -> None:
    shown = await invite(east)
    wrong = ("2" if shown.code[0] != "2" else "3") + shown.code[1:]
    error = await fails(InvalidArgument, join(west, wrong))
    assert "mistyped" in error.message
    error = await fails(InvalidArgument, join(west, "swordfish"))
    assert "pairing code" in error.message
    assert (await east.session.admin.await_pairing()).wrong == 0


@pytest.mark.rule("SEC-61")
@two_machines
async def test_the_code_of_the_own_machine_is_named_as_such(east: Machine, west: Machine) -> None:
    before = east.picture()
    shown = await invite(east)
    error = await refused(east, shown)
    assert "of this very instance" in error.message
    assert east.picture() == before
    await join(west, shown)


async def held(at: Machine, work: Coroutine[Any, Any, BrokerError]) -> BrokerError:
    """Return how work fails while an administrator holds the broker of a machine."""
    exclusive = at.instance.parts.sessions.exclusive
    await exclusive.hold(at.broker, force=False, wait=1.0)
    try:
        return await work
    finally:
        exclusive.release(at.broker)


@pytest.mark.rule("SEC-61", "SEC-62")
@pytest.mark.parametrize("side", ["east", "west"])
def test_where_one_side_cannot_install_nothing_is_half_done(side: str, tmp_path: Any) -> None:
    @two_machines
    async def play(east: Machine, west: Machine) -> None:
        before = pictures(east, west)
        shown = await invite(east, shares=["urn:east"])
        stuck = east if side == "east" else west
        kind = PairingFailed if side == "east" else Busy
        error = await held(stuck, fails(kind, join(west, shown)))
        assert "being administered" in error.message
        assert pictures(east, west) == before
        state = await east.session.admin.await_pairing()
        assert state.phase == "waiting"
        assert "administered" in state.error
        await join(west, shown)  # the code may be tried again
        assert await works(west, east)

    play(tmp_path)


def when_east_has_installed(east: Machine, act: Callable[[], object]) -> None:
    """Do something at the moment at which east has stored west, before it answers."""
    done: list[bool] = []

    def changed() -> None:
        if "peer:west" in east.credentials.principals and not done:
            done.append(True)
            act()

    east.credentials.watch(changed)


@pytest.mark.rule("SEC-62")
@two_machines
async def test_a_lost_answer_is_made_up_for_by_a_connection(east: Machine, west: Machine) -> None:
    shown = await invite(east)

    def cut() -> None:
        east.network.cut("east", "west")
        asyncio.get_running_loop().call_later(21.0, east.network.heal, "east", "west")

    when_east_has_installed(east, cut)
    await join(west, shown)
    assert (await east.session.admin.await_pairing()).phase == "used"
    assert await works(west, east)


@pytest.mark.rule("SEC-62")
@two_machines
async def test_where_the_other_side_stays_away_a_second_run_repairs(
    east: Machine, west: Machine
) -> None:
    before = west.picture()
    shown = await invite(east, shares=["urn:east"])
    when_east_has_installed(east, lambda: east.network.cut("east", "west"))
    await refused(west, shown)
    assert west.picture() == before
    assert "peer:west" in east.credentials.principals
    east.network.heal("east", "west")
    done = await join(west, await invite(east, shares=["urn:east"]))
    assert done.principal == "peer:east"
    assert await works(west, east)


@pytest.mark.rule("SEC-60", "CLP-152")
@two_machines
async def test_a_code_that_is_cancelled_while_it_is_used_pairs_nobody(
    east: Machine, west: Machine
) -> None:
    before = pictures(east, west)
    shown = await invite(east)
    done: list[object] = []

    def cancel() -> None:  # west has stored east, and asks for the same now
        if not done:
            done.append(east.instance.parts.administration.pairing.cancel())

    west.credentials.watch(cancel)
    error = await refused(west, shown)
    assert "cancelled" in error.message
    assert pictures(east, west) == before
    assert (await east.session.admin.await_pairing()).phase == "cancelled"


@pytest.mark.rule("SEC-61")
@two_machines
async def test_pairing_again_renews_what_has_changed(east: Machine, west: Machine) -> None:
    await join(west, await invite(east, shares=["urn:east"]))
    again = await join(west, await invite(east, shares=["urn:east"]))
    assert (again.is_new, again.changes) == (False, ())
    store = west.instance.parts.credential_store
    for purpose in (Purpose.TRANSPORT, Purpose.DIALOG):
        await store.make_own(purpose, actor="ann", is_active=False)
        await store.switch_own(purpose, actor="ann")
    shown = await invite(east)
    error = await refused(west, shown)
    assert "another certificate" in error.message
    await join(west, await invite(east, name="west"))
    own = west.credentials.own(Purpose.TRANSPORT, west.clock.utc())
    assert own is not None
    owned = [
        one.certificate
        for one in east.credentials.owned_by("peer:west")
        if one.purpose is Purpose.TRANSPORT
    ]
    assert owned == [own.certificate]
    assert await works(east, west)


@pytest.mark.rule("SEC-60")
@two_machines
async def test_what_a_machine_lacks_for_a_pairing_is_named(east: Machine, west: Machine) -> None:
    shown = await invite(east)
    await fails(ObjectNotFound, invite(east, shares=["urn:aest"]))
    await fails(ObjectNotFound, join(west, shown, shares=["urn:aest"]))
    await fails(InvalidArgument, invite(east, address="east"))
    await east.stop()
    east.encryption = Encryption.DISABLED
    await east.start(east.folder)
    error = await fails(InvalidArgument, invite(east))
    assert 'endpoint.encryption = "required"' in error.hint
    error = await refused(west, shown)
    assert "refuses encrypted connections" in error.message
    await east.stop()
    error = await refused(west, shown)
    assert "cannot be reached" in error.message
    east.has_endpoint = False
    await east.start(east.folder)
    error = await fails(InvalidArgument, invite(east))
    assert "endpoint" in error.message


@pytest.mark.rule("SEC-63", "SX-9", "SX-15")
@two_machines
async def test_pairings_are_audited_without_the_code(east: Machine, west: Machine) -> None:
    shown = await invite(east, shares=["urn:east"])
    await refused(west, with_secret(shown, bytes(16)))
    await join(west, shown)
    await east.clock.sleep_until(east.clock.monotonic() + 60.0)
    rows = await east.session.view("audit")
    seen = [(row["action"], row["outcome"]) for row in rows if "pair" in str(row["action"])]
    assert seen == [
        ("paired", "success"),
        ("paired", "refused"),
        ("pairing_offered", "success"),
    ]
    code = read_code(shown.code)
    for told in (rows, east.log.lines, west.log.lines, await west.session.view("audit")):
        text = repr(told)
        for secret in (
            shown.code,
            shown.code.replace("-", ""),
            code.secret.hex(),
            repr(code.secret),
        ):
            assert secret not in text


@pytest.mark.rule("SEC-62")
@two_machines
async def test_the_inviting_machine_has_to_prove_the_code_too(east: Machine, west: Machine) -> None:
    before = west.picture()
    shown = await invite(east)
    liar: Any = east.instance.parts.administration.pairing
    liar._shown.invitation.attempt = lambda *_: bytes(32)
    error = await refused(west, shown)
    assert "does not have the code" in error.message
    assert west.picture() == before
    assert "peer:west" not in east.credentials.principals


@pytest.mark.rule("SEC-61", "CLP-151")
@two_machines
async def test_pairs_know_each_other_after_a_restart_and_codes_are_gone(
    east: Machine, west: Machine
) -> None:
    await join(west, await invite(east, shares=["urn:east"]))
    before = pictures(east, west)
    waiting = await invite(east)
    for one in (east, west):
        await one.stop()
        await one.start(one.folder)
    assert pictures(east, west) == before
    assert await works(west, east)
    assert await works(east, west)
    await fails(ObjectNotFound, east.session.admin.await_pairing())
    await refused(west, waiting)


@pytest.mark.rule("SEC-16", "SEC-61")
@two_machines
async def test_a_message_goes_there_secured_and_its_answer_comes_back(
    east: Machine, west: Machine
) -> None:
    await join(west, await invite(east, shares=["urn:east"]))
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk")
    await west.session.send(handle, b"hello", "Ask")
    async with east.session.transaction() as tx:
        (asked,) = await tx.receive("box", wait=30.0)
        assert asked.body == b"hello"
        await tx.send(asked.handle, b"hello yourself", "Ask")
    async with west.session.transaction() as tx:
        (answer,) = await tx.receive("box", wait=30.0)
    assert answer.body == b"hello yourself"
    live = west.broker.endpoints.find(Handle(handle))
    assert live is not None
    assert live.endpoint.security is not None


@pytest.mark.rule("SEC-50", "SEC-54", "SEC-61")
@two_machines
async def test_what_is_not_shared_cannot_be_sent_to(east: Machine, west: Machine) -> None:
    await join(west, await invite(east, shares=["urn:east"]))
    handle = await west.session.begin_dialog("urn:west", "urn:east-secret", "talk")
    await west.session.send(handle, b"hello", "Ask")
    async with west.session.transaction() as tx:
        (refusal,) = await tx.receive("box", wait=60.0)
    assert refusal.error is not None
    assert refusal.error.number == -8494
    assert not east.broker.queues["box"].ready_count
