"""SRV records as a source of the shipped routing service, from a name server on this machine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import brokerd
from brokerd.client.session import Session
from brokerd.dynamic_routing.route_service import RouteService, declare
from brokerd.dynamic_routing.srv_records import DnsOptions, SrvRecords, Target, Unanswered

pytest.importorskip("dns.asyncresolver", reason="the extra dns is not installed")

import dns.message
import dns.rcode
import dns.rrset

NAME = "_far._tcp.example.net"
Reply = Callable[[Any], Any]


class Server(asyncio.DatagramProtocol):
    """Answers each question with what `reply` makes of it: a message, bytes, or nothing."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        reply = self._reply(dns.message.from_wire(data))
        if reply is not None:
            wire = reply if isinstance(reply, bytes) else reply.to_wire()
            self._transport.sendto(wire, addr)


@asynccontextmanager
async def listening(reply: Reply) -> AsyncIterator[str]:
    """A name server; its address."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: Server(reply), local_addr=("127.0.0.1", 0)
    )
    host, port = transport.get_extra_info("sockname")
    try:
        yield f"{host}:{port}"
    finally:
        transport.close()


@asynccontextmanager
async def serving(reply: Reply, limit: float = 60) -> AsyncIterator[SrvRecords]:
    async with listening(reply) as server:
        yield SrvRecords(DnsOptions(servers=[server], timeout=limit))


def answering(*records: str, rcode: str = "NOERROR", ttl: int = 120) -> Reply:
    def reply(question: Any) -> Any:
        made: Any = dns.message.make_response(question)
        made.set_rcode(dns.rcode.from_text(rcode))
        if records:
            name = question.question[0].name
            made.answer.append(dns.rrset.from_text(name, ttl, "IN", "SRV", *records))
        return made

    return reply


@pytest.mark.rule("BCN-6")
async def test_a_name_server_is_asked() -> None:
    reply = answering("20 0 4023 b.example.net.", "10 5 4022 a.example.net.")
    async with serving(reply) as records:
        known = await records.look_up(NAME)
    assert known.targets == (
        Target(10, 5, "tcp://a.example.net:4022"),
        Target(20, 0, "tcp://b.example.net:4023"),
    )
    assert known.lifetime == 120


@pytest.mark.rule("BCN-6", "BCN-7")
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (answering(rcode="NXDOMAIN"), f"DNS knows no name {NAME}"),
        (answering(), f"DNS has no SRV records for {NAME}"),
        (answering(rcode="SERVFAIL"), f"about {NAME}"),
        (answering("0 0 0 ."), "not offered"),
        (lambda _question: b"nonsense", "in 0.2 s"),
        (lambda _question: None, f"no name server said anything about {NAME} in 0.2 s"),
        (lambda question: question.to_wire()[:2] + bytes(3), "0.2 s"),
    ],
)
async def test_what_is_no_answer_is_told(reply: Reply, said: str) -> None:
    async with serving(reply, limit=0.2 if "0.2 s" in said else 60) as records:
        with pytest.raises(Unanswered) as error:
            await records.look_up(NAME)
    assert said in str(error.value)


# The service.


def written(path: Path, server: str) -> Path:
    path.write_text(
        f'[[service]]\nname = "urn:far"\nsrv = "{NAME}"\n[dns]\nservers = ["{server}"]\n'
    )
    return path


@asynccontextmanager
async def asking(folder: Path, server: str) -> AsyncIterator[tuple[Session, list[str]]]:
    """A broker whose missing routes are asked of the shipped service; what that says."""
    path = written(folder / "routes.toml", server)
    said: list[str] = []
    stop = asyncio.Event()
    async with brokerd.connect(f"file:{folder}/main.db") as session:
        await declare(session)
        wanted = {
            "broker": {"name": "main"},
            "queue": [{"name": "desk"}],
            "service": [{"name": "urn:desk", "queue": "desk"}],
        }
        await session.apply(wanted, ensure=True)
        running = asyncio.ensure_future(RouteService(path, said.append).run(session, stop))
        try:
            yield session, said
        finally:
            stop.set()
            await running


async def outcome(session: Session) -> str:
    """Begin a dialog with the far service; where it goes, or why not, once the request is over."""
    handle = await session.begin_dialog("urn:desk", "urn:far", "DEFAULT", encryption=False)
    await session.send(handle, b"1")
    async with asyncio.timeout(60):
        while True:  # the daemon tells nobody when a request is over
            (row,) = await session.view("broker_statistics")
            if len(row["route_requests_by_outcome"]) > 1:
                break
            await asyncio.sleep(0.01)
    status = await session.transmission_status(handle)
    return status.destination or status.status_key


@pytest.mark.rule("BCN-6", "BCN-7", "BCN-11", "MON-3")
async def test_a_missing_route_is_made_of_what_dns_says(tmp_path: Path) -> None:
    reply = answering("20 0 4023 b.example.net.", "10 5 4022 a.example.net.", ttl=90)
    async with listening(reply) as server, asking(tmp_path, server) as (session, said):
        assert await outcome(session) == "tcp://a.example.net:4022"
        (made,) = [row for row in await session.view("routes") if row["is_dynamic"]]
        assert made["remote_service_name"] == "urn:far"
        now = (await session.status())["now"]
        assert 0 < made["lifetime"] - now <= 90_000_000  # as long as the record holds
        assert said == ["urn:far: tcp://a.example.net:4022"]


@pytest.mark.rule("BCN-7")
async def test_where_dns_knows_nothing_the_request_fails_and_the_message_waits(
    tmp_path: Path,
) -> None:
    reply = answering(rcode="NXDOMAIN")
    async with listening(reply) as server, asking(tmp_path, server) as (session, said):
        assert await outcome(session) == "bcn_failed"
        assert said == [f"urn:far: DNS knows no name {NAME}"]
        assert len(await session.view("transmission_queue")) == 1
