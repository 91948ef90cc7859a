"""Verbs of a session against a daemon that answers: what is written, what comes back."""

import asyncio
import errno
import os
import resource
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import astuple

import brokerd
from brokerd.client.arguments import wire_wait
from brokerd.client.messages import FOREVER, Wait, read_messages
from brokerd.client.session import Session
from brokerd.errors import (
    Busy,
    ContractNotFound,
    ConversationNotFound,
    DaemonUnreachable,
    InvalidArgument,
    MessageTooLarge,
    NullBody,
    ProtocolError,
    QueueDisabled,
    RemoteError,
    TooManyOpenFiles,
)
from brokerd.protocol.client_frames import Hello, Limits, Request, encode_done
from brokerd.protocol.client_verbs import BeginDialog, End, Send
from tests.unit.client.scripted import (
    HANDLE,
    Daemon,
    MovedClock,
    message,
    open_session,
    turns,
)


@pytest.mark.rule("CLP-10")
async def test_the_first_frame_names_broker_and_client(session: Session, daemon: Daemon) -> None:
    first = daemon.peer.frames[0]
    assert isinstance(first, Hello)
    assert (first.request, first.broker) == (0, "shop")
    assert first.client_id == session.client_id
    assert first.info["pid"] == os.getpid()


@pytest.mark.rule("CLP-34", "REL-2")
async def test_a_send_is_one_request_with_a_token(session: Session, daemon: Daemon) -> None:
    await session.send(HANDLE, b"order", "Order")
    assert daemon.asked == ["transact"]
    assert daemon.applied == [Send(HANDLE, "Order", b"order")]
    assert daemon.tokens == {0}


@pytest.mark.rule("CLP-50")
async def test_each_commit_asked_for_has_the_next_token(session: Session, daemon: Daemon) -> None:
    await session.send(HANDLE, b"one", "Order")
    async with session.transaction() as tx:
        await tx.receive("q")
        await tx.send(HANDLE, b"two", "Order")
    daemon.queues["q"] = [message(0, b"three")]
    await session.receive("q", autocommit=True)
    await session.send(HANDLE, b"four", "Order")
    assert daemon.tokens == {0, 1, 2, 3}


@pytest.mark.rule("SND-11")
async def test_an_absent_body_is_not_none(session: Session, daemon: Daemon) -> None:
    await session.send(HANDLE)
    await session.send(HANDLE, b"")
    with pytest.raises(NullBody):
        await session.send(HANDLE, None)  # type: ignore[arg-type]
    assert [verb.body for verb in daemon.applied if isinstance(verb, Send)] == [None, b""]


@pytest.mark.parametrize(
    ("handle", "body"), [(b"short", b""), ("x" * 16, b""), ([], b""), (HANDLE, "text"), (HANDLE, 5)]
)
async def test_what_cannot_be_sent_is_refused_here(
    session: Session, daemon: Daemon, handle: object, body: object
) -> None:
    with pytest.raises(InvalidArgument):
        session.submit_send(handle, body)  # type: ignore[arg-type]
    await turns()
    assert daemon.asked == []


@pytest.mark.rule("SND-12")
async def test_a_body_over_the_limit_is_refused_here(daemon: Daemon, clock: MovedClock) -> None:
    daemon.limits = Limits(body=10)
    async with await open_session(daemon, clock) as session:
        await session.send(HANDLE, b"x" * 10)
        with pytest.raises(MessageTooLarge):
            await session.send(HANDLE, b"x" * 11)


async def test_a_text_that_is_no_utf8_fails_alone(session: Session, daemon: Daemon) -> None:
    bad = session.submit_send(HANDLE, b"", "\ud800")
    await session.send(HANDLE, b"next")
    with pytest.raises(InvalidArgument):
        await bad
    assert [verb.body for verb in daemon.applied if isinstance(verb, Send)] == [b"next"]


