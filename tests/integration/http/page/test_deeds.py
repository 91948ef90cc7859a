"""What the page can change: after a confirmation, with permission, and audited."""

import re
from typing import Any

import pytest

from tests.integration.http.page.conftest import Site

BODY = b'{"sku": "A-1009", "note": "Zo\xc3\xab <b>"}'


def form_of(text: str) -> dict[str, str]:
    """Return the hidden fields of the one form that is sent by POST."""
    form = text[text.index('<form method="post"') if '<form method="post"' in text else 0 :]
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form)
    return dict(fields)


async def post(site: Site, path: str, status: int, /, **sent: str) -> str:
    async with site.caller.post(site.root + path, data=sent, allow_redirects=False) as answer:
        text = await answer.text()
        assert answer.status == status, text
        return answer.headers.get("Location", text)


async def audited(site: Site) -> list[dict[str, Any]]:
    return [dict(row) for row in await site.session.view("audit", limit=20)]


def actions(rows: list[dict[str, Any]]) -> set[str]:
    return {row["action"] for row in rows}


@pytest.mark.rule("MON-54")
async def test_release_lets_the_group_be_received_again(site: Site) -> None:
    group = await site.park(BODY, b"next")
    asked = await site.get("/confirm/release", group=group)
    assert "can be received again" in asked
    assert (await site.json("/parked.json"))["groups"], "the question has changed nothing"
    there = await post(site, "/do/release", 303, **form_of(asked), reason="mended")
    assert "The group was released" in await site.get(there)
    assert (await site.json("/parked.json"))["groups"] == []
    assert [m.body async for m in site.session.browse("orders")] == [BODY, b"next"]
    (entry,) = [row for row in await audited(site) if row["action"] == "release_group"]
    assert "mended" in str(entry["detail"])


@pytest.mark.rule("MON-54")
@pytest.mark.parametrize(("everything", "left"), [("", [b"next"]), ("yes", [])])
async def test_discard_deletes_the_first_message_or_all(
    site: Site, everything: str, left: list[bytes]
) -> None:
    group = await site.park(BODY, b"next")
    asked = await site.get("/confirm/discard", group=group)
    assert "deleted for good" in asked
    await post(site, "/do/discard", 303, **form_of(asked), everything=everything, reason="junk")
    assert [m.body async for m in site.session.browse("orders")] == left
    assert "discard_group" in actions(await audited(site))


@pytest.mark.rule("MON-53", "MON-54")
async def test_edit_shows_the_body_and_replaces_it(site: Site) -> None:
    group = await site.park(BODY, b"next")
    asked = await site.get("/confirm/edit", group=group)
    assert "A-1009" not in asked, "the question shows no content"
    assert "body_shown" not in actions(await audited(site))
    shown = await post(site, "/edit", 200, **form_of(asked))
    assert "&quot;A-1009&quot;" in shown
    assert "Zoë &lt;b&gt;" in shown
    assert "body_shown" in actions(await audited(site))
    new = '{"sku": "A-1",\r\n "note": ""}'
    await post(site, "/do/edit", 303, **form_of(shown), body=new, reason="typo")
    bodies = [m.body async for m in site.session.browse("orders")]
    assert bodies == [b'{"sku": "A-1",\n "note": ""}', b"next"], "lines end as they did"
    assert "edit_group" in actions(await audited(site))


@pytest.mark.rule("MON-54")
async def test_a_deed_is_about_the_message_of_its_question(site: Site) -> None:
    group = await site.park(BODY, b"next")
    discard = form_of(await site.get("/confirm/discard", group=group))
    edit = form_of(
        await post(site, "/edit", 200, **form_of(await site.get("/confirm/edit", group=group)))
    )
    assert discard["message"] == edit["message"]
    other = {"message": "0" * 8 + discard["message"][8:]}
    for path, sent in (("/do/discard", discard), ("/do/edit", {**edit, "body": "{}"})):
        text = await post(site, path, 409, **{**sent, **other})
        assert discard["message"] in text
        assert "nothing was changed" in text
        without = {key: value for key, value in sent.items() if key != "message"}
        assert "nothing was changed" in await post(site, path, 400, **without)
    assert [m.body async for m in site.session.browse("orders")] == [BODY, b"next"]
    await post(site, "/do/discard", 303, **discard)


