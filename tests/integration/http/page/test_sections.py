"""The sections of the page, as HTML and JSON, and what they keep to."""

import asyncio
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from brokerd.admin.doctor.checks import examine
from brokerd.admin.doctor.codes import CODES
from brokerd.admin.doctor.findings import Finding
from brokerd.cli.doctor_observations import whole
from brokerd.client.session import connect
from brokerd.http.page.sections import SECTIONS, json_path
from brokerd.ids import show
from tests.integration.http.page.conftest import OBJECTS, Site
from tests.integration.http.page.scene import PLAIN

HOSTILE = "<img src=x onerror=alert(1)>\"'&amp;\u202e"


class Document(HTMLParser):
    """The elements and links of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def links(self) -> set[str]:
        return {str(found["href"]) for tag, found in self.tags if tag == "a" and "href" in found}


async def queries(site: Site) -> dict[str, dict[str, str]]:
    """Return a query for each section, of things that exist."""
    handle = await site.send(b"one", b"two")
    group = await site.park(b"three")
    return {
        "/queue": {"name": "orders"},
        "/dialog": {"handle": show(handle)},
        "/group": {"group": group},
    }


@pytest.mark.rule("MON-40")
async def test_every_section_is_a_document_and_json(site: Site) -> None:
    """Links, not script, lead through all of it."""
    asked = await queries(site)
    linked: set[str] = set()
    for one in SECTIONS:
        query = asked.get(one.path, {})
        document = Document(await site.get(one.path, **query))
        assert [tag for tag, _ in document.tags].count("h1") == 1, one.path
        linked |= {link.partition("?")[0] for link in document.links()}
        found = await site.json(json_path(one.path), **query)
        assert isinstance(found, dict)
    assert linked >= {one.path for one in SECTIONS}


@pytest.mark.rule("MON-59")
async def test_a_code_leads_to_its_meaning(site: Site) -> None:
    found = {one["code"] for one in (await site.json("/now.json"))["findings"]}
    now = Document(await site.get("/"))
    leads = {link for link in now.links() if link.startswith("/finding")}
    assert leads == {f"/finding?code={code}" for code in found}
    assert found, "the site has something to say"
    (one,) = (await site.json("/finding.json", code="d44"))["findings"]
    text = await site.get("/finding", code="D44")
    assert one["meaning"] in text
    assert "<h1>Finding D44</h1>" in text
    assert len((await site.json("/finding.json"))["findings"]) == len(CODES)
    assert "no finding has the code D999" in await site.get("/finding", 404, code="D999")


@pytest.mark.rule("SX-11", "MON-40")
async def test_no_document_has_script_or_style_in_it(site: Site) -> None:
    asked = await queries(site)
    for one in SECTIONS:
        document = Document(await site.get(one.path, **asked.get(one.path, {})))
        for tag, found in document.tags:
            assert tag != "style"
            assert "style" not in found
            assert not [name for name in found if name.startswith("on")]
            assert tag != "script" or str(found["src"]).startswith("/static/")


@pytest.mark.rule("MON-57")
async def test_files_of_the_page_are_named_after_their_content(site: Site) -> None:
    document = Document(await site.get("/"))
    files = [str(found.get("src") or found.get("href")) for tag, found in document.tags
             if tag in ("script", "link")]  # fmt: skip
    assert len(files) == 3
    for path in files:
        assert re.fullmatch(r"/static/[a-z]+\.[0-9a-f]{16}\.(css|js|svg)", path)
        async with site.caller.get(site.root + path) as answer:
            assert answer.status == 200
            assert "immutable" in answer.headers["Cache-Control"]
            tag = answer.headers["ETag"]
            assert tag.strip('"') in path
        known = {"If-None-Match": tag}
        async with site.caller.get(site.root + path, headers=known) as answer:
            assert answer.status == 304
    for path in ("/static/page.css", "/static/..%2fdesk.py", "/static/page.0000000000000000.js"):
        await site.get(path, 404)


@pytest.mark.rule("MON-41")
async def test_hostile_names_are_shown_and_do_nothing(tmp_path: Any) -> None:
    names = {"queue": f"q {HOSTILE}", "service": f"urn:{HOSTILE}", "type": f"t {HOSTILE}"}
    site = Site(
        tmp_path / "d",
        {
            "broker": {"name": "main", "default_encryption": "off"},
            "message_type": [{"name": names["type"]}],
            "contract": [{"name": f"c {HOSTILE}", "types": {names["type"]: "any"}}],
            "queue": [{"name": names["queue"]}, {"name": "shop"}, {"name": "orders"}],
            "service": [
                {"name": names["service"], "queue": "orders", "contracts": [f"c {HOSTILE}"]},
                {"name": "urn:orders", "queue": "orders", "contracts": ["DEFAULT"]},
                {"name": "urn:shop", "queue": names["queue"], "contracts": []},
            ],
            "route": [{"name": f"r {HOSTILE}", "service": HOSTILE, "address": "TCP://127.0.0.1:9"}],
        },
    )
    await site.start()
    try:
        await site.let_in()
        handle = await site.session.begin_dialog("urn:shop", names["service"], f"c {HOSTILE}")
        await site.session.send(handle, HOSTILE.encode(), names["type"])
        async with site.session.transaction() as tx:
            (first,) = await tx.receive("orders")
            await tx.send(first.handle, HOSTILE.encode(), names["type"])
            await tx.end(first.handle, error=7, description=HOSTILE * 20)
        group = await site.park(b"x", error=HOSTILE * 30)
        lost = await site.session.begin_dialog("urn:shop", HOSTILE)
        await site.session.send(lost, b"x")
        pages = [
            ("/", {}),
            ("/queues", {}),
            ("/queues", {"sort": "name", "q": HOSTILE}),
            ("/queue", {"name": names["queue"]}),
            ("/queue", {"name": "orders"}),
            ("/dialogs", {"q": HOSTILE}),
            ("/dialogs", {}),
            ("/dialog", {"handle": show(handle)}),
            ("/dialog", {"handle": show(lost)}),
            ("/parked", {}),
            ("/group", {"group": group}),
            ("/network", {}),
            ("/readers", {"queue": HOSTILE}),
            ("/confirm/switch", {"queue": names["queue"], "status": "off"}),
            ("/confirm/release", {"group": group}),
        ]
        for path, query in pages:
            text = await site.get(path, **query)
            document = Document(text)
            assert not [tag for tag, _ in document.tags if tag == "img"], path
            assert not [found for _, found in document.tags if "onerror" in found], path
            assert "\u202e" not in text, path
            assert len(text) < 200_000, path
        for path, query in (
            ("/queue", {"name": HOSTILE * 50}),
            ("/dialog", {"handle": HOSTILE}),
            ("/group", {"group": HOSTILE}),
            ("/network", {"broker": HOSTILE}),
        ):
            text = await site.get(path, 404 if path != "/network" else 400, **query)
            assert "<img" not in text
            assert "\u202e" not in text
    finally:
        await site.stop()


@pytest.mark.rule("MON-46")
async def test_now_says_what_is_wrong_first_and_how_to_mend_it(site: Site) -> None:
    await site.send(b"one")
    found = await site.json("/now.json")
    assert [one["level"] for one in found["findings"]].count("error") == 0
    await site.session.alter("queue", "orders", status="off")
    site.look_again()
    found = await site.json("/now.json")
    first = found["findings"][0]
    assert (first["code"], first["level"]) == ("D06", "error")
    assert "brokerd queue alter orders status=on --broker main" in first["commands"]
    assert found["ready"] == 1
    assert found["queues"] == 2
    assert found["worst"][0]["name"] == "orders"
    text = await site.get("/")
    assert text.index("queue orders of broker main") < text.index("messages in queues")


@pytest.mark.rule("MON-47")
async def test_queues_are_listed_by_need_and_by_name_a_page_at_a_time(site: Site) -> None:
    many = [{"name": f"q{number:03d}"} for number in range(120)]
    await site.session.apply({"broker": {"name": "main"}, "queue": many}, ensure=True)
    await site.park(b"odd")
    site.look_again()
    found = await site.json("/queues.json")
    assert found["queues"][0]["name"] == "orders"
    assert found["queues"][0]["why"] == "groups are parked"
    seen: list[str] = []
    after = ""
    while True:
        page = await site.json("/queues.json", sort="name", after=after)
        assert len(page["queues"]) <= 50
        seen += [one["name"] for one in page["queues"]]
        after = page["next"]
        if after is None:
            break
    assert seen == sorted(["orders", "shop", *(one["name"] for one in many)])
    page = await site.json("/queues.json", sort="name", q="q007")
    assert [one["name"] for one in page["queues"]] == ["q007"]


@pytest.mark.rule("MON-47")
async def test_a_queue_shows_its_messages_without_their_bodies(site: Site) -> None:
    await site.send(b"a secret", b"another")
    text = await site.get("/queue", name="orders")
    assert "secret" not in text
    found = await site.json("/queue.json", name="orders")
    assert [one["message_sequence_number"] for one in found["messages"]] == [0, 1]
    assert found["next"] is None
    assert "secret" not in str(found)
    assert found["queue"]["ready_count"] == 2


@pytest.mark.rule("MON-47", "MON-46")
async def test_a_queue_is_in_the_state_that_now_says(site: Site) -> None:
    """Parked messages are not called ready, and the heading is not "on" if nobody reads."""
    await site.send(b"alone")
    site.look_again()
    now, queue = await site.json("/now.json"), await site.json("/queue.json", name="orders")
    assert now["worst"][0]["why"] == queue["need"]["why"] == "nobody reads"
    assert ">nobody reads<" in await site.get("/queue", name="orders")
    assert ">nobody reads<" in await site.get("/queues", sort="name")
    await site.park(b"odd", b"next")
    site.look_again()
    queue = await site.json("/queue.json", name="orders")
    assert queue["need"]["why"] == "groups are parked"
    held = sorted(str(one["held"]) for one in queue["messages"])
    assert "parked" in held
    assert held.count("parked") == queue["queue"]["parked_count"]
    now = await site.get("/")
    total = len(queue["messages"])
    assert f'<span class="num">{total}</span></span><span class="label">messages in queues' in now
    assert f"in 1 of 2 queues, {held.count('parked')} parked" in now
    await site.session.alter("queue", "orders", status="off")
    text = await site.get("/queue", name="orders")
    assert "can be received once it is on" in text
    assert "can be received<" not in text
    assert "switched" in text
    assert "switched" not in await site.get("/queue", name="shop")


@pytest.mark.rule("MON-51")
async def test_dialogs_are_found_by_the_beginning_of_an_id_a_service_or_a_state(
    site: Site,
) -> None:
    handle = await site.send(b"one")
    other = await site.send(b"two")
    whole = (await site.json("/dialog.json", handle=show(handle)))["dialog"]
    for q in (show(handle)[:6], show(handle), whole["conversation_id"][:9]):
        found = await site.json("/dialogs.json", q=q)
        handles = {one["conversation_handle"] for one in found["dialogs"]}
        assert show(handle) in handles
        assert show(other) not in handles
    found = await site.json("/dialogs.json", q="urn:shop")
    assert {one["service_id"] for one in found["dialogs"]} == {"urn:shop"}
    found = await site.json("/dialogs.json", q="urn:shop", side="far_service")
    assert {one["service_id"] for one in found["dialogs"]} == {"urn:orders"}
    found = await site.json("/dialogs.json", state="ER")
    assert found["dialogs"] == []
    found = await site.json("/dialogs.json", q="order")
    assert found["services"] == ["urn:orders"]


@pytest.mark.rule("MON-48")
async def test_parked_groups_show_their_reason_and_traceback(site: Site) -> None:
    group = await site.park(b"odd", error="Traceback\n  File 1\nKeyError: 'A-1'")
    found = await site.json("/parked.json")
    assert [one["conversation_group_id"] for one in found["groups"]] == [group]
    text = await site.get("/group", group=group)
    assert "  File 1\nKeyError: &#x27;A-1&#x27;" in text
    assert 'href="/confirm/release?' in text
    await site.get("/group", 404, group="0" * 32)


@pytest.mark.rule("MON-44")
async def test_a_section_shows_what_its_reader_may_read(site: Site) -> None:
    """A user with control on one broker sees that one, and no totals of the instance."""
    await site.session.apply({"broker": {"name": "other"}, "queue": [{"name": "secret"}]})
    await site.session.admin.grant("control on main to 4242")
    who = site.instance.http.open_page(_who("4242"))  # type: ignore[union-attr]
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as caller:
        async with caller.get(str(who["url"])) as answer:
            assert answer.status == 200
            text = await answer.text()
        assert "control on msdb" in text
        for path in ("/", "/queues", "/dialogs", "/network"):
            async with caller.get(site.root + path) as answer:
                text = await answer.text()
                assert answer.status == 200, text
                assert "secret" not in text
        async with caller.get(site.root + "/queues", params={"broker": "other"}) as answer:
            assert "secret" not in await answer.text()
        async with caller.get(
            site.root + "/queue", params={"broker": "other", "name": "secret"}
        ) as answer:
            assert answer.status == 400
    async with aiohttp.ClientSession() as stranger, stranger.get(site.root + "/") as answer:
        assert answer.status == 403


def _who(user: str) -> Any:
    from brokerd.sessions.principals import Who  # noqa: PLC0415

    return Who((user,), user)


@pytest.mark.rule("MON-40")
async def test_a_thing_that_is_gone_is_a_page_with_the_right_status(site: Site) -> None:
    text = await site.get("/queue", 404, name="gone")
    assert "is not in broker" in text
    assert "<h1>That did not work</h1>" in text
    await site.get("/dialog", 404, handle="0" * 32)
    async with site.caller.get(site.root + "/queue.json", params={"name": "gone"}) as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["message"]


@pytest.mark.rule("MON-45")
async def test_the_findings_are_those_of_the_doctor(site: Site) -> None:
    await site.park(b"odd")
    await site.send(b"lost", to="urn:nowhere")
    await site.session.alter("queue", "shop", status="off")
    site.look_again()
    shown = {one["code"] for one in (await site.json("/now.json"))["findings"]}
    found: list[Finding] = []
    async with await connect(f"unix:{site.folder}/s", broker="main", retry=0.0) as session:
        seen = await whole(f"unix:{site.folder}/s", session, found)
    said = {one.code for one in [*found, *examine(seen)]}
    assert {"D06", "D44", "D10"} <= shown
    assert shown == said


@pytest.mark.rule("MON-49")
async def test_the_network_shows_destinations_and_routes(tmp_path: Path) -> None:
    site = Site(tmp_path / "d", OBJECTS, endpoint=PLAIN)
    await site.start()
    try:
        await site.let_in()
        far = {"name": "far", "service": "urn:far", "address": "TCP://127.0.0.1:9"}
        old = {"name": "old", "service": "urn:old", "address": "TCP://127.0.0.1:9", "lifetime": 1}
        await site.session.apply({"broker": {"name": "main"}, "route": [far, old]}, ensure=True)
        await site.send(b"one", to="urn:far")
        found: Any = {"destinations": [], "routes": []}
        async with asyncio.timeout(60):
            while not (
                any(one["last_error"] for one in found["destinations"])
                and any(one["is_expired"] for one in found["routes"])
            ):
                found = await site.json("/network.json")
        (row,) = found["destinations"]
        assert row["address"] == "tcp://127.0.0.1:9"
        assert [one["name"] for one in found["routes"] if one["is_expired"]] == ["old"]
        text = await site.get("/network")
        assert "tcp://127.0.0.1:9" in text
        assert ">expired<" in text
        assert "why it does not listen" not in text
        assert "Forwarding is off" in text
        assert "discarded messages" not in text
        await site.send(b"lost", to="urn:nowhere")
        site.look_again()
        assert "no destination (main)" in await site.get("/network")
        assert "no destination (main)" in await site.get("/")
    finally:
        await site.stop()


@pytest.mark.rule("MON-50")
async def test_readers_show_why_they_were_started(site: Site) -> None:
    queue = {"name": "work", "activation": {"handler": "tests.integration.handlers:idle"}}
    service = {"name": "urn:work", "queue": "work", "contracts": ["DEFAULT"]}
    broker = {"name": "main"}
    await site.session.apply(
        {"broker": broker, "queue": [queue], "service": [service]}, ensure=True
    )
    await site.send(b"one", to="urn:work")
    found: Any = {"decisions": []}
    async with asyncio.timeout(60):
        while not any(one["decision"] == "started" for one in found["decisions"]):
            found = await site.json("/readers.json", queue="work")
    assert [one["queue_id"] for one in found["monitors"]] == ["work"]
    assert found["decisions"][-1]["decision"] == "enabled", "the latest is first"
    text = await site.get("/readers", queue="work")
    assert "a message arrived" in text
    assert (await site.json("/readers.json"))["decisions"] == []


@pytest.mark.rule("MON-50")
async def test_a_queue_without_readers_says_which_queue_and_why(site: Site) -> None:
    handler = "tests.integration.handlers:idle"
    await site.session.apply(
        {
            "broker": {"name": "main"},
            "queue": [
                *({"name": f"before-{number:03d}"} for number in range(60)),
                {"name": "work", "activation": {"handler": handler}},
                {"name": "idle", "activation": {"handler": handler, "status": "off"}},
            ],
        },
        ensure=True,
    )
    switch = "brokerd queue alter idle activation.status=on --broker main"
    every = await site.get("/readers")
    assert switch in every
    assert ">work<" in every, "also behind more queues than a page has"
    assert "Next page" not in every
    assert switch in await site.get("/readers", queue="idle")
    without = await site.get("/readers", queue="orders")
    assert "no reader of orders: the queue has no activation" in without
    assert "no queue of this broker" not in without
    assert "RECEIVES_OCCURRING" not in every
    found = await site.json("/readers.json")
    assert found["off"] == [{"queue_id": "idle", "reason": "activation is off"}]


@pytest.mark.rule("MON-41", "MON-52")
async def test_a_dialog_that_waits_for_a_queue_here_is_not_said_to_be_elsewhere(site: Site) -> None:
    await site.session.alter("queue", "orders", status="off")
    handle = await site.send(b"one")
    text = await site.get("/dialog", handle=show(handle))
    assert "the target&#x27;s queue is off" in text, "escaped once"
    assert "&amp;#x27;" not in text
    assert "both sides are in this instance" in text.lower()
    assert "could not be asked" not in text
    assert "one side does not exist" in text


@pytest.mark.rule("MON-51", "MON-47")
async def test_dialogs_are_found_by_a_header_of_a_waiting_message(site: Site) -> None:
    handle = await site.session.begin_dialog("urn:shop", "urn:orders")
    await site.session.send(handle, b"secret", headers={"order": "A-7", "raw": b"\xff"})
    lost = await site.session.begin_dialog("urn:shop", "urn:nowhere")
    await site.session.send(lost, b"x", headers={"order": "A-8"})
    await site.send(b"other")
    site.look_again()
    for q, services in (
        ("order=A-7", ["urn:orders"]),
        ("raw=ff", ["urn:orders"]),
        ("order=A-8", ["urn:shop"]),
        ("order=", ["urn:orders", "urn:shop"]),
        ("order=A", []),
    ):
        found = await site.json("/dialogs.json", q=q)
        assert sorted(one["service_id"] for one in found["dialogs"]) == services, q
        assert found["searched"] == 3
    text = await site.get("/queue", name="orders")
    assert "A-7" in text
    assert "secret" not in text
