"""Bodies that do not fit their message type, on every way on which they can arrive."""

import asyncio
from pathlib import Path

import orjson
import pytest

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.errors import InvalidArgument, SchemaValidationFailed, ValidationFailed
from tests.integration.checking.typed_bodies import (
    TYPES,
    Ends,
    both_ways,
    objects,
)
from tests.integration.one_daemon import Daemon, play, rows

LONG = b'{"n": "' + b"x" * 3000 + b'"'
"""Several fragments, and not one of them JSON by itself; with a brace at the end it is."""


def error_of(message: Message) -> tuple[int, str]:
    assert message.error is not None
    return message.error.number, message.error.description


FITS = [
    ("Any", b"\xff"),
    ("Nothing", None),
    ("Xml", b"<a/>"),
    ("Xml", None),
    ("ExactXml", b"<n>1</n>"),
    ("Json", LONG + b"}"),
    ("ExactJson", LONG + b"}"),
]
UNFIT = [
    ("Nothing", b"x", -8430, -8430),
    ("Xml", b"<a>", -8430, -8430),
    ("ExactXml", b"<n>x</n>", -9615, -9616),
    ("ExactXml", None, -9615, -9616),
    ("Json", b"{", -8430, -8430),
    ("Json", LONG, -8430, -8430),
    ("ExactJson", b"{}", -9615, -9616),
    ("ExactJson", LONG.replace(b'"n"', b'"m"') + b"}", -9615, -9616),
]


@pytest.mark.rule("OBJ-14", "OBJ-15", "OBJ-18", "OBJ-19", "OBJ-26", "SND-16")
@both_ways
async def test_bodies_that_fit_arrive(ends: Ends) -> None:
    handle = await ends.send(b"first", "Any")
    for message_type, body in FITS:
        await ends.send_on(handle, body, message_type)
    arrived: list[Message] = []
    while len(arrived) < 1 + len(FITS):
        arrived += await ends.at_there()
    assert [(one.message_type, one.body) for one in arrived[1:]] == FITS
    codes = [one.validation for one in arrived[1:]]
    assert codes == ["N", "E", "X", "X", "X", "J", "J"]


@pytest.mark.rule("SND-11", "OBJ-14")
@both_ways
async def test_a_body_of_no_bytes_is_an_absent_one(ends: Ends) -> None:
    handle = await ends.send(b"", "Nothing")
    for message_type in ("Any", "Nothing", "Xml"):
        await ends.send_on(handle, b"", message_type)
        await ends.send_on(handle, None, message_type)
    arrived: list[Message] = []
    while len(arrived) < 7:
        arrived += await ends.at_there()
    assert [one.body for one in arrived] == [None] * 7


@pytest.mark.rule("OBJ-18", "DLG-43", "SND-16", "ERR-8430", "ERR-9616")
@both_ways
async def test_on_an_open_dialog_a_body_that_does_not_fit_errors_both_ends(ends: Ends) -> None:
    good = {name: body for name, body in reversed(FITS) if body is not None}
    for message_type, body, told, struck in UNFIT:
        handle = await ends.send(b"first", "Any")
        (first,) = await ends.at_there()
        sent = []
        if message_type in good:  # that one body fits says nothing of the next, in one go
            sent.append(ends.here.submit_send(handle, good[message_type], message_type))
        if body is not None:
            sent.append(ends.here.submit_send(handle, body, message_type))
        else:
            sent.append(ends.here.submit_send(handle, message_type=message_type))
        await asyncio.gather(*sent)
        (mine,) = await ends.at_here()
        theirs = await until_error(ends)
        assert (error_of(mine)[0], error_of(theirs)[0]) == (told, struck), message_type
        assert "was refused" in error_of(mine)[1]
        await ends.here.end(handle)
        await ends.there.end(first.handle)


async def until_error(ends: Ends) -> Message:
    while True:
        for one in await ends.at_there():
            if one.error is not None:
                return one


@pytest.mark.rule("OBJ-18", "DLG-44", "DLG-T6", "SND-16")
@both_ways
async def test_a_first_message_that_does_not_fit_leaves_no_endpoint_at_the_target(
    ends: Ends,
) -> None:
    for message_type, body, told, _ in UNFIT:
        handle = await ends.send(body, message_type)
        (mine,) = await ends.at_here()
        assert error_of(mine)[0] == told, message_type
        await ends.here.end(handle)
    assert await ends.at_there(wait=0) == []
    for name in ("main", "far"):
        if name in ends.daemon.instance.brokers:
            store = ends.daemon.instance.brokers[name].store
            states = await store.endpoints.count_by_state()
            assert states == {}, states


