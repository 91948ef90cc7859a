"""TLS between two streams of this machine: who is let in, and what the other one learns."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.security.certificates import make_certificate
from brokerd.security.credentials import Kind
from brokerd.security.secure_stream import MOST_BYTES, SecureStream
from brokerd.security.tls import NOBODY, Contexts, NoProof, Own, client_context, explain, identify
from tests.integration.transport.keys import DAY, Keys, issued_by_an_authority, now


class Side(asyncio.Protocol):
    """What one side of a stream sees; it is also the one that decides about the stream."""

    def __init__(self) -> None:
        self.came = b""
        self.seat: Any = None
        self.stream: SecureStream | None = None
        self.plain: asyncio.Transport | None = None
        self.error: Exception | None = None
        self.secured = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()
        self.received = asyncio.Event()

    def data_received(self, data):
        self.came += data
        self.received.set()

    def connection_lost(self, exc):
        if not self.ended.done():
            self.ended.set_result(exc)

    stream_lost = connection_lost

    def stream_opened(self, stream):
        self.stream = stream

    def stream_secured(self, stream):
        self.secured.set_result(stream.peer_certificate)

    def stream_plain(self, transport):
        self.plain = transport

    def stream_refused(self, stream, error):
        self.error = error
        self.received.set()


@pytest.fixture
async def meet() -> AsyncIterator[Callable[..., Any]]:
    """Connect two sides over TCP; `connecting` may be a context of its own, or plain bytes."""
    closing: list[Any] = []

    async def met(accepting: Contexts, connecting: Any, *, limit: float | None = 5.0):
        loop = asyncio.get_running_loop()
        there = Side()
        server = await loop.create_server(
            lambda: SecureStream(
                there, there, context=accepting.server, accepting=True, limit=limit
            ),
            "127.0.0.1",
        )
        closing.append(server)
        address = server.sockets[0].getsockname()[:2]
        here = Side()
        if isinstance(connecting, bytes):
            transport, _ = await loop.create_connection(lambda: here, *address)
            transport.write(connecting)
            closing.append(transport)
            return here, there
        context = connecting.client if isinstance(connecting, Contexts) else lambda: connecting
        transport, _ = await loop.create_connection(
            lambda: SecureStream(here, here, context=context, accepting=False), *address
        )
        closing.append(transport)
        return here, there

    yield met
    for one in closing:
        one.close()


async def over(side: Side) -> None:
    async with asyncio.timeout(10):
        await side.ended


@pytest.mark.rule("SX-4")
async def test_both_sides_prove_who_they_are(meet):
    east, west = Keys("east"), Keys("west")
    east.trust(west)
    west.trust(east)
    here, there = await meet(east.contexts(), west.contexts())
    async with asyncio.timeout(10):
        assert await here.secured == east.certificate.encoded
        assert await there.secured == west.certificate.encoded
    assert west.contexts().identify(await here.secured).name == "peer:east"
    assert east.contexts().identify(await there.secured).name == "peer:west"
    assert here.stream.cipher.startswith("TLS_")


@pytest.mark.rule("SX-4")
async def test_much_data_passes_both_ways_and_the_close_is_seen(meet):
    east, west = Keys("east"), Keys("west")
    east.trust(west)
    west.trust(east)
    here, there = await meet(east.contexts(), west.contexts())
    async with asyncio.timeout(10):
        await asyncio.gather(here.secured, there.secured)
    body = bytes(range(256)) * 8192
    here.stream.writelines([body[:100_000], body[100_000:]])
    there.stream.write(body[::-1])
    for side, expected in ((here, body[::-1]), (there, body)):
        async with asyncio.timeout(10):
            while len(side.came) < len(body):
                side.received.clear()
                await side.received.wait()
        assert side.came == expected
    here.stream.close()
    await over(there)
    assert there.error is None
    await over(here)


@pytest.mark.rule("SX-4", "SEC-7")
async def test_a_far_end_without_certificate_is_public(meet):
    east, west = Keys("east"), Keys("west")
    west.trust(east)
    here, there = await meet(east.contexts(), west.contexts().client(shows_certificate=False))
    async with asyncio.timeout(10):
        assert await there.secured is None
    assert east.contexts().identify(None) == NOBODY
    here.stream.abort()


@pytest.mark.rule("SX-4", "SEC-3", "NBT-20")
async def test_a_stranger_s_certificate_is_refused_and_the_stranger_learns_it(meet):
    east, west = Keys("east"), Keys("west")
    west.trust(east)
    here, there = await meet(east.contexts(), west.contexts())
    await over(there)
    assert isinstance(there.error, ssl.SSLCertVerificationError)
    await over(here)
    assert isinstance(here.error, ssl.SSLError)
    concerns_certificates, line = explain(here.error, own=west.certificate)
    assert concerns_certificates
    assert west.certificate.id.hex()[:16] in line
    assert "brokerd peer add" in line


@pytest.mark.rule("SX-4", "SEC-4")
async def test_a_server_that_is_not_installed_here_is_refused(meet):
    east, west = Keys("east"), Keys("west")
    east.trust(west)
    here, there = await meet(east.contexts(), west.contexts())
    await over(here)
    assert isinstance(here.error, ssl.SSLCertVerificationError)
    assert "not installed here" in explain(here.error, own=west.certificate)[1]
    await over(there)


@pytest.mark.rule("SX-4", "SEC-9")
async def test_a_removed_certificate_is_refused_at_the_next_connection(meet):
    east, west = Keys("east"), Keys("west")
    principal = east.trust(west)
    west.trust(east)
    contexts = east.contexts()
    here, there = await meet(contexts, west.contexts())
    async with asyncio.timeout(10):
        await there.secured
    east.credentials.remove_principal(principal.name)
    _, again = await meet(contexts, west.contexts())
    await over(again)
    assert isinstance(again.error, ssl.SSLCertVerificationError)
    here.stream.abort()


@pytest.mark.rule("SX-4", "SEC-9")
async def test_an_own_certificate_is_replaced_without_ending_connections(meet):
    east, west = Keys("east"), Keys("west")
    east.trust(west)
    west.trust(east)
    contexts = east.contexts()
    here, there = await meet(contexts, west.contexts())
    async with asyncio.timeout(10):
        await there.secured
    old = east.certificate
    east.certificate = east.make_own(Instant(now() + 1_000_000))
    west.trust(east)
    newer, also = await meet(contexts, west.contexts())
    async with asyncio.timeout(10):
        assert await newer.secured == east.certificate.encoded != old.encoded
        await also.secured
    here.stream.write(b"still open")
    async with asyncio.timeout(10):
        await there.received.wait()
    assert there.came == b"still open"


@pytest.mark.rule("SEC-11", "SX-4")
@pytest.mark.parametrize(
    ("made", "says"),
    [(-500 * DAY, "expired at"), (2 * DAY, "is valid only from")],
    ids=["expired", "future"],
)
async def test_dates_are_checked_after_the_handshake_so_that_the_refusal_names_them(
    meet, made, says
):
    east, west = Keys("east"), Keys("west")
    bad, key = make_certificate("west", now=Instant(now() + made))
    west.certificate = bad
    east.trust(west)
    here, there = await meet(east.contexts(), client_context(Own(bad, key), [east.certificate]))
    async with asyncio.timeout(10):
        shown = await there.secured
    assert shown == bad.encoded
    with pytest.raises(NoProof, match=says) as refusal:
        east.contexts().identify(shown)
    assert "UTC" in str(refusal.value)
    assert "local" in str(refusal.value)
    here.stream.abort()


@pytest.mark.rule("SEC-11")
async def test_a_clock_may_be_five_minutes_behind():
    east, west = Keys("east"), Keys("west", made_at=Instant(now() + 4 * 60 * 1_000_000))
    east.trust(west)
    identity = east.contexts().identify(west.certificate.encoded)
    assert identity.name == "peer:west"


@pytest.mark.rule("SX-4", "SX-7")
async def test_a_certificate_counts_for_its_own_principal_and_kind_only():
    east, west, billing = Keys("east"), Keys("west"), Keys("billing")
    east.trust(west)
    east.trust(billing, kind=Kind.CLIENT)
    for_peers, for_clients = east.contexts(), east.contexts(Kind.CLIENT)
    assert for_peers.identify(west.certificate.encoded).name == "peer:west"
    assert for_clients.identify(billing.certificate.encoded).name == "client:billing"
    with pytest.raises(NoProof, match="client:billing, which is no peer"):
        for_peers.identify(billing.certificate.encoded)
    with pytest.raises(NoProof, match="peer:west, which is no client"):
        for_clients.identify(west.certificate.encoded)
    with pytest.raises(NoProof, match="not installed here"):
        identify(Keys("north").certificate.encoded, east.credentials, Kind.PEER, now())


@pytest.mark.rule("SX-4")
async def test_a_certificate_with_another_private_key_is_no_certificate():
    west, north = Keys("west"), Keys("north")
    key = north.private_keys[north.certificate.id]
    with pytest.raises(InvalidArgument, match="cannot be used with its private key"):
        client_context(Own(west.certificate, key), [])


@pytest.mark.rule("SX-4")
async def test_a_certificate_that_an_installed_one_has_signed_proves_nothing(meet):
    """A certificate that an administrator installed may be that of an authority."""
    east, west = Keys("east"), Keys("west")
    west.trust(east)
    authority, issued, key = issued_by_an_authority("west")
    east.trust(SimpleNamespace(name="west", certificate=authority))  # type: ignore[arg-type]
    here, there = await meet(east.contexts(), client_context(Own(issued, key), [east.certificate]))
    async with asyncio.timeout(10):
        done, _ = await asyncio.wait(
            [there.secured, there.ended], return_when=asyncio.FIRST_COMPLETED
        )
    if there.secured in done:
        with pytest.raises(NoProof):
            east.contexts().identify(await there.secured)
    here.stream.abort()


@pytest.mark.rule("SX-4")
async def test_older_versions_of_tls_are_refused(meet):
    east, west = Keys("east"), Keys("west")
    east.trust(west)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    here, there = await meet(east.contexts(), old)
    await over(here)
    assert "TLS 1.3 only" in explain(here.error, own=None)[1]
    await over(there)
    assert not there.secured.done()


@pytest.mark.rule("SX-4")
async def test_no_session_can_be_resumed(meet):
    east, west = Keys("east"), Keys("west")
    east.trust(west)
    west.trust(east)
    context = west.contexts().client()
    here, there = await meet(east.contexts(), context)
    async with asyncio.timeout(10):
        await asyncio.gather(here.secured, there.secured)
    there.stream.write(b"hello")
    async with asyncio.timeout(10):
        await here.received.wait()
    assert not here.stream._tls.session.has_ticket
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert east.contexts().server().num_tickets == 0


@pytest.mark.rule("SEC-10")
async def test_a_plain_far_end_is_told_from_tls_by_its_first_byte(meet):
    east = Keys("east")
    _, there = await meet(east.contexts(), b"\0\0\0\5plain")
    async with asyncio.timeout(10):
        await there.received.wait()
    assert there.plain is not None
    assert there.came == b"\0\0\0\5plain"
    there.plain.close()


@pytest.mark.rule("SEC-5")
async def test_without_a_valid_own_certificate_nothing_is_accepted(meet):
    east = Keys("east", made_at=Instant(now() - 500 * DAY))
    west = Keys("west")
    west.trust(east)
    here, there = await meet(east.contexts(), west.contexts())
    await over(there)
    assert isinstance(there.error, InvalidArgument)
    assert "expired at" in there.error.message
    assert "brokerd certificate" in there.error.hint
    await over(here)


@pytest.mark.rule("SX-2", "TRN-9")
async def test_a_handshake_has_its_time_and_its_size(meet):
    east = Keys("east")
    _, slow = await meet(east.contexts(), b"\x16", limit=0.05)
    await over(slow)
    assert isinstance(slow.error, TimeoutError)
    # records of a handshake that never ends: each asks for more
    hello = b"\x16\x03\x01\x40\x00\x01\x00\xff\xff" + bytes(0x4000 - 4)
    _, large = await meet(east.contexts(), hello + b"\x16\x03\x01\x40\x00" * 1 + bytes(MOST_BYTES))
    await over(large)
    assert large.error is not None
