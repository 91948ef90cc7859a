"""HTTP beyond this machine: TLS, and callers with an installed certificate (SX-25)."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from brokerd.clock import SystemClock
from brokerd.config.settings import CertificateAuthority, HttpSettings
from brokerd.errors import AccessDenied
from brokerd.http.reads import Caller
from brokerd.ids import secret_bytes
from brokerd.security.certificates import make_certificate
from brokerd.security.credentials import Kind, Purpose
from brokerd.security.grants import Entry, Origin, parse_grant
from brokerd.security.tls import Own, client_context
from brokerd.sessions.principals import Who
from tests.authority import Ca
from tests.integration.http.conftest import Site, Start
from tests.integration.http.test_listener import raw

TLS = HttpSettings(listen="TCP://0.0.0.0:0", tls=True, hosts=("here.example",))


def context_of(site: Site, own: Own | None) -> ssl.SSLContext:
    server = site.instance.parts.credentials.own(Purpose.TRANSPORT, SystemClock().utc())
    assert server is not None
    return client_context(own, [server.certificate])


def made(name: str) -> Own:
    return Own(*make_certificate(name, now=SystemClock().utc(), random=secret_bytes))


async def install(site: Site, own: Own, *grants: str) -> str:
    name = f"client:{own.certificate.subject}"
    parts = site.instance.parts
    await parts.credential_store.add_principal(
        Kind.CLIENT, name, (Purpose.TRANSPORT, own.certificate), actor="test"
    )
    for grant in grants:
        parts.grants.add(Entry(grant=parse_grant(f"{grant} to {name}"), origin=Origin.ONLINE))
    return name


def connected(site: Site, own: Own | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context_of(site, own)))


async def is_refused(caller: aiohttp.ClientSession, url: str) -> bool:
    """Whether the handshake fails, or the only answer is that nobody is known."""
    try:
        async with caller.get(url) as answer:
            return answer.status == 403
    except aiohttp.ClientError:
        return True


@pytest.mark.rule("SX-25", "MON-27")
async def test_the_owner_of_an_installed_certificate_is_answered(start: Start) -> None:
    site, own = await start(TLS), made("till")
    await install(site, own)
    async with connected(site, own) as caller:
        for path in ("/livez", "/readyz", "/metrics", "/"):
            async with caller.get(f"https://127.0.0.1:{site.port}{path}") as answer:
                assert answer.status == 200


@pytest.mark.rule("SX-25")
@pytest.mark.parametrize("known", [False, None])
async def test_anybody_else_is_refused_whatever_is_asked_for(
    start: Start, known: bool | None
) -> None:
    site = await start(TLS)
    own = None if known is None else made("stranger")
    async with connected(site, own) as caller:
        for path in ("/livez", "/metrics", "/"):
            assert await is_refused(caller, f"https://127.0.0.1:{site.port}{path}")
    logins = [row for row in await site.session.view("audit") if row["subject"] == "http"]
    assert logins == [] or {row["outcome"] for row in logins} == {"refused"}


@pytest.mark.rule("SX-25")
async def test_a_caller_that_does_not_encrypt_learns_why_it_is_refused(start: Start) -> None:
    site = await start(TLS)
    answer = await raw(site, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"https://" in answer
    assert len(site.listener.door) == 0


@pytest.mark.rule("SX-25", "CLP-130")
async def test_a_certificate_gives_what_is_granted_to_its_owner_and_nothing_else(
    start: Start,
) -> None:
    site, rich, poor = await start(TLS), made("rich"), made("poor")
    names = [await install(site, rich, "control on main"), await install(site, poor)]
    callers = [Caller(Who((one,), one), csrf="", reads=site.listener.reads) for one in names]
    assert await (await callers[0].session("main")).view("service_queues")
    with pytest.raises(AccessDenied, match="client:poor"):
        await (await callers[1].session("main")).view("service_queues")
    for one in callers:
        await one.close()


@pytest.mark.rule("SX-3", "SX-25")
async def test_a_revoked_certificate_ends_its_connections(start: Start) -> None:
    site, own = await start(TLS), made("till")
    name = await install(site, own)
    async with connected(site, own) as caller:
        async with caller.get(f"https://127.0.0.1:{site.port}/livez") as answer:
            assert answer.status == 200
        assert len(site.listener.door) == 1
        await site.session.admin.revoke_principal(name)
        assert await is_refused(caller, f"https://127.0.0.1:{site.port}/livez")


@pytest.mark.rule("SEC-69", "SX-25")
async def test_a_change_of_the_cas_files_ends_the_connections_of_clients(
    start: Start, tmp_path: Path
) -> None:
    ca = Ca("root")
    certificate, key = ca.issue("here.brokers.example")
    mine = b"".join(ca.issue("till.brokers.example"))
    files = {"file": ca.pem, "certificate": certificate, "key": key, "crl_file": ca.revoked()}
    for name, content in {**files, "mine": mine}.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    rule = "{name}.brokers.example"
    settings = CertificateAuthority(
        **{name: tmp_path / name for name in files},  # type: ignore[arg-type]
        clients=rule,
    )
    site = await start(TLS, ca=settings)
    await site.session.admin.install_principal("client:till")
    context = ssl.create_default_context(cadata=ca.pem.decode())
    context.check_hostname = False
    context.load_cert_chain(tmp_path / "mine")
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port, ssl=context)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: here.example\r\n\r\n")
    assert b" 200 " in await reader.readline()
    check = site.instance.parts.authority.check
    assert check() == 0
    assert len(site.listener.door) == 1
    ca.revoke(mine)
    (tmp_path / "crl_file").write_bytes(ca.revoked())
    assert check() == 1
    with suppress(ConnectionError):
        await reader.read()
    assert len(site.listener.door) == 0
    with suppress(ConnectionError):
        writer.close()
        await writer.wait_closed()


@pytest.mark.rule("MON-26", "SX-25")
@pytest.mark.parametrize(
    ("host", "status"),
    [("10.1.2.3:8022", 200), ("[fe80::1]", 200), ("here.example", 200), ("evil.example", 421)],
)
async def test_beyond_this_machine_addresses_and_named_hosts_are_answered(
    start: Start, host: str, status: int
) -> None:
    site, own = await start(TLS), made("till")
    await install(site, own)
    url = f"https://127.0.0.1:{site.port}/livez"
    async with (
        connected(site, own) as caller,
        caller.get(url, headers={"Host": host}) as answer,
    ):
        assert answer.status == status


@pytest.mark.rule("MON-28", "SX-25")
async def test_with_tls_the_address_of_the_page_has_no_token(start: Start) -> None:
    site = await start(TLS)
    found = await site.session.admin.open_page()
    assert found.url == f"https://here.example:{site.port}/"


@pytest.mark.rule("SX-25", "SX-21")
async def test_the_listener_is_named_by_status_and_log(start: Start, tmp_path: Path) -> None:
    site = await start(TLS)
    status = await site.session.status()
    (door,) = status["open_listeners"]
    assert (door["who"], door["permitted_by"]) == ("http", "http.tls")
    (line,) = [one for one in site.log.of("broker.daemon") if one["subclass"] == "open_to_network"]
    assert line["listener"] == "http"
    local = await start()
    assert (await local.session.status())["open_listeners"] == []
