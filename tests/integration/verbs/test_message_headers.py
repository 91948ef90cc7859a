"""Headers come with their message, whatever happens to it inside one instance (SND-28)."""

from typing import Any

import pytest

from brokerd.broker.window import WindowOptions
from brokerd.client.messages import ABSENT, Message
from brokerd.client.outcomes import Park
from brokerd.client.session import Session
from brokerd.errors import BadRequest, InvalidArgument, MessageTooLarge
from brokerd.protocol.headers import Headers
from tests.integration.broker.test_retention import retain
from tests.integration.checking.typed_bodies import Ends, both_ways
from tests.integration.one_daemon import Daemon, rows
from tests.integration.scenarios import scenario, with_limits
from tests.integration.shorthand import fails, take, talk
from tests.integration.two_brokers import Wire, between

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
GIVEN: dict[str, str | bytes] = {**TRACE, "ce-id": "\u00e9", "raw": b"\0\xff", "A": "1", "a": "2"}
TINY = WindowOptions(window_messages=3, window_bytes=4000, page_messages=2, locked_factor=1000)


def seen(messages: list[Message]) -> list[tuple[bytes | None, Headers]]:
    return [(one.body, one.headers) for one in messages]


@pytest.mark.rule("SND-26", "SND-28", "RCV-46", "CLP-167", "CLP-168")
@scenario
async def test_every_way_to_send_carries_them(daemon: Daemon, session: Session) -> None:
    first, second = await talk(session, b"0"), await talk(session, b"0")
    await take(session, "shop")
    await take(session, "shop")
    await session.send(first, b"1", "Ask", headers=GIVEN)
    await session.send(first, b"2", "Ask", headers={})
    await session.submit_send(first, b"3", "Ask", headers={"n": "3"})
    async with session.transaction() as tx:  # collected: one request, and then several
        await tx.send(first, b"4", "Ask", headers={"n": memoryview(b"4")})  # type: ignore[dict-item]
        await tx.send(first, b"5", "Ask")
        await tx.send(first, headers={"n": "6"}, message_type="Nudge")
    async with session.transaction() as tx:
        await tx.receive("desk")
        await tx.send(first, b"7", "Ask", headers={"n": "7"})
        await tx.send(first, b"8", "Ask")
    async with session.transaction() as tx:
        await tx.send(first, b"x" * 200_000, "Ask", headers={"n": "9"})
    got = await take(session, "shop")
    assert seen(got) == [
        (b"1", GIVEN),
        (b"2", {}),
        (b"3", {"n": "3"}),
        (b"4", {"n": b"4"}),
        (b"5", {}),
        (None, {"n": "6"}),
        (b"7", {"n": "7"}),
        (b"8", {}),
        (b"x" * 200_000, {"n": "9"}),
    ]
    assert list(got[0].headers) == list(GIVEN)
    await session.send([first, second], b"both", "Ask", headers=GIVEN)
    assert seen(await take(session, "shop") + await take(session, "shop")) == 2 * [(b"both", GIVEN)]
    await session.post_one("urn:desk", "urn:shop", b"one", "Ask", contract="talk", headers=GIVEN)
    (posted,) = await take(session, "shop")
    assert seen([posted]) == [(b"one", GIVEN)]
    await session.send(posted.handle, b"back", "Answer", headers={"to": "the other side"})
    (answer,) = await take(session, "desk", wait=5)
    assert answer.headers == {"to": "the other side"}


@pytest.mark.rule("SND-26", "SND-27", "SDK-18")
@scenario
async def test_wrong_headers_fail_at_the_call(daemon: Daemon, session: Session) -> None:
    mine = await talk(session, b"0")
    wrong: list[Any] = [
        {"": "x"},
        {"a b": "x"},
        {"brokerd-x": "y"},
        {"a": 1},
        {"a": "x" * 8192},
        {str(number): "" for number in range(65)},
        "text",
        [("a", "b")],
    ]
    for headers in wrong:
        error = await fails(InvalidArgument, session.send(mine, b"1", "Ask", headers=headers))
        assert error.hint, headers
        with pytest.raises(InvalidArgument):
            async with session.transaction() as tx:
                await tx.send(mine, b"1", "Ask", headers=headers)
    assert seen(await take(session, "shop")) == [(b"0", {})]


