"""Logins with certificates: two or more transports over real TCP, each with its own keys."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from brokerd.clock import Instant
from brokerd.config.settings import Authentication, Encryption
from brokerd.ids import BootId, InstanceId
from brokerd.protocol.brokers import BrokersHere
from brokerd.protocol.connection_effects import LoginOutcome
from brokerd.protocol.neighbour import Hello, Reject, RejectReason, encode
from brokerd.transport.login_guard import Login, LoginGuard
from brokerd.transport.options import TransportOptions
from tests.integration.transport.conftest import QUICK, Node
from tests.integration.transport.keys import DAY, Keys, now

REQUIRED, SUPPORTED, DISABLED = Encryption.REQUIRED, Encryption.SUPPORTED, Encryption.DISABLED
CERTIFICATE, PUBLIC, NONE = (
    Authentication.CERTIFICATE,
    Authentication.CERTIFICATE_OR_PUBLIC,
    Authentication.NONE,
)


@dataclass
class Rules:
    """What an instance says to a guard."""

    keys: Keys
    connect: set[str] = field(default_factory=set)
    logins: list[Login] = field(default_factory=list)
    moved: asyncio.Event | None = None

    def may_connect(self, name: str) -> bool:
        return name in self.connect

    def first_login(self, name: str, instance_id: InstanceId) -> bool:
        known = self.keys.credentials.principals[name]
        self.keys.credentials.put(msgspec.structs.replace(known, instance_id=instance_id))
        return True

    def logged_in(self, login: Login) -> None:
        self.logins.append(login)
        if self.moved is not None:
            self.moved.set()

    def outcomes(self) -> list[LoginOutcome]:
        return [one.outcome for one in self.logins]


class Secured:
    """A node with keys."""

    def __init__(self, node: Node, keys: Keys, rules: Rules) -> None:
        self.node = node
        self.keys = keys
        self.rules = rules

    def trust(self, other: "Secured", *, connect: bool = True, **how: Any) -> None:
        self.keys.trust(other.keys, **how)
        if connect:
            self.rules.connect.add(f"peer:{other.keys.name}")

    @property
    def address(self) -> str:
        return self.node.address

    def status(self, other: "Secured") -> Any:
        return self.node.transport.status(other.address)

    async def until(self, true: Callable[[], bool]) -> None:
        await self.node.until(true)

    async def refused(self, other: "Secured") -> Any:
        """Send to another node, and return why nothing arrives."""
        self.node.send(other.address, b"never")
        await self.until(lambda: self.status(other).failures > 0)
        assert b"never" not in other.node.bodies()
        return self.status(other)

    async def delivers(self, other: "Secured", body: bytes = b"1") -> Any:
        """Send to another node, and return the connection that carried it."""
        self.node.send(other.address, body)
        await other.until(lambda: body in other.node.bodies())
        peers = self.node.transport.peers
        return peers.online[other.node.instance_id]


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Any]]:
    nodes: list[Node] = []

    async def made(
        number: int,
        name: str,
        *,
        encryption: Encryption = REQUIRED,
        authentication: Authentication = CERTIFICATE,
        keys: Keys | None = None,
        instance: int | None = None,
        options: TransportOptions = QUICK,
    ) -> Secured:
        keys = keys or Keys(name)
        rules = Rules(keys)
        instance_id = InstanceId(bytes([instance or number]) * 16)
        guard = LoginGuard(
            instance_id=instance_id,
            credentials=keys.credentials,
            contexts=keys.contexts(),
            events=rules,
            encryption=encryption,
            authentication=authentication,
        )
        node = Node(number, guard=guard, instance_id=instance_id, options=options)
        rules.moved = node.moved
        await node.transport.start(must_listen=True)
        nodes.append(node)
        return Secured(node, keys, rules)

    yield made
    await asyncio.gather(*(node.transport.stop() for node in nodes))


async def pair(make: Callable[..., Any], **how: Any) -> tuple[Secured, Secured]:
    east, west = await make(1, "east", **how), await make(2, "west", **how)
    east.trust(west)
    west.trust(east)
    return east, west


@pytest.mark.rule("SEC-2", "SEC-4", "END-8", "END-12", "SEC-12", "TRN-7")
async def test_two_instances_prove_who_they_are_and_exchange_messages(make):
    east, west = await pair(make)
    connection = await west.delivers(east)
    assert connection.identity.name == "peer:east"
    assert connection.identity.certificate_id == east.keys.certificate.id
    assert connection.own_certificate_id == west.keys.certificate.id
    assert connection.cipher.startswith("TLS_")
    there = east.node.transport.peers.online[west.node.instance_id]
    assert there.identity.name == "peer:west"
    assert there.cipher == connection.cipher
    east.node.send(west.address, b"back")
    await west.until(lambda: b"back" in west.node.bodies())
    for side, is_accept in ((east, True), (west, False)):
        (login,) = side.rules.logins
        assert (login.outcome, login.is_accept) == (LoginOutcome.SUCCESS, is_accept)
    assert east.rules.logins[0].identity.name == "peer:west"


@pytest.mark.rule("SEC-3", "NBT-20", "SEC-12")
async def test_an_unknown_certificate_is_refused_and_both_sides_learn_what_to_do(make):
    east, west = await make(1, "east"), await make(2, "west")
    west.trust(east)
    status = await west.refused(east)
    assert status.reason == "auth_failed"
    assert "brokerd peer add" in status.detail
    assert west.keys.certificate.id.hex()[:16] in status.detail
    await east.until(lambda: bool(east.rules.logins))
    (login,) = east.rules.logins
    assert login.outcome is LoginOutcome.AUTHENTICATION_FAILURE
    assert login.is_accept
    assert "not installed here" in login.detail


@pytest.mark.rule("SEC-4")
async def test_a_server_whose_certificate_is_unknown_gets_nothing(make):
    east, west = await make(1, "east"), await make(2, "west")
    east.trust(west)
    status = await west.refused(east)
    assert status.reason == "auth_failed"
    assert "is not installed here" in status.detail
    assert west.rules.outcomes() == [LoginOutcome.AUTHENTICATION_FAILURE]


@pytest.mark.rule("SEC-6", "END-8", "SEC-12", "NBT-20")
async def test_a_peer_without_connect_is_refused(make):
    east, west = await make(1, "east"), await make(2, "west")
    east.trust(west, connect=False)
    west.trust(east)
    status = await west.refused(east)
    assert status.reason == "refused"
    assert "not_authorised" in status.detail
    assert "brokerd grant connect" in status.detail
    assert "west" not in status.detail.replace("peer:NAME", "")  # it names no principal
    (login,) = east.rules.logins
    assert login.outcome is LoginOutcome.AUTHORIZATION_FAILURE
    assert "brokerd grant connect on endpoint to peer:west" in login.detail


@pytest.mark.rule("SEC-4", "SEC-6")
async def test_the_caller_authorises_the_called_one_too(make):
    east, west = await make(1, "east"), await make(2, "west")
    east.trust(west)
    west.trust(east, connect=False)
    status = await west.refused(east)
    assert status.reason == "refused"
    assert "refused here" in status.detail
    assert west.rules.outcomes() == [LoginOutcome.AUTHORIZATION_FAILURE]


@pytest.mark.rule("SEC-7")
@pytest.mark.parametrize("public_may", [True, False])
async def test_an_unknown_peer_is_public_only_if_public_may_connect(make, public_may):
    east = await make(1, "east", authentication=PUBLIC)
    west = await make(2, "west", authentication=PUBLIC)
    west.trust(east)
    if not public_may:
        status = await west.refused(east)
        assert status.reason == "refused"
        return
    east.rules.connect.add("public")
    await west.delivers(east)
    there = east.node.transport.peers.online[west.node.instance_id]
    assert there.identity.name == "public"
    assert there.cipher
    assert not there.is_trusted


@pytest.mark.rule("SEC-55", "TRN-26", "SX-7")
async def test_an_instance_id_belongs_to_the_principal_that_logged_in_with_it_first(make):
    east, west = await pair(make)
    await west.delivers(east)
    assert east.keys.credentials.principals["peer:west"].instance_id == west.node.instance_id
    impostor = await make(3, "north", instance=2)
    east.trust(impostor)
    impostor.trust(east)
    status = await impostor.refused(east)
    assert status.reason == "auth_failed"
    assert west.node.transport.peers.online, "the connection of the real one stays"
    login = east.rules.logins[-1]
    assert login.outcome is LoginOutcome.AUTHENTICATION_FAILURE
    assert login.identity.name == "peer:north"
    assert "which is that of peer:west" in login.detail


@pytest.mark.rule("SEC-55", "SEC-7")
async def test_a_public_peer_cannot_lock_out_the_instance_that_it_says_it_is(make):
    east = await make(1, "east", authentication=PUBLIC)
    east.rules.connect.add("public")
    impostor = await make(3, "north", instance=2, authentication=PUBLIC)
    impostor.trust(east)
    await impostor.delivers(east, b"from the impostor")
    west = await make(2, "west")
    west.trust(east)
    east.trust(west)
    await west.delivers(east, b"from the real one")
    (connection,) = east.node.transport.peers.online.values()
    assert connection.identity.name == "peer:west"
    impostor.node.transport.retry(east.address)
    await impostor.until(lambda: impostor.status(east).failures > 0)
    assert impostor.status(east).reason == "auth_failed"


@pytest.mark.rule("SEC-55")
async def test_a_principal_cannot_become_another_instance(make):
    east, west = await pair(make)
    await west.delivers(east)
    other = await make(3, "west", keys=west.keys)
    other.rules.connect.add("peer:east")
    status = await other.refused(east)
    assert status.reason == "auth_failed"
    assert "was another instance before" in east.rules.logins[-1].detail


@pytest.mark.rule("TRN-26", "SX-7")
async def test_a_peer_cannot_pass_for_this_instance(make):
    """What is sent to such an address would be delivered here."""
    east, west = await make(1, "east", instance=2), await make(2, "west")
    east.trust(west)
    west.trust(east)
    east.node.transport.peers._authorise = lambda _one, _peer: None
    await west.refused(east)
    status = west.status(east)
    assert not status.is_self
    assert west.rules.outcomes()[-1] is LoginOutcome.AUTHENTICATION_FAILURE


@pytest.mark.rule("TRN-26")
async def test_an_instance_that_reaches_itself_knows_itself_by_its_certificate(make):
    east = await make(1, "east")
    east.node.send(east.address, b"me")
    await east.until(lambda: east.status(east).is_self)


@pytest.mark.rule("TRN-19", "SX-7")
async def test_an_address_is_served_only_by_its_principal(make):
    east, north, west = [
        await make(number, name) for number, name in ((1, "east"), (3, "north"), (2, "west"))
    ]
    north.trust(west)
    west.trust(east, addresses=(north.address,))
    west.trust(north)
    status = await west.refused(north)
    assert status.reason == "auth_failed"
    assert "is the address of peer:east, and peer:north answers there" in status.detail


@pytest.mark.rule("TRN-19", "SX-7")
async def test_the_place_of_a_peer_that_is_down_is_not_taken_over(make):
    east, west = await pair(make)
    await west.delivers(east)
    address, port = east.address, east.node.transport.endpoint.port
    await east.node.transport.stop()
    await west.until(lambda: not west.node.transport.is_online(address))
    thief = await make(3, "north")
    thief.trust(west)
    west.trust(thief)
    # it says it listens at the address of the peer that is down
    hello = thief.node.transport.peers.hello
    thief.node.transport.peers.hello = msgspec.structs.replace(hello, port=port)
    await thief.delivers(west, b"from the thief")
    (connection,) = west.node.transport.peers.online.values()
    assert connection.place == address
    assert connection.identity.name == "peer:north"
    assert not west.node.transport.is_online(address)


@pytest.mark.rule("SX-7", "TRN-46")
async def test_only_peers_that_are_authenticated_are_believed(make):
    east = await make(1, "east", authentication=PUBLIC)
    east.rules.connect.add("public")
    stranger = await make(2, "west", authentication=PUBLIC)
    friend = await make(3, "north")
    stranger.trust(east)
    friend.trust(east)
    east.trust(friend)
    advice = BrokersHere(())
    for one in (stranger, friend):
        await one.delivers(east, one.keys.name.encode())
        assert one.node.transport.notice(east.node.instance_id, advice)
    await east.until(lambda: len(east.node.notices) == 1)
    await stranger.delivers(east, b"after the advice")
    assert east.node.notices == [advice]
    assert east.node.transport.ignored_advice == 1


@pytest.mark.rule("END-10", "SEC-10")
@pytest.mark.parametrize(
    ("caller", "called", "is_encrypted"),
    [
        (REQUIRED, REQUIRED, True),
        (REQUIRED, SUPPORTED, True),
        (SUPPORTED, REQUIRED, True),
        (SUPPORTED, SUPPORTED, True),
        (DISABLED, DISABLED, False),
        (DISABLED, SUPPORTED, False),
        (SUPPORTED, DISABLED, False),
        (DISABLED, REQUIRED, None),
        (REQUIRED, DISABLED, None),
    ],
)
async def test_two_settings_of_encryption_agree_or_refuse(make, caller, called, is_encrypted):
    def how(encryption: Encryption) -> dict[str, Any]:
        open_to_all = encryption is DISABLED
        return {"encryption": encryption, "authentication": NONE if open_to_all else PUBLIC}

    east, west = await make(1, "east", **how(called)), await make(2, "west", **how(caller))
    east.trust(west)
    west.trust(east)
    for one in (east, west):
        one.rules.connect.add("public")
    if is_encrypted is None:
        status = await west.refused(east)
        assert status.reason == "handshake_failed"
        wanted = RejectReason.PLAIN_ONLY if called is DISABLED else RejectReason.TLS_REQUIRED
        assert wanted.value in status.detail
        assert "endpoint.encryption" in status.detail
        return
    connection = await west.delivers(east)
    assert bool(connection.cipher) is is_encrypted
    (destination,) = west.node.transport.known()
    assert (destination.attempts, destination.failures) == (1, 0)
    there = east.node.transport.peers.online[west.node.instance_id]
    assert bool(there.cipher) is is_encrypted
    assert there.identity.name == ("peer:west" if is_encrypted else "public")


async def answer_plain_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as an attacker does who wants to read what is sent."""
    await reader.read(1)
    writer.write(encode(Reject(RejectReason.PLAIN_ONLY.value, "wait_login_negotiate")))
    await writer.drain()
    await reader.read()
    writer.close()