@pytest.mark.rule("CLP-8")
async def test_what_is_asked_in_one_turn_is_written_at_once(
    session: Session, daemon: Daemon
) -> None:
    before = len(daemon.peer.writes)
    sent = [session.submit_send(HANDLE, b"%d" % i) for i in range(100)]
    await asyncio.gather(*sent)
    assert len(daemon.peer.writes) == before + 1
    assert [verb.body for verb in daemon.applied if isinstance(verb, Send)] == [
        b"%d" % i for i in range(100)
    ]


@pytest.mark.rule("CLP-20", "SND-12")
async def test_a_body_longer_than_a_frame_travels_both_ways(
    session: Session, daemon: Daemon
) -> None:
    body = os.urandom(3 << 20)
    await session.send(HANDLE, body)
    assert daemon.applied == [Send(HANDLE, None, body)]
    daemon.queues["q"] = [message(0, body), message(1, b"small")]
    received = await session.receive("q", autocommit=True)
    assert [each.body for each in received] == [body, b"small"]


@pytest.mark.rule("DLG-1")
async def test_the_session_makes_the_handle(session: Session, daemon: Daemon) -> None:
    handle = await session.begin_dialog(
        "shop", "warehouse", "orders", 60, broker_id="current_database", encryption=False
    )
    (begun,) = daemon.applied
    assert isinstance(begun, BeginDialog)
    assert (begun.handle, begun.from_service, begun.to_service) == (handle, "shop", "warehouse")
    options = begun.options
    assert (options.contract, options.lifetime, options.broker_id) == ("orders", 60, b"")
    assert options.encryption is False


@pytest.mark.rule("DLG-20")
async def test_end_with_an_error(session: Session, daemon: Daemon) -> None:
    await session.end(HANDLE, 7, "no stock")
    assert daemon.applied == [End(HANDLE, 7, "no stock")]


@pytest.mark.rule("CLP-9")
async def test_a_refusal_becomes_the_error_of_its_code(session: Session, daemon: Daemon) -> None:
    daemon.failing["transact"] = ContractNotFound("no contract 'orders'", hint="see the catalog")
    with pytest.raises(ContractNotFound, match="no contract 'orders'") as caught:
        await session.begin_dialog("shop", "warehouse", "orders")
    assert (caught.value.hint, caught.value.ssb_code) == ("see the catalog", 8425)


async def test_an_unknown_code_is_kept(session: Session, daemon: Daemon) -> None:
    class Newer(QueueDisabled):
        code = "newer"
        retryable = True

    daemon.failing["transact"] = Newer("later")
    with pytest.raises(brokerd.BrokerError) as caught:
        await session.send(HANDLE)
    assert (caught.value.code, caught.value.retryable) == ("newer", True)


@pytest.mark.rule("RCV-16")
async def test_receive_needs_a_transaction_or_the_word(session: Session, daemon: Daemon) -> None:
    daemon.queues["q"] = [message()]
    with pytest.raises(InvalidArgument, match="loses messages"):
        await session.receive("q")
    assert daemon.asked == []
    assert len(await session.receive("q", autocommit=True)) == 1
    assert await session.receive("q", autocommit=True) == []


@pytest.mark.rule("RCV-1", "CLP-35")
@pytest.mark.parametrize(
    "options",
    [
        {"conversation": HANDLE, "group": HANDLE},
        {"conversation": b"1"},
        {"wait": -1},
        {"wait": float("nan")},
        {"wait": 1e18},
        {"wait": "5"},
        {"wait": timedelta(seconds=-1)},
    ],
)
async def test_a_receive_that_makes_no_sense_is_refused(
    session: Session, options: dict[str, object]
) -> None:
    with pytest.raises(InvalidArgument):
        await session.receive("q", autocommit=True, **options)  # type: ignore[arg-type]


@pytest.mark.rule("RCV-18", "CLP-35")
@pytest.mark.parametrize(
    ("wait", "milliseconds"),
    [
        (None, None),
        (FOREVER, -1),
        (0, 0),
        (0.0, 0),
        (5, 5000),
        (0.0001, 1),  # not 0, which would not wait at all
        (timedelta(milliseconds=1500), 1500),
    ],
)
def test_a_wait_travels_in_milliseconds(wait: Wait, milliseconds: int | None) -> None:
    assert wire_wait(wait) == milliseconds