@pytest.mark.rule("CLP-169", "CLP-167", "BI-12")
@scenario
async def test_the_daemon_refuses_them_before_the_verb_runs(
    daemon: Daemon, session: Session
) -> None:
    mine = await talk(session, b"0")
    wrong: list[Any] = [
        {"": "x"},
        {"a" * 129: "x"},
        {"a b": "x"},
        {"\n": "x"},
        {"\u00e9": "x"},
        {b"a": "x"},
        {"brokerd-x": "y"},
        {"a": 1},
        {"a": None},
        {"a": ["x"]},
        {"a": {"b": "c"}},
        {"a": "x" * 8192},
        {str(number): "" for number in range(65)},
        "text",
        ["a", "b"],
        7,
    ]
    for headers in wrong:
        args = (mine, "Ask", b"1", headers)
        await fails(BadRequest, session._link.transact((("send", args),)).future)
        begin = ("begin_dialog", (b"n" * 16, "urn:desk", "urn:shop", {"contract": "talk"}))
        verbs = (begin, ("send", (b"n" * 16, "Ask", b"1", headers)), ("end", (b"n" * 16,)))
        await fails(BadRequest, session._link.transact(verbs).future)
    assert await rows(daemon, "conversation_endpoints") == 2
    nothing: list[Any] = [None, {}]
    for none in nothing:
        await session._link.transact((("send", (mine, "Ask", b"2", none)),)).future
    assert seen(await take(session, "shop")) == [(b"0", {}), (b"2", {}), (b"2", {})]


@pytest.mark.rule("SND-29", "SND-12", "OBJ-14")
@with_limits(max_message=20_000)
async def test_bodies_are_checked_alone_and_limited_with_them(
    daemon: Daemon, session: Session
) -> None:
    mine = await talk(session, b"0")
    await session.send(mine, ABSENT, "Nudge", headers=GIVEN)
    assert seen(await take(session, "shop")) == [(b"0", {}), (None, GIVEN)]
    await session.send(mine, b"x" * 20_000, "Ask")
    await fails(MessageTooLarge, session.send(mine, b"x" * 20_000, "Ask", headers=GIVEN))
    await session.send(mine, b"no body is allowed", "Nudge", headers=GIVEN)
    assert [one.is_error for one in await take(session, "desk")] == [True]


@pytest.mark.rule("SND-29", "OBJ-18", "SND-28", "DLP-60")
@both_ways
async def test_a_schema_is_checked_against_the_body_alone(ends: Ends) -> None:
    handle = await ends.here.begin_dialog("urn:here", "urn:there", "terms")
    padded = b'{"n": 1, "p": "' + b"." * 5000 + b'"}'
    for body in (b'{"n": 1}', padded):
        await ends.here.send(handle, body, "ExactJson", headers=GIVEN)
        await ends.here.send(handle, body, "Json", headers=GIVEN)
    await ends.here.send(handle, b"<n>1</n>", "ExactXml", headers=GIVEN)
    found: list[Message] = []
    while len(found) < 5:
        found += await ends.at_there()
    bodies = [b'{"n": 1}', b'{"n": 1}', padded, padded, b"<n>1</n>"]
    assert seen(found) == [(body, GIVEN) for body in bodies]
    await ends.here.send(handle, b'{"m": 1}', "ExactJson", headers=GIVEN)
    (error,) = await ends.at_here()
    assert error.is_error


@pytest.mark.rule("SND-28", "REL-33", "DLP-59")
@both_ways
async def test_large_bodies_and_fragments_keep_them(ends: Ends) -> None:
    handle = await ends.here.begin_dialog("urn:here", "urn:there", "terms")
    sent: list[tuple[bytes | None, Headers]] = []
    for number, size in enumerate((1, 900, 1100, 5000, 40_000)):
        headers: dict[str, str | bytes] = {"n": str(number), "pad": b"." * (size % 4000)}
        body = b"%d" % number + b"x" * size
        await ends.here.send(handle, body, "Any", headers=headers)
        await ends.here.send(handle, body, "Any")
        sent += [(body, headers), (body, {})]
    found: list[Message] = []
    while len(found) < len(sent):
        found += await ends.at_there()
    assert seen(found) == sent