@pytest.mark.rule("SND-13")
@both_ways
async def test_a_body_is_bytes_and_stays_the_bytes_that_were_sent(ends: Ends) -> None:
    for body in (b'{"a": 1}', b"\xef\xbb\xbftext", b"\x00\xff", orjson.dumps([1])):
        handle = await ends.send(body, "Any")
        (got,) = await ends.at_there()
        assert got.body == body
        await ends.here.end(handle)
        await ends.there.receive("there_q", wait=30, autocommit=True)
    with pytest.raises(InvalidArgument):
        await ends.here.send(b"h" * 16, 7, "Any")  # type: ignore[arg-type]


@pytest.mark.rule("OBJ-20")
def test_the_receivers_definition_governs(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        strict = [{"name": "Note", "validation": "well_formed_json"}]
        loose = [{"name": "Note"}]
        near = objects("main", loose, "urn:here", "here_q")
        far = objects("far", strict, "urn:there", "there_q")
        async with await daemon.session() as admin:
            await admin.apply({"broker": [near, far]})
        here, there = await daemon.session(), await daemon.session(broker="far")
        ends = Ends(here, there, daemon)
        await ends.send(b"{}", "Note")
        (got,) = await ends.at_there()
        await there.send(got.handle, b"{", "Note")
        (answer,) = await ends.at_here()
        assert answer.body == b"{"
        await here.send(answer.handle, b"{", "Note")
        (mine,) = await ends.at_here()
        assert error_of(mine)[0] == -8430
        await here.close()
        await there.close()

    play(program, tmp_path)


@pytest.mark.rule("OBJ-21")
@both_ways
async def test_a_new_validation_does_not_touch_what_is_on_a_queue(ends: Ends) -> None:
    handle = await ends.send(b"<a>", "Any")
    while not await rows_at(ends.there, ends.daemon):
        await asyncio.wait_for(ends.daemon.pass_time(0.1), 60)
    await ends.there.alter("message_type", "Any", validation="well_formed_xml")
    await ends.send_on(handle, b"<b>", "Any")
    (mine,) = await ends.at_here()
    assert error_of(mine)[0] == -8430
    theirs = await ends.at_there()
    assert {one.body for one in theirs if one.error is None} == {b"<a>"}


async def rows_at(session: Session, daemon: Daemon) -> int:
    broker = daemon.instance.brokers[session.welcome.broker]
    return sum(queue.ready_count for queue in broker.queues.values())


@pytest.mark.rule("ERR-8430", "ERR-9616", "DLG-43")
@pytest.mark.parametrize(
    ("message_type", "body", "numbers", "says"),
    [
        ("Xml", b"<a>", (-8430, -8430), "not well-formed XML"),
        ("ExactXml", b"<n>", (-9615, -9616), "not well-formed XML"),
        ("ExactXml", b"<n>x</n>", (-9615, -9616), "not valid"),
        ("Json", b"{", (-8430, -8430), "not JSON"),
        ("ExactJson", b"{", (-9615, -9616), "not JSON"),
        ("ExactJson", b"{}", (-9615, -9616), "not valid"),
    ],
)
def test_both_sides_learn_by_number_and_text_what_was_wrong(
    tmp_path: Path, message_type: str, body: bytes, numbers: tuple[int, int], says: str
) -> None:
    """Malformed text under WELL_FORMED_XML is 8430 here, and 9615 in Service Broker: on purpose."""

    @both_ways
    async def test(ends: Ends) -> None:
        handle = await ends.send(b"first", "Any")
        await ends.at_there()
        await ends.send_on(handle, body, message_type)
        (here,), (there,) = await ends.at_here(), await ends.at_there()
        assert (error_of(here)[0], error_of(there)[0]) == numbers
        assert says in error_of(here)[1]
        assert says in error_of(there)[1]

    for way in ("direct", "dispatched"):
        folder = tmp_path / way
        folder.mkdir()
        test(folder, way)


@pytest.mark.rule("PBT-14", "ERR-8430", "ERR-9616")
def test_validate_on_send_refuses_in_the_caller_and_stores_nothing(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        checked = [one | {"validate_on_send": "on"} for one in TYPES]
        main = objects("main", checked, "urn:here", "here_q")
        async with await daemon.session() as session:
            await session.apply({"broker": [main]})
            handle = await session.begin_dialog("urn:here", "urn:elsewhere", "terms")
            for message_type, body, code, _ in UNFIT:
                kind = SchemaValidationFailed if code == -9615 else ValidationFailed
                with pytest.raises(kind) as caught:
                    await Ends(session, session, daemon).send_on(handle, body, message_type)
                assert type(caught.value) is kind
            with pytest.raises(ValidationFailed, match="line 1 column 2"):
                await session.send(handle, b"{", "Json")
            assert await rows(daemon, "transmission_queue") == 0
            await session.send(handle, b"{}", "Json")
            await session.send(handle, b"[]", "Json")
            with pytest.raises(ValidationFailed):  # also on a dialog that is under way
                await session.send(handle, b"[", "Json")
            assert await rows(daemon, "transmission_queue") == 2

    play(program, tmp_path)