@pytest.mark.rule("DLG-28", "DLG-29")
async def test_an_error_message_tells_its_error(session: Session, daemon: Daemon) -> None:
    body = b'{"code": 7, "description": "no stock", "origin": "application", "at": 1}'
    daemon.queues["q"] = [
        message(-1, body, message_type="urn:brokerd:Error"),
        message(3, None, message_type="urn:brokerd:EndDialog"),
        message(4, b"plain"),
        message(5, b"\xff", message_type="urn:brokerd:Error"),
    ]
    failed, ended, plain, broken = await session.receive("q", autocommit=True)
    assert failed.is_error
    assert isinstance(failed.error, RemoteError)
    assert (failed.error.number, failed.error.description) == (7, "no stock")
    assert ended.is_end
    assert ended.error is None
    assert (plain.is_end, plain.is_error, plain.error) == (False, False, None)
    assert broken.error is not None


@pytest.mark.rule("CLP-36")
def test_further_elements_of_a_message_are_ignored() -> None:
    fields = [*astuple(message(3, b"x")), 1, {}, {}, "of a later version", 7]
    (found,) = read_messages([fields])
    assert (found.sequence, found.body, found.timer_name, found.status) == (3, b"x", None, 1)
    with pytest.raises(ProtocolError):
        read_messages([fields[:12]])


@pytest.mark.rule("CLP-39")
async def test_questions_to_the_instance(session: Session) -> None:
    assert await session.status() == {"verb": "Status"}
    with pytest.raises(brokerd.BrokerError):
        await session.view("queues")  # the scripted daemon answers with a map


async def test_nobody_there(daemon: Daemon, clock: MovedClock) -> None:
    daemon.down = True
    with pytest.raises(DaemonUnreachable):
        await open_session(daemon, clock)


async def test_the_first_connection_is_tried_for_as_long_as_said(
    daemon: Daemon, clock: MovedClock
) -> None:
    daemon.down = True
    connecting = asyncio.ensure_future(open_session(daemon, clock, wait=30))
    await clock.advance(10)
    assert not connecting.done()
    daemon.down = False
    await clock.advance(6)
    await (await connecting).close()


@pytest.mark.rule("CLP-12")
async def test_a_refused_hello_is_told(daemon: Daemon, clock: MovedClock) -> None:
    daemon.refusal = InvalidArgument("no broker 'shop'")
    with pytest.raises(InvalidArgument, match="no broker"):
        await open_session(daemon, clock, wait=30)
    daemon.refusal = Busy("too many clients")
    connecting = asyncio.ensure_future(open_session(daemon, clock, wait=30))
    await turns()
    daemon.refusal = None
    await clock.advance(6)
    await (await connecting).close()


@pytest.mark.rule("CLP-30")
async def test_no_more_is_outstanding_than_allowed(daemon: Daemon, clock: MovedClock) -> None:
    daemon.hold = {"transact"}
    async with await open_session(daemon, clock) as session:
        sent = [session.submit_send(HANDLE, b"%d" % i) for i in range(3000)]
        await turns()
        assert 500 < len(daemon.asked) <= 1024
        blocked = asyncio.ensure_future(session.room())
        await turns()
        assert not blocked.done()
        daemon.hold = set()
        daemon.peer.release()
        await asyncio.gather(*sent)
        await blocked
    bodies = [verb.body for verb in daemon.applied if isinstance(verb, Send)]
    assert bodies == [b"%d" % i for i in range(3000)]