@pytest.mark.rule("SEC-10", "END-10")
@pytest.mark.parametrize("encryption", [REQUIRED, SUPPORTED])
async def test_an_attacker_cannot_talk_a_caller_out_of_encryption(make, encryption):
    """A caller that requires it never falls back; one that supports it never for a known peer."""
    opened = 0

    async def attack(reader, writer):
        nonlocal opened
        opened += 1
        await answer_plain_only(reader, writer)

    attacker = await asyncio.start_server(attack, "127.0.0.1")
    address = f"tcp://127.0.0.1:{attacker.sockets[0].getsockname()[1]}"
    how = PUBLIC if encryption is SUPPORTED else CERTIFICATE
    west = await make(2, "west", encryption=encryption, authentication=how)
    west.rules.connect.add("public")
    east = Keys("east")
    west.keys.trust(east, addresses=(address,) if encryption is SUPPORTED else ())
    west.node.send(address, b"confidential")
    await west.until(lambda: west.node.transport.status(address).failures > 0)
    status = west.node.transport.status(address)
    assert status.reason == "handshake_failed"
    assert "plain_only" in status.detail
    assert opened == 1
    attacker.close()


@pytest.mark.rule("SEC-10")
async def test_a_plain_answer_to_tls_can_only_refuse(make):
    """An attacker that greets in clear gets neither a HELLO nor a message."""
    got = asyncio.get_running_loop().create_future()

    async def attack(reader, writer):
        await reader.read(1)
        writer.write(encode(Hello(InstanceId(bytes(16)), BootId(bytes(16)))))
        first = await reader.read()
        got.set_result(first)
        writer.close()

    attacker = await asyncio.start_server(attack, "127.0.0.1")
    address = f"tcp://127.0.0.1:{attacker.sockets[0].getsockname()[1]}"
    west = await make(2, "west", encryption=SUPPORTED, authentication=PUBLIC)
    west.rules.connect.add("public")
    west.keys.trust(Keys("east"))
    west.node.send(address, b"confidential")
    await west.until(lambda: west.node.transport.status(address).failures > 0)
    async with asyncio.timeout(10):
        assert b"confidential" not in await got
    attacker.close()


