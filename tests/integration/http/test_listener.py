"""The HTTP listener: who is known, what strangers see, and what is cut off."""

import asyncio
import html
import json
import os
import pwd
import re
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from brokerd.config.settings import HttpSettings
from brokerd.errors import AccessDenied, ObjectNotFound, PortTaken
from brokerd.http.guard import HEADERS
from brokerd.http.listener import HEAD
from brokerd.http.reads import Caller
from brokerd.protocol.admin_verbs import View
from brokerd.sessions.principals import Who
from tests.integration.http.conftest import Site, Start

FOR_ALL = ("/livez", "/readyz", "/metrics")


async def status_of(caller: aiohttp.ClientSession, url: str, **options: Any) -> int:
    method = options.pop("method", "GET")
    async with caller.request(method, url, **options) as answer:
        await answer.read()
        return answer.status


async def close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def raw(site: Site, *pieces: bytes) -> bytes:
    """What is answered to bytes, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        await close(writer)


# Who is known.


@pytest.mark.rule("MON-27")
@pytest.mark.parametrize("path", FOR_ALL)
async def test_a_stranger_on_loopback_sees_health_and_metrics(
    start: Start, caller: aiohttp.ClientSession, path: str
) -> None:
    site = await start()
    assert await status_of(caller, site.url(path)) == 200


@pytest.mark.rule("MON-27")
@pytest.mark.parametrize("path", ["/", "/?token=00", "/nothing"])
async def test_a_stranger_on_loopback_sees_nothing_else(
    start: Start, caller: aiohttp.ClientSession, path: str
) -> None:
    site = await start()
    async with caller.get(site.url(path)) as answer:
        assert answer.status == 403
        assert "brokerd page" in await answer.text()


@pytest.mark.rule("MON-27")
@pytest.mark.parametrize(
    ("path", "reason"),
    [("/", "This browser has not been let in."), ("/?token=00", "been used already, or it is too")],
)
async def test_a_browser_that_is_not_let_in_sees_a_page_that_says_what_to_do(
    start: Start, caller: aiohttp.ClientSession, path: str, reason: str
) -> None:
    site = await start()
    async with caller.get(site.url(path), headers={"Accept": "text/html,*/*;q=0.8"}) as answer:
        assert (answer.status, answer.content_type) == (403, "text/html")
        text = await answer.text()
    assert reason in text
    assert ">brokerd page</code>" in text
    assert ">here<" not in text
    (style,) = re.findall(r'rel="stylesheet" href="([^"]+)"', text)
    (icon,) = re.findall(r'rel="icon" href="([^"]+)"', text)
    for file in (style, icon):
        assert await status_of(caller, site.url(file)) == 200
    assert await status_of(caller, site.url(style), method="POST") == 403


@pytest.mark.rule("MON-27", "MON-23")
async def test_the_kernel_says_who_is_at_the_other_end_of_a_unix_socket(start: Start) -> None:
    site = await start(HttpSettings())
    assert site.listener.address == f"unix:{site.folder}/http.sock"
    path = site.folder / "http.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as caller,
        caller.get(site.url("/")) as answer,
    ):
        assert answer.status == 200


@pytest.mark.rule("MON-28", "SX-15")
async def test_an_address_of_the_page_lets_one_browser_in(
    start: Start, caller: aiohttp.ClientSession
) -> None:
    site = await start()
    found = await site.session.admin.open_page()
    assert found.url.startswith(f"http://127.0.0.1:{site.port}/?token=")
    async with caller.get(found.url, allow_redirects=False) as answer:
        assert answer.status == 303
        assert answer.headers["Location"] == "/"
        cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {one.strip() for one in cookie.split(";")}
    assert await status_of(caller, site.url("/")) == 200
    async with aiohttp.ClientSession() as another, another.get(found.url) as answer:
        assert answer.status == 403
        assert "has been used" in await answer.text()
    assert await status_of(caller, site.url("/")) == 200
    await site.instance.parts.audit.finish()
    rows = [row for row in await site.session.view("audit") if row["subject"] == "http"]
    assert {(row["actor"], row["outcome"]) for row in rows} == {
        (found.user, "success"),
        ("127.0.0.1", "refused"),
    }


@pytest.mark.rule("MON-27")
async def test_a_caller_has_the_rights_of_its_principal_and_no_others(start: Start) -> None:
    site = await start(grants=("control on main to daemon", "receive on main/box to mail"))
    reads = site.listener.reads
    control, receive = (
        Caller(Who((name,), name), csrf="", reads=reads) for name in ("daemon", "mail")
    )
    assert control.may(View("service_queues"), "main")
    assert not receive.may(View("service_queues"), "main")
    assert not control.may(View("audit"))
    assert not control.may(View("service_queues"), "no_such_broker")
    there = await control.session("main")
    assert await control.session("main") is there
    assert [row["name"] for row in await there.view("service_queues")]
    with pytest.raises(AccessDenied, match="mail"):
        await (await receive.session("main")).view("service_queues")
    await control.close()
    await receive.close()


@pytest.mark.rule("MON-27", "SX-15")
async def test_a_refused_view_is_in_the_audit_as_that_of_a_client(start: Start) -> None:
    site = await start(grants=("control on main to daemon",))
    caller = Caller(Who(("mail",), "mail"), csrf="", reads=site.listener.reads)
    with pytest.raises(AccessDenied):
        await (await caller.session("main")).view("service_queues")
    await caller.close()
    await site.instance.parts.audit.finish()
    rows = await site.session.view("audit")
    assert [(row["actor"], row["outcome"]) for row in rows if row["action"] == "access"] == [
        ("mail", "refused")
    ]


@pytest.mark.rule("MON-28")
async def test_an_address_for_browsers_needs_a_listener_that_they_can_reach(start: Start) -> None:
    unix, off = await start(HttpSettings()), await start(HttpSettings(enabled=False))
    with pytest.raises(ObjectNotFound, match="Unix socket") as error:
        await unix.session.admin.open_page()
    assert "TCP://127.0.0.1:8022" in error.value.hint
    assert "ssh -L" in error.value.hint
    with pytest.raises(ObjectNotFound, match="no HTTP listener"):
        await off.session.admin.open_page()
    assert off.instance.http is None


@pytest.mark.rule("MON-23")
async def test_daemons_of_one_machine_do_not_clash_by_default(start: Start) -> None:
    one, two = await start(HttpSettings()), await start(HttpSettings())
    assert one.listener.address != two.listener.address


@pytest.mark.rule("MON-23", "BI-C5")
async def test_an_address_in_use_is_named_with_its_key(start: Start, tmp_path: Path) -> None:
    site = await start()
    other = Site(tmp_path / "other")
    with pytest.raises(PortTaken, match=str(site.port)) as error:
        await other.start(HttpSettings(listen=f"TCP://127.0.0.1:{site.port}"))
    assert "http.listen" in error.value.hint


@pytest.mark.rule("MON-23")
async def test_a_stop_closes_the_listener_and_its_connections(tmp_path: Path) -> None:
    site = Site(tmp_path / "d")
    await site.start(HttpSettings())
    reader, writer = await asyncio.open_unix_connection(str(site.folder / "http.sock"))
    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await site.stop()
    await reader.read()  # to its end
    await close(writer)
    assert not (site.folder / "http.sock").exists()
    assert len(site.listener.door) == 0


@pytest.mark.rule("CLP-130", "MON-27")
async def test_users_reach_the_socket_once_something_is_granted_to_one(start: Start) -> None:
    site = await start(HttpSettings(), grants=("receive on main/box to daemon",))
    path = site.folder / "http.sock"
    assert path.stat().st_mode & 0o777 == 0o666


# What a request passes.


@pytest.mark.rule("MON-26", "SX-11")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:80", "ours.org"])
async def test_own_names_are_answered(
    start: Start, caller: aiohttp.ClientSession, host: str
) -> None:
    site = await start(HttpSettings(listen="TCP://127.0.0.1:0", hosts=("Ours.org",)))
    assert await status_of(caller, site.url("/livez"), headers={"Host": host}) == 200


@pytest.mark.rule("MON-26", "SX-11")
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8022", "10.0.0.1", "localhost.evil.example", "127.0.0.1.x"],
)
async def test_other_names_are_refused(
    start: Start, caller: aiohttp.ClientSession, host: str
) -> None:
    site = await start()
    for path in FOR_ALL:
        assert await status_of(caller, site.url(path), headers={"Host": host}) == 421


@pytest.mark.rule("MON-26")
async def test_a_request_without_a_name_is_refused(start: Start) -> None:
    site = await start()
    answer = await raw(site, b"GET /livez HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 421")


@pytest.mark.rule("MON-26", "SX-11")
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/", "/nothing"])
async def test_every_answer_has_the_headers_that_keep_texts_inert(
    start: Start, caller: aiohttp.ClientSession, path: str
) -> None:
    site = await start()
    async with caller.get(site.url(path)) as answer:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert answer.headers["Server"] == "brokerd"


@pytest.mark.rule("MON-26")
@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
async def test_other_methods_are_refused(
    start: Start, caller: aiohttp.ClientSession, method: str
) -> None:
    site = await start()
    await site.let_in(caller)
    for path in ("/livez", "/", "/nothing"):
        assert await status_of(caller, site.url(path), method=method) == 405


@pytest.mark.rule("SX-26")
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Brokerd-CSRF": "00"},
        {"X-Brokerd-CSRF": "{csrf}", "Origin": "http://evil.example"},
        {"X-Brokerd-CSRF": "{csrf}", "Origin": "http://127.0.0.1:1"},
        {"X-Brokerd-CSRF": "{csrf}", "Origin": "null"},
        {"X-Brokerd-CSRF": "{csrf}", "Sec-Fetch-Site": "same-site"},
        {"X-Brokerd-CSRF": "{csrf}", "Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_a_post_that_no_page_of_ours_has_sent_is_refused(
    start: Start, caller: aiohttp.ClientSession, headers: dict[str, str]
) -> None:
    site = await start()
    await site.let_in(caller)
    (browser,) = site.listener.browsers._browsers.values()
    sent = {name: value.format(csrf=browser.csrf) for name, value in headers.items()}
    url = site.url("/nothing")
    assert await status_of(caller, url, method="POST", headers=sent) == 403


@pytest.mark.rule("SX-26")
async def test_a_post_of_our_own_page_passes(start: Start, caller: aiohttp.ClientSession) -> None:
    site = await start()
    await site.let_in(caller)
    (browser,) = site.listener.browsers._browsers.values()
    headers = {
        "X-Brokerd-CSRF": browser.csrf,
        "Origin": f"http://127.0.0.1:{site.port}",
        "Sec-Fetch-Site": "same-origin",
    }
    url = site.url("/nothing")  # passes, and finds no route
    assert await status_of(caller, url, method="POST", headers=headers) == 404
    assert await status_of(caller, url, method="POST", data={"csrf": browser.csrf}) == 404
    assert await status_of(caller, url, method="POST", json={"csrf": browser.csrf}) == 403


@pytest.mark.rule("SX-26")
async def test_a_post_in_odd_bytes_or_form_is_refused(
    start: Start, caller: aiohttp.ClientSession
) -> None:
    site = await start()
    await site.let_in(caller)
    (browser,) = site.listener.browsers._browsers.values()
    head = f"POST /do/switch HTTP/1.1\r\nHost: localhost\r\n{cookie_of(caller)}".encode()
    rest = b"Connection: close\r\nContent-Length: 0\r\n\r\n"
    answer = await raw(site, head + b"X-Brokerd-CSRF: \xff\r\n" + rest)
    assert answer.startswith(b"HTTP/1.1 403 ")
    form = aiohttp.FormData({"csrf": browser.csrf}, default_to_multipart=True)
    headers = {"X-Brokerd-CSRF": browser.csrf}
    url = site.url("/do/switch")
    assert await status_of(caller, url, method="POST", data=form, headers=headers) == 415


@pytest.mark.rule("SX-26")
async def test_a_stranger_posts_nothing(start: Start, caller: aiohttp.ClientSession) -> None:
    site = await start()
    for path in ("/", "/livez", "/metrics"):
        assert await status_of(caller, site.url(path), method="POST") == 403


@pytest.mark.rule("SX-26")
async def test_another_principal_of_a_socket_needs_its_own_value(start: Start) -> None:
    site = await start(HttpSettings())
    path = str(site.folder / "http.sock")
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as caller:
        user = pwd.getpwuid(os.geteuid()).pw_name
        csrf = site.listener.browsers.csrf_of(f"principal {user}")
        wrong = site.listener.browsers.csrf_of("principal another")
        for value, status in ((csrf, 404), (wrong, 403)):
            headers = {"X-Brokerd-CSRF": value}
            url = site.url("/nothing")
            assert await status_of(caller, url, method="POST", headers=headers) == status


# What is cut off.


@pytest.mark.rule("SX-11", "SX-12")
async def test_a_head_that_is_too_large_is_refused(start: Start) -> None:
    site = await start()
    head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    fits = head + b"".join(b"X-%d: %b\r\n" % (n, b"x" * 7000) for n in range(2))
    assert b"200 OK" in await raw(site, fits + b"Connection: close\r\n\r\n")
    many = b"X: y\r\n" * (HEAD // 6 + 1)
    answer = await raw(site, head + many)
    assert answer.startswith(b"HTTP/1.1 431")


@pytest.mark.rule("SX-11", "SX-12")
async def test_a_body_that_is_too_large_is_refused(
    start: Start, caller: aiohttp.ClientSession
) -> None:
    site = await start()
    await site.let_in(caller)
    url, form = site.url("/nothing"), "application/x-www-form-urlencoded"
    headers = {"Content-Type": form}
    status = await status_of(caller, url, method="POST", data=b"x" * 65_537, headers=headers)
    assert status == 413


@pytest.mark.rule("SX-12", "MON-25")
@pytest.mark.parametrize(
    "begun", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: "]
)
async def test_a_connection_that_owes_a_request_is_cut_off(start: Start, begun: bytes) -> None:
    site = await start(
        HttpSettings(listen="TCP://127.0.0.1:0", request_timeout=timedelta(milliseconds=50))
    )
    assert await raw(site, begun) == b""


@pytest.mark.rule("SX-12", "MON-25")
@pytest.mark.parametrize("is_header", [False, True])
async def test_a_body_that_does_not_come_is_cut_off(
    start: Start, caller: aiohttp.ClientSession, is_header: bool
) -> None:
    site = await start(
        HttpSettings(listen="TCP://127.0.0.1:0", request_timeout=timedelta(milliseconds=200))
    )
    await site.let_in(caller)
    (browser,) = site.listener.browsers._browsers.values()
    head = "POST /do/switch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += cookie_of(caller) + "Content-Type: application/x-www-form-urlencoded\r\n"
    head += f"X-Brokerd-CSRF: {browser.csrf}\r\n" if is_header else ""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(f"{head}Content-Length: 1000\r\n\r\ncsrf=".encode())
    async with asyncio.timeout(30):  # and no minute
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    await close(writer)


async def hold(site: Site, headers: str = "") -> asyncio.StreamWriter:
    """Open a connection, have a request answered, and keep the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(f"GET /livez HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await reader.readuntil(b"alive\n")
    return writer


def cookie_of(caller: aiohttp.ClientSession) -> str:
    """Return the header with which a browser is known."""
    return "".join(f"Cookie: {one.key}={one.value}\r\n" for one in caller.cookie_jar)


@pytest.mark.rule("SX-12", "MON-25", "END-18")
async def test_connections_are_bounded(start: Start, caller: aiohttp.ClientSession) -> None:
    site = await start(HttpSettings(listen="TCP://127.0.0.1:0", max_connections=4))
    await site.let_in(caller)  # which keeps one connection
    held = [await hold(site, cookie_of(caller)) for _ in range(3)]
    async with caller.get(site.url("/livez")) as answered:
        assert answered.status == 200
    answer = await raw(site)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert site.listener.door.refused == {"connections": 1}
    await close(held.pop())
    assert b"200 OK" in await raw(
        site, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    await close(*held)


@pytest.mark.rule("MON-25", "END-18")
async def test_those_whom_nobody_knows_keep_no_principal_out(
    start: Start, caller: aiohttp.ClientSession
) -> None:
    site = await start(HttpSettings(listen="TCP://127.0.0.1:0", max_connections=4))
    held = [await hold(site) for _ in range(8)]
    assert site.listener.door.strangers == 2
    await site.let_in(caller)
    known = await hold(site, cookie_of(caller))
    held += [await hold(site) for _ in range(8)]
    known.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await known.drain()
    assert not known.is_closing()
    assert await status_of(caller, site.url("/queues")) == 200
    assert site.listener.door.refused.keys() == {"displaced"}
    await close(known, *held)


@pytest.mark.rule("MON-29")
async def test_an_error_of_a_view_is_answered_with_its_fix(
    start: Start, caller: aiohttp.ClientSession
) -> None:
    site = await start(HttpSettings(listen="TCP://127.0.0.1:0"))
    await site.let_in(caller)
    site.instance.parts.sessions.options = msgspec.structs.replace(
        site.instance.parts.sessions.options, clients=0
    )
    async with caller.get(site.url("/dialogs")) as answer:
        assert answer.status == 503
        page = await answer.text()
        assert "clients are connected" in page
    async with caller.get(site.url("/dialogs.json")) as answer:
        said = json.loads(await answer.text())
        assert said["error"]["code"] == "busy"
        assert html.escape(said["error"]["hint"], quote=False) in page


@pytest.mark.rule("MON-30")
async def test_a_daemon_that_drains_says_so_and_shows_no_page(
    start: Start, caller: aiohttp.ClientSession
) -> None:
    site = await start()
    await site.let_in(caller)
    site.instance.parts.tasks.condition = "draining"
    assert await status_of(caller, site.url("/livez")) == 200
    assert await status_of(caller, site.url("/metrics")) == 200
    assert await status_of(caller, site.url("/")) == 503
    async with caller.get(site.url("/readyz")) as answer:
        assert answer.status == 503
        assert "condition: the daemon is draining" in await answer.text()
    site.instance.parts.tasks.condition = "ready"