@pytest.mark.rule("CLP-30")
async def test_answers_wake_nobody_who_waits_for_room_behind_others(
    session: Session, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer makes room for one request, and many may wait."""
    daemon.hold = {"transact"}
    sent = [session.submit_send(HANDLE, b"") for _ in range(2000)]
    await turns()
    blocked = [asyncio.ensure_future(session.room()) for _ in range(10)]
    await turns()
    link = session._link
    writes_now, asked = link.writes_now, 0

    def counted() -> bool:
        nonlocal asked
        asked += 1
        return writes_now()

    monkeypatch.setattr(link, "writes_now", counted)
    written = len(daemon.asked)
    for _ in range(5):
        daemon.peer.say(daemon.peer.held.pop(0))
        await turns()
    assert len(daemon.asked) == written + 5
    assert asked == 0
    daemon.hold = set()
    daemon.peer.release()
    await asyncio.gather(*sent, *blocked)
    assert asked >= len(blocked)


@pytest.mark.rule("CLP-30")
async def test_a_transaction_goes_on_while_other_requests_wait_to_be_written(
    session: Session, daemon: Daemon
) -> None:
    """Those that are written may wait for the very locks that the transaction holds."""
    daemon.hold = {"transact"}
    sent = [session.submit_send(HANDLE, b"") for _ in range(2000)]
    await turns()

    async with session.transaction() as tx:
        await tx.receive("q")
        for number in range(300):
            await tx.send(HANDLE, b"%d" % number)
    await turns()
    in_the_block = [verb.body for verb in daemon.applied if isinstance(verb, Send) and verb.body]
    assert in_the_block == [b"%d" % number for number in range(300)]
    assert not any(each.done() for each in sent)
    daemon.hold = set()
    daemon.peer.release()
    await asyncio.gather(*sent)


@pytest.mark.rule("CLP-30")
async def test_a_transaction_begins_as_soon_as_there_is_room(
    daemon: Daemon, clock: MovedClock
) -> None:
    daemon.limits = Limits(outstanding=4)
    daemon.hold = {"send"}
    async with await open_session(daemon, clock) as session:
        full = session.transaction()
        await full.receive("q")
        for _ in range(4):
            await full.send(HANDLE, b"")
        late = asyncio.ensure_future(session.transaction().receive("q"))
        await turns()
        assert not late.done()
        assert daemon.asked.count("begin") == 1
        daemon.hold = set()
        daemon.peer.release()
        assert await late == []
        await full.commit()


@pytest.mark.rule("CLP-30", "CLP-11")
@pytest.mark.parametrize("outstanding", [1, 4, 200])
async def test_a_daemon_may_allow_little(
    daemon: Daemon, clock: MovedClock, outstanding: int
) -> None:
    daemon.limits = Limits(outstanding=outstanding)
    daemon.hold = {"transact"}
    async with await open_session(daemon, clock) as session:
        sent = [session.submit_send(HANDLE) for _ in range(500)]
        await turns()
        assert 0 < len(daemon.asked) <= outstanding
        daemon.hold = set()
        daemon.peer.release()
        await asyncio.gather(*sent)


@pytest.mark.rule("CLP-52")
async def test_tokens_stay_within_the_window(session: Session, daemon: Daemon) -> None:
    daemon.hold = {"transact"}
    stuck = session.submit_send(HANDLE, b"stuck")
    await turns()
    daemon.hold = set()
    sent = [session.submit_send(HANDLE, b"") for _ in range(2000)]
    await turns(200)
    assert daemon.highest < 1024
    daemon.peer.release()
    await asyncio.gather(stuck, *sent)
    assert daemon.highest == 2000


@pytest.mark.rule("CLP-52")
async def test_the_commits_of_transactions_stay_within_the_window_too(
    session: Session, daemon: Daemon
) -> None:
    daemon.hold = {"transact"}
    stuck = session.submit_send(HANDLE, b"stuck")
    await turns()

    async def commits() -> None:
        for _ in range(1500):
            async with session.transaction() as tx:
                await tx.receive("q")
                await tx.send(HANDLE, b"")

    committing = asyncio.ensure_future(commits())
    while daemon.highest < 1023:
        await turns(1)
    await turns(1000)
    assert daemon.highest == 1023
    daemon.hold = set()
    daemon.peer.release()
    await asyncio.gather(stuck, committing)
    assert daemon.highest == 1500


@pytest.mark.rule("CLP-52")
async def test_each_open_transaction_has_a_token_left(daemon: Daemon, clock: MovedClock) -> None:
    daemon.limits = Limits(transactions=500)
    async with await open_session(daemon, clock) as session:
        open_ones = [session.transaction() for _ in range(500)]
        for tx in open_ones:
            await tx.receive("q")
            await tx.send(HANDLE, b"")
        daemon.hold = {"transact"}
        sent = [session.submit_send(HANDLE, b"") for _ in range(800)]
        await turns()
        for tx in open_ones:
            await tx.commit()
        assert daemon.highest == 1023
        daemon.hold = set()
        daemon.peer.release()
        await asyncio.gather(*sent)


@pytest.mark.rule("CLP-52")
async def test_a_refused_token_does_not_hold_the_window(daemon: Daemon, clock: MovedClock) -> None:
    async with await open_session(daemon, clock) as session:
        daemon.failing["transact"] = ConversationNotFound()
        sent = [session.submit_send(HANDLE) for _ in range(2000)]
        told = await asyncio.gather(*sent, return_exceptions=True)
        assert {type(each) for each in told} == {ConversationNotFound}
        daemon.failing.clear()
        await session.send(HANDLE)
    assert daemon.tokens == {2000}


async def test_too_much_waiting_to_be_written_is_refused(session: Session, daemon: Daemon) -> None:
    daemon.hold = {"transact"}
    sent = [session.submit_send(HANDLE) for _ in range(20_000)]
    await turns()
    refused = [each for each in sent if each.done()]
    assert refused
    for each in refused:
        with pytest.raises(Busy):
            each.result()


async def test_leaving_the_block_waits_for_what_was_sent(daemon: Daemon, clock: MovedClock) -> None:
    async with await open_session(daemon, clock) as session:
        sent = session.submit_send(HANDLE, b"last")
    assert sent.done()
    assert len(daemon.applied) == 1
    with pytest.raises(brokerd.errors.ConnectionLost):
        await session.send(HANDLE)


@pytest.mark.rule("CLP-1")
@pytest.mark.parametrize("address", ["unix:/tmp/none", "tcp://127.0.0.1:1"])
async def test_a_lack_of_descriptors_is_told_as_such(address: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    await asyncio.get_running_loop().run_in_executor(None, os.getpid)  # what opens files is open
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(TooManyOpenFiles, match=r"this process .*Too many open") as told:
            await brokerd.connect(address, broker="shop")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit -n" in told.value.hint
    assert "brokerd serve" not in told.value.hint


@pytest.mark.rule("CLP-1")
async def test_a_lack_of_descriptors_of_the_machine_is_told_too(clock: MovedClock) -> None:
    async def connect(_factory: object) -> Any:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    with pytest.raises(TooManyOpenFiles, match="this machine"):
        await brokerd.connect("unix:/none", broker="shop", connector=connect, clock=clock)


async def test_connect_can_be_awaited_or_entered(daemon: Daemon, clock: MovedClock) -> None:
    async with brokerd.connect(broker="shop", connector=daemon.connector, clock=clock) as session:
        assert session.welcome.broker == "shop"
        assert not session.closed
    assert session.closed


async def test_conversation_not_found_in_a_pipeline_hits_one_send(
    session: Session, daemon: Daemon
) -> None:
    daemon.failing["transact"] = ConversationNotFound()
    bad = session.submit_send(HANDLE)
    await turns()
    daemon.failing.clear()
    await session.send(HANDLE)
    with pytest.raises(ConversationNotFound):
        await bad


@pytest.mark.rule("CLP-4")
async def test_request_numbers_rise(session: Session, daemon: Daemon) -> None:
    for _ in range(3):
        await session.send(HANDLE)
    numbers = [frame.request for frame in daemon.peer.frames if isinstance(frame, Request)]
    assert numbers == [1, 2, 3]


@pytest.mark.rule("CLP-5")
async def test_an_answer_to_nothing_costs_the_connection_only(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.peer.say(encode_done([99]))
    await turns()
    await clock.advance(1)
    assert len(daemon.peers) == 2
    await session.send(HANDLE)