@pytest.mark.rule("MON-54")
@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (b"\xff\x00binary", "ff 00 62"),
        (b"one\r\ntwo\n", "two"),
        ("\u202efdp.exe".encode(), "\\u202efdp.exe"),
        (b"x" * 20_000, "xxx"),
    ],
    ids=["bytes", "mixed lines", "invisible", "large"],
)
async def test_a_body_that_a_form_would_change_is_not_edited(
    site: Site, body: bytes, seen: str
) -> None:
    group = await site.park(body)
    shown = await post(site, "/edit", 200, **form_of(await site.get("/confirm/edit", group=group)))
    assert "cannot be edited in a form" in shown
    assert "<textarea" not in shown
    assert seen in shown


@pytest.mark.rule("MON-54")
async def test_a_queue_is_switched_off_and_on(site: Site) -> None:
    for status, enabled in (("off", False), ("on", True)):
        asked = await site.get("/confirm/switch", queue="orders", status=status)
        there = await post(site, "/do/switch", 303, **form_of(asked))
        assert "The queue was switched" in await site.get(there)
        (row,) = await site.session.view("service_queues", where={"name": "orders"})
        assert (row["is_receive_enabled"], row["is_enqueue_enabled"]) == (enabled, enabled)
    entries = [row for row in await audited(site) if row["action"] == "queue_switched"]
    assert len(entries) == 2


@pytest.mark.rule("MON-53")
async def test_a_body_is_shown_on_request_and_that_is_recorded(site: Site) -> None:
    await site.send(BODY)
    (message,) = (await site.json("/queue.json", name="orders"))["messages"]
    order = str(message["queuing_order"])
    asked = await site.get("/confirm/body", queue="orders", order=order)
    assert "A-1009" not in asked
    shown = await post(site, "/body", 200, **form_of(asked))
    assert "&quot;sku&quot;: &quot;A-1009&quot;" in shown
    (entry,) = [row for row in await audited(site) if row["action"] == "body_shown"]
    assert message["conversation_id"] in str(entry["detail"])
    assert entry["subject"] == "main/orders"
    await site.get("/body", 405)
    await post(site, "/body", 404, **{**form_of(asked), "order": "999999"})


@pytest.mark.rule("SX-11", "MON-54")
async def test_nothing_is_done_without_the_proof_of_the_page(site: Site) -> None:
    group = await site.park(BODY)
    sent = form_of(await site.get("/confirm/release", group=group))
    await post(site, "/do/release", 403, **{**sent, "csrf": "0" * 64})
    await post(site, "/do/release", 403, **{k: v for k, v in sent.items() if k != "csrf"})
    for path in ("/do/release", "/do/discard", "/do/edit", "/do/switch", "/edit", "/body"):
        await site.get(path, 405, group=group)
    foreign = {"Origin": "http://evil.example"}
    async with site.caller.post(
        site.root + "/do/release", data=sent, headers=foreign, allow_redirects=False
    ) as answer:
        assert answer.status == 403
    assert (await site.json("/parked.json"))["groups"]


@pytest.mark.rule("MON-54")
async def test_a_deed_that_comes_too_late_says_so(site: Site) -> None:
    group = await site.park(BODY)
    asked = form_of(await site.get("/confirm/release", group=group))
    await post(site, "/do/release", 303, **asked)
    text = await post(site, "/do/release", 404, **asked)
    assert "no group" in text
    await site.get("/confirm/release", 404, group=group)
    await site.get("/confirm/nonsense", 404)
    await post(site, "/do/switch", 400, csrf=asked["csrf"], queue="orders", status="sideways")