@pytest.mark.rule("SND-28", "REL-6", "RCV-47")
@with_limits(window=TINY, large_body=3000)
async def test_the_backlog_of_a_queue_keeps_them_over_a_restart(
    daemon: Daemon, session: Session
) -> None:
    handles = [await talk(session) for _ in range(4)]
    sent: dict[bytes, list[Any]] = {one: [] for one in handles}
    for number in range(40):
        handle, size = handles[number % 4], 4000 if number % 7 == 0 else 5
        body = b"%d" % number + b"x" * size
        headers: dict[str, str | bytes] = {} if number % 3 else {"n": str(number), "raw": body[:9]}
        await session.send(handle, body, "Ask", headers=headers)
        sent[handle].append((body, headers))
    browsed = [one async for one in session.browse("shop")]
    assert seen(browsed) == [sent[handles[n % 4]][n // 4] for n in range(40)]
    assert not [one.headers async for one in session.browse("shop", bodies=False) if one.headers]
    async with session.transaction() as tx:  # what is given back has them, too
        await tx.receive("shop")
        tx.rollback(counts=False)
    await session.close()
    await daemon.restart()
    found: dict[bytes, list[Any]] = {}
    async with await daemon.session() as again:
        while batch := await take(again, "shop"):
            for one in batch:
                found.setdefault(one.conversation_id, []).append((one.body, one.headers))
    assert sorted(map(repr, found.values())) == sorted(map(repr, sent.values()))


@pytest.mark.rule("SND-28", "RCV-31", "RCV-35", "RCV-47", "PBT-24")
@with_limits(large_body=3000)
async def test_retained_copies_have_them(daemon: Daemon, session: Session) -> None:
    await retain(daemon, queues=("desk", "shop"))
    mine = await talk(session)
    for body in (b"small", b"x" * 5000):
        await session.send(mine, body, "Ask", headers=GIVEN)
    (asked, _) = await take(session, "shop")
    await session.send(asked.handle, b"answer", "Answer")
    await take(session, "desk")
    for queue in ("desk", "shop"):
        kept = [one async for one in session.browse(queue) if one.status in (0, 3)]
        wanted = {b"small": GIVEN, b"x" * 5000: GIVEN, b"answer": {}}
        assert {one.body: one.headers for one in kept} == wanted
    view = await session.view("retained_messages", bodies=True)
    assert {one["message_body"]: one["message_headers"] for one in view} == {
        b"small": GIVEN,
        b"x" * 5000: GIVEN,
        b"answer": None,
    }
    bare = await session.view("retained_messages")
    assert {one["message_headers"] for one in bare} == {None}


@pytest.mark.rule("RCV-48", "PBT-3", "SND-28")
@scenario
async def test_parking_and_editing_keep_them(daemon: Daemon, session: Session) -> None:
    mine = await talk(session)
    await session.send(mine, b'{"n": "bad"}', "Ask", headers=GIVEN)
    await session.send(mine, b"behind", "Ask", headers=TRACE)
    async with session.transaction() as tx:
        (message, _) = await tx.receive("shop")
        tx.rollback(Park("by hand"))
    await session.status()
    await session.admin.edit_group(message.group_id, b'{"n": 1}', "a typing error")
    await session.close()
    await daemon.restart()
    async with await daemon.session() as again:
        assert seen(await take(again, "shop")) == [(b'{"n": 1}', GIVEN), (b"behind", TRACE)]


@pytest.mark.rule("PBT-12", "SND-28")
@scenario
async def test_a_message_that_is_sent_again_has_them(daemon: Daemon, session: Session) -> None:
    mine = await talk(session, b"first")
    (asked,) = await take(session, "shop")
    await daemon.switch("shop", on=False)
    await session.send(mine, b"1", "Ask", headers=GIVEN)
    await session.send(mine, b"2", "Ask")
    await session.end(asked.handle, 7, "broken")
    await daemon.switch("shop", on=True)
    new = await talk(session)
    await session.resend_pending(mine, new)
    assert seen(await take(session, "shop")) == [(b"1", GIVEN), (b"2", {})]


@pytest.mark.rule("SND-28", "RCV-47", "DLP-59")
@between
async def test_the_transmission_queue_keeps_them_over_a_restart(
    wire: Wire, main: Session, east: Session
) -> None:
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    wire.drops = lambda _item: True
    await main.send(mine, b"1", "Ask", headers=GIVEN)
    await main.send(mine, b"2", "Ask")
    shown = await main.view("transmission_queue", bodies=True)
    assert [(one["message_body"], one["message_headers"]) for one in shown] == [
        (b"1", GIVEN),
        (b"2", None),
    ]
    await wire.daemon.restart()
    wire.tap()
    wire.drops = lambda _item: False
    found: list[Message] = []
    while len(found) < 2:
        found += await take(east, "harbour", wait=30)
    assert seen(found) == [(b"1", GIVEN), (b"2", {})]