@pytest.mark.rule("SEC-9", "END-6")
async def test_a_certificate_is_replaced_while_messages_flow(make):
    east, west = await pair(make)
    before = await west.delivers(east)
    east.keys.certificate = east.keys.make_own()
    west.keys.trust(east.keys)
    assert await west.delivers(east, b"2") is before
    assert before.identity.name == "peer:east"


@pytest.mark.rule("SEC-8", "SEC-11")
async def test_a_certificate_that_expires_cuts_no_connection_and_begins_none(make):
    east, west = await pair(make)
    before = await west.delivers(east)
    guard: Any = east.node.transport.peers.guard
    guard.contexts._utc = lambda: Instant(now() + 500 * DAY)
    assert await west.delivers(east, b"2") is before
    east.node.transport.check_identities()
    assert await west.delivers(east, b"3") is before
    before.abort("cut")
    west.node.transport.retry(east.address)
    await west.until(lambda: west.status(east).failures > 0)
    await east.until(lambda: len(east.rules.logins) > 1)
    assert "expired at" in east.rules.logins[-1].detail
    assert b"4" not in east.node.bodies()


@pytest.mark.rule("TRN-6", "TRN-9", "SX-2")
async def test_a_peer_that_never_ends_its_handshake_is_closed_after_five_seconds(make):
    east = await make(1, "east")
    host, port = east.address.removeprefix("tcp://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x16\x03\x01")
    peers = east.node.transport.peers
    async with asyncio.timeout(10):
        while not any(one.has_stream for one in peers.connections.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)
    (connection,) = peers.connections.values()
    assert connection.machine.login_state.name == "WAIT_PRE_MASTER_SECRET"
    assert connection.seat is not None
    assert not connection.seat.logged_in
    east.node.clock.skipped += 5.1
    connection._timer_fired()
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(10):
            assert await reader.read() == b""
    assert connection.machine.error.startswith("TLS handshake not over in time")
    writer.close()
